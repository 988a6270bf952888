"""Names for groups: the cause in the words of its most typical member, or the fact that was seen.
No rule's own sentence, which would be the same for all that it finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from apps.failures.clusters.cases import CLASS, ERROR_CHARS, Case, normalised

SHARE = 0.5  # of the members
TOOL_SHARE = 0.6
SHOWN_SHARE = 0.3
LONGEST = 110  # characters of a cause
LONGEST_ERROR = 8  # words
LONGEST_REPLY = 160  # characters, in a sentence
SHOWN = 3  # of each kind of fact
FEW = 2  # tools or arguments that are named although most members have others

FACTS = {
    "answered_with_nothing": "gave an empty answer",
    "arguments_break_the_schema": "arguments break the schema",
    "arguments_do_not_parse": "arguments are not valid JSON",
    "confirmed_rule_broken": "broke a rule of the system prompt",
    "dangerous_without_approval": "dangerous call without approval",
    "ended_on_a_call": "ended before the reply to a call",
    "error_never_recovered": "failed and never worked again",
    "expected_calls": "differs from the expected calls",
    "expected_words": "never said what was expected",
    "handed_over": "was taken over by a person",
    "looped": "repeated the same call",
    "rated_badly": "was rated badly",
    "rejected_by_a_person": "was rejected by a person",
    "tool_is_not_there": "called a tool that is not offered",
    "turn_limit": "ran out of turns",
}


def names(groups: Sequence[tuple[str, Sequence[Case]]]) -> list[str]:
    """One name for each group, all different; what somebody called it comes with each, or nothing.
    The members are most typical first.
    """
    return _made_different(
        [_cut(said) or " · ".join(filter(None, _parts(group))) for said, group in groups]
    )


def _parts(group: Sequence[Case]) -> Iterator[str]:
    causes = [case.cause for case in group if case.cause]
    if len(causes) >= SHARE * len(group):
        yield _cut(causes[0])
        return
    tool = tool_of(group)
    yield tool
    fact = next(iter(_most(case.fact for case in group)), "")
    all_named = [name for case in group for name in case.named]
    named = _most(iter(all_named), least=SHARE * len(group))
    named = named or ([] if tool else _most(iter(all_named))[:FEW])
    if fact:
        yield ": ".join(filter(None, (in_words(fact), ", ".join(named[:SHOWN]))))
    if len(group) <= 2 * sum(bool(case.error) for case in group):
        yield next(filter(None, map(_error_in_words, group)), "")


def fact_of_most(group: Sequence[Case]) -> str:
    """The rule that saw most of the members; empty if none did."""
    return next(iter(_most((case.fact for case in group), least=SHARE * len(group))), "")


def sentence_of(case: Case) -> str:
    """Why it failed, for somebody who groups causes: as somebody said, or else what happened, with
    the tool and what it replied.
    """
    if case.cause or not case.fact:
        return case.cause
    about = f" ({', '.join(case.named[:SHOWN])})" if case.named else ""
    reply = f" Its reply: “{' '.join(case.error.split())[:LONGEST_REPLY]}”" if case.error else ""
    what = f"{case.tool}: {in_words(case.fact)}" if case.tool else f"The run {in_words(case.fact)}"
    return f"{what}{about}.{reply}"


def in_words(fact: str) -> str:
    return FACTS.get(fact, fact.replace("_", " "))


def _cut(text: str) -> str:
    """At most LONGEST characters of a sentence, without its full stop."""
    text = " ".join(text.split())
    if len(text) > LONGEST:
        return text[:LONGEST].rpartition(" ")[0] + " …"
    return text.rstrip(".。") or text


def _error_in_words(case: Case) -> str:
    """The beginning of the call's error as it was written, without what differs by chance."""
    shown: list[str] = []
    for word in case.error[:ERROR_CHARS].split()[:LONGEST_ERROR]:
        plain = normalised(word)
        word = word if plain and "<" not in plain else "…"
        shown += [word] if shown[-1:] != [word] else []
    return " ".join(shown).strip(" …")


def tool_of(group: Sequence[Case]) -> str:
    """The tool, or the two tools, that most of the members blame; empty if there is none."""
    counts = Counter(case.tool for case in group if case.tool)
    common = [tool for tool, count in counts.most_common(2) if count >= TOOL_SHARE / 2 * len(group)]
    if common and counts[common[0]] >= TOOL_SHARE * len(group):
        return common[0]
    return " / ".join(common) if len(common) == 2 else ""


def _most(values: Iterator[str], least: float = 1) -> list[str]:
    """The values that occur at least so often, most frequent first."""
    counts = Counter(filter(None, values))
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    return [value for value in ranked if counts[value] >= least]


def facts_of(group: Sequence[Case]) -> list[dict[str, str | float]]:
    """What a good share of the members have in common: {kind, value, share}, by kind."""
    kinds = {
        "fact": [[in_words(case.fact)] if case.fact else [] for case in group],
        "tool": [[case.tool] if case.tool else [] for case in group],
        "names": [list(case.named) for case in group],
        "error": [[text] if (text := _error_in_words(case)) else [] for case in group],
        "class": [sorted(set(CLASS.findall(case.error))) for case in group],
    }
    least = SHOWN_SHARE * len(group)
    return [
        {"kind": kind, "value": value, "share": sum(value in own for own in values) / len(group)}
        for kind, values in kinds.items()
        for value in _most(chain.from_iterable(values), least)[:SHOWN]
    ]


def _made_different(called: list[str]) -> list[str]:
    """A number where two groups would have the same name."""
    seen: Counter[str] = Counter()
    for place, name in enumerate(called):
        seen[name] += 1
        called[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return called
