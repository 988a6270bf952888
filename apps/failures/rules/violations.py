"""Where a run breaks a rule that its system prompt states or a person wrote. Pure.

Only one that a person has confirmed gives a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apps.failures.rules import conditions, requests
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.reading import Run, system_messages


@dataclass(frozen=True, slots=True)
class Violation:
    """The rule, the step that breaks it, and what happened there."""

    rule: conditions.Rule
    index: int
    text: str


def violations(run: Run) -> Iterator[Violation]:
    """The first violation of each rule that nobody has dismissed."""
    seen: set[str] = set()
    for found in _all(run):
        if (key := conditions.key_of(found.rule)) not in seen:
            seen.add(key)
            yield found


def _all(run: Run) -> Iterator[Violation]:
    for asked in conditions.consents_asked(run):
        for call, _ in requests.changes_without_a_yes(run):
            yield Violation(asked, call.index, f"{call.tool} {requests.WITHOUT_A_YES}.")
    for broken in conditions.broken(run):
        yield Violation(broken.condition, broken.call.index, f"{broken.text}.")
    for index, rule in (*conditions.refuses_permitted(run), *conditions.refuses_allowed(run)):
        yield Violation(
            rule,
            index,
            "The answer reads like a refusal of what the"
            f" {conditions.source_of(run, rule)} allows.",
        )


def confirmed_rule_broken(run: Run) -> Iterator[Finding]:
    """The run breaks a rule that a person has confirmed; the evidence is the sentence in the
    prompt, or the step that breaks a rule which a person wrote."""
    if conditions.CONFIRMED not in run.rule_states.values():
        return
    prompt = next(iter(system_messages(run.messages)), None)
    for found in sorted(violations(run), key=lambda item: item.index):
        if run.rule_states.get(conditions.key_of(found.rule)) == conditions.CONFIRMED:
            source, sentence = conditions.source_of(run, found.rule), cut(found.rule.sentence)
            text = f"{found.text} The {source} says “{sentence}”."
            shown = (
                (found.index, cut(run.words(found.index)))
                if source == "policy rule"
                else (prompt, sentence)
            )
            yield Finding("policy_violation", found.index, shown[0], text, shown[1])
