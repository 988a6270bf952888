"""From a trajectory to its failure mode, the blamed step and the evidence. Pure: no Django, no
torch.

PRECEDENCE is the whole policy: the first line with a finding determines the mode and the blamed
step; findings of all lines are evidence. Harm comes first, then broken contracts that were not
recovered, then deviations from known correct calls, then causes visible in the run (of these the
earliest step decides), then its symptoms, and what only words suggest comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from apps.failures.rules import causes, checks, requests, violations
from apps.failures.rules.findings import Diagnosis, Evidence, Finding
from apps.failures.rules.reading import Run, read

__all__ = ["Diagnosis", "Evidence", "classify"]

# Increment it when a rule's result changes: earlier runs are then classified again.
RULES_VERSION = 8
A_RULE = 3  # findings kept per rule
SCANNED = 200  # broken contracts searched for one that was not recovered
CERTAIN, LIKELY, HINT = "certain", "likely", "hint"
ALL = frozenset(("success", "failure", "unknown"))
NOT_SUCCESS = ALL - {"success"}
FAILURE = frozenset(("failure",))


@dataclass(frozen=True)
class Line:
    """One rule with its precedence: how certain it is, and for which outcomes it applies.

    `standing`: only what was not recovered later counts. `only` is a mode: the rule's other
    findings have a separate line further down. `deferred`: skipped if a line that is not deferred
    has decided. `cause`: deferred, and the earliest step of all causes comes first.
    """

    rule: Callable[[Run], checks.Findings]
    confidence: str
    outcomes: frozenset[str] = NOT_SUCCESS
    standing: bool = False
    only: str = ""
    cause: bool = False
    deferred: bool = False


PRECEDENCE = (
    # Harm: also in a run that is marked as a success.
    Line(checks.dangerous_without_confirmation, CERTAIN, ALL),
    Line(checks.expected_calls, CERTAIN, NOT_SUCCESS, only="unsafe_action"),
    # Broken contracts that were never recovered: also in a success.
    Line(checks.arguments_do_not_parse, CERTAIN, ALL, standing=True),
    Line(checks.words_instead_of_a_call, LIKELY, FAILURE),
    Line(checks.tool_is_not_there, CERTAIN, ALL, standing=True),
    # Against the expected calls: the first deviation. Before the schema, since a call of the wrong
    # tool with wrong arguments is first of all the wrong tool.
    Line(checks.expected_calls, CERTAIN, NOT_SUCCESS),
    Line(checks.arguments_break_the_schema, CERTAIN, ALL, standing=True),
    # What people did about it.
    Line(checks.rejected_by_a_person, CERTAIN),
    Line(checks.rated_badly, LIKELY),
    # Where it went wrong, by what the agent knew at that step.
    Line(violations.confirmed_rule_broken, LIKELY, cause=True, deferred=True),
    Line(causes.choice_not_asked, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.miscounted_time, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.contradicts_a_tool, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.taken_on_trust, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.claimed_without_a_call, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.value_from_nowhere, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.refused_change, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.acted_on_the_past, LIKELY, FAILURE, cause=True, deferred=True),
    Line(causes.changed_unseen, LIKELY, FAILURE, cause=True, deferred=True),
    Line(checks.empty_retrieval_used, LIKELY, FAILURE, cause=True, deferred=True),
    # What the run shows.
    Line(checks.looped, LIKELY),
    Line(checks.said_again, LIKELY),
    Line(checks.turn_limit, CERTAIN),
    Line(causes.turned_away, LIKELY, FAILURE, deferred=True),
    Line(checks.error_never_recovered, LIKELY),
    Line(checks.handed_over, LIKELY),
    Line(checks.cut_off, LIKELY),
    Line(checks.ended_in_the_middle, LIKELY, FAILURE),
    Line(checks.answered_with_nothing, LIKELY),
    Line(checks.expected_words, LIKELY, FAILURE),
    Line(causes.left_unanswered, HINT, FAILURE, deferred=True),
    # What only words suggest.
    Line(checks.user_corrected, HINT),
    Line(checks.user_repeated, HINT, FAILURE),
    Line(causes.never_done, HINT, FAILURE, deferred=True),
    Line(causes.offer_dropped, HINT, FAILURE, deferred=True),
    Line(requests.request_not_served, HINT, FAILURE, deferred=True),
    Line(checks.failed_without_a_finish, HINT, FAILURE),
)


def classify(trajectory: dict) -> Diagnosis | None:
    """The diagnosis of a run {messages, tools, outcome_status, outcome_reason, interventions,
    metadata}, or None.
    """
    return classify_run(read(trajectory))


def classify_run(run: Run) -> Diagnosis | None:
    """A success is only blamed for harm, and for breaking a tool's contract without recovering."""
    cached: dict[Callable, list[Finding]] = {}
    ordered: list[tuple[Line, Finding]] = []
    for line in PRECEDENCE:
        if run.status in line.outcomes and not (
            line.deferred and ordered and not ordered[0][0].deferred
        ):
            ordered += [(line, finding) for finding in _of(line, run, cached)]
    if not ordered:
        return None
    ordered = _earliest_cause_first(ordered)
    return Diagnosis(ordered[0][1].mode, ordered[0][1].blamed, _evidence(ordered))


def _of(line: Line, run: Run, cached: dict[Callable, list[Finding]]) -> list[Finding]:
    """The findings of a line's rule; `cached` keeps them, for a rule with two lines."""
    if line.rule not in cached:
        findings = checks.first(line.rule(run), SCANNED if line.standing else A_RULE)
        cached[line.rule] = (
            checks.without_recovered(run, findings)[:A_RULE] if line.standing else findings
        )
    findings = cached[line.rule]
    return (
        [finding for finding in findings if finding.mode == line.only]
        if line.only and findings
        else findings
    )


def _confidence(line: Line, finding: Finding) -> str:
    return finding.confidence or line.confidence


def _earliest_cause_first(findings: list[tuple[Line, Finding]]) -> list[tuple[Line, Finding]]:
    """The findings of causes sorted by step, at their position among the others."""
    places = [place for place, (line, _) in enumerate(findings) if line.cause]
    if len(places) < 2:
        return findings
    ordered = sorted(
        (findings[place] for place in places),
        key=lambda item: (item[1].blamed is None, item[1].blamed),
    )
    made = dict(zip(places, ordered, strict=True))
    return [made.get(place, item) for place, item in enumerate(findings)]


def _evidence(findings: list[tuple[Line, Finding]]) -> list[Evidence]:
    """Each finding once; the fallback only if there is nothing else."""
    evidence: dict[tuple, Evidence] = {}
    for line, finding in findings:
        if line.rule is checks.failed_without_a_finish and evidence:
            continue
        name, index = line.rule.__name__, finding.blamed if finding.shown is None else finding.shown
        item = Evidence(
            name, index, finding.text, finding.quote, finding.mode, _confidence(line, finding)
        )
        evidence.setdefault((name, index, finding.text), item)
    return list(evidence.values())
