"""What the values of a column look like: things said, speakers, times in order, numbers that begin
again with each conversation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from apps.trajectories.importers.mapping import when
from apps.trajectories.importers.paths import loose
from apps.trajectories.importers.shapes import amount, as_text, number, text
from apps.trajectories.importers.turns import role_of

MANY_SPEAKERS = 12
LONG_NAME = 80
ENOUGH = 4  # rows from which values alone say something
MOST = 0.9
COMPANY = re.compile(
    r"\b(inc|ltd|llc|corp|co|plc|jr|sr|e\.v|s\.a|s\.l|s\.r\.l|b\.v|n\.v)\.$", re.IGNORECASE
)
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{4}"
)  # of scripts without spaces


def share(values: Iterable[Any], fits: Callable[[Any], Any]) -> float:
    """Of the values that are there, how many fit; 0 where none is."""
    given = [value for value in values if value not in (None, "")]
    return sum(1 for value in given if fits(value)) / len(given) if given else 0.0


def looks_said(value: Any) -> bool:
    """A sentence, or the beginning of one; also JSON, as tools answer. Names, numbers, dates and
    categories do not.
    """
    if not isinstance(value, str):
        return isinstance(value, list | dict)
    said = value.strip()
    if isinstance(loose(said), list | dict):
        return True
    if amount(said) is not None or when(said, "day") or when(said, "month"):
        return False
    words = said.split()
    ends = said[-1:] in ("?", "!", "…", "。", "？") or (
        said.endswith(".") and not COMPANY.search(said) and len(words[-1]) > 2
    )
    return len(words) > 3 or ends or bool(UNSPACED.search(said))


def are_said(values: list[Any]) -> bool:
    return share(values, looks_said) >= 0.5


def are_short(values: list[Any]) -> bool:
    """As ids are: no sentences."""
    return all(
        len(said := as_text(value)) <= LONG_NAME and "\n" not in said and len(said.split()) <= 4
        for value in values
    )


def are_times(values: list[Any]) -> bool:
    return share(values, lambda value: when(value, "day") or when(value, "month")) >= MOST


def are_numbers(values: list[Any]) -> bool:
    return share(values, lambda value: amount(value) is not None) >= 0.5


def are_whole_numbers(values: list[Any]) -> bool:
    return (
        share(values, lambda value: (found := number(value)) is not None and found.is_integer())
        >= MOST
    )


def are_speakers(values: list[Any]) -> bool:
    """Almost all are known speakers, and both sides speak."""
    said = Counter(text(value).strip().lower() for value in values)
    roles = {name: role_of(name, {}) for name in said}
    known = sum(count for name, count in said.items() if roles[name])
    return (
        len(said) <= MANY_SPEAKERS
        and known >= 0.8 * len(values)
        and {"user", "assistant"} <= set(roles.values())
    )


def runs(values: list[Any]) -> list[int]:
    """Where a value begins that differs from the one before."""
    return [
        at for at, value in enumerate(values) if not at or as_text(value) != as_text(values[at - 1])
    ]


def restarts(values: list[Any]) -> list[int]:
    """Where the numbers 1, 2, 3 … (or 0, 1, 2 …) begin again; none if they do not, or are no such
    numbers.
    """
    found = [number(value) for value in values]
    if len(found) < ENOUGH or None in found or found[0] not in (0, 1):
        return []
    begins = [at for at, one in enumerate(found) if not at or one == found[0]]
    counts_on = sum(1 for before, after in pairwise(found) if after in (before + 1, found[0]))  # type: ignore[operator]
    return (
        begins if 1 < len(begins) <= len(found) / 2 and counts_on >= MOST * (len(found) - 1) else []
    )


def same_runs(values: list[Any], begins: list[int]) -> bool:
    """Whether the values change where these runs begin, and nowhere else, but for a few; and none
    comes back later.
    """
    found = runs(values)
    once = len({as_text(values[at]) for at in found}) >= MOST * len(found)
    return once and len(set(found) & set(begins)) >= MOST * max(len(found), len(begins))


def are_merged(values: list[Any]) -> bool:
    """As cells that were merged in a spreadsheet: the first is filled, many below it are empty, and
    no value comes twice.
    """
    given = [as_text(value) for value in values if value not in (None, "")]
    return (
        len(values) >= ENOUGH
        and values[0] not in (None, "")
        and len(given) <= 0.6 * len(values)
        and len(set(given)) == len(given)
        and are_short(given)
    )


def filled_down(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.append(value if value not in (None, "") or not found else found[-1])
    return found


def talk_alternates(values: list[Any], roles: list[Any]) -> bool:
    """Whether most groups of rows with the same value have several rows, and more than one side
    speaks in most of these.
    """
    groups: dict[str, list[str | None]] = {}
    for value, role in zip(values, roles, strict=True):
        groups.setdefault(as_text(value), []).append(role_of(role, {}))
    several = [group for group in groups.values() if len(group) > 1]
    return 2 * len(several) >= len(groups) and 2 * sum(
        len(set(group)) > 1 for group in several
    ) > len(several)


def moves_on(values: list[Any], groups: list[Any]) -> bool:
    """Whether each row of a group says something else than the one before: subjects and summaries
    say the same in all.
    """
    pairs = [
        (values[at - 1], values[at]) for at in range(1, len(values)) if groups[at] == groups[at - 1]
    ]
    return bool(pairs) and sum(before != after for before, after in pairs) >= MOST * len(pairs)


def in_time_order(values: list[Any], groups: list[Any]) -> bool:
    """Times of day that never go back within a group."""
    if (
        len(values) < ENOUGH
        or share(values, lambda value: isinstance(value, str) and ":" in value) < MOST
        or not are_times(values)
    ):
        return False
    read = {as_text(value): when(value, "day") or when(value, "month") or "" for value in values}
    last: dict[str, str] = {}
    back = 0
    for value, group in zip(values, groups, strict=True):
        at, key = read[as_text(value)], as_text(group)
        back += bool(at and at < last.get(key, ""))
        last[key] = at or last.get(key, "")
    return len(set(read.values())) > 1 and back <= (1 - MOST) * len(values)


def is_survey(questions: list[Any], answers: list[Any]) -> bool:
    """The same questions again and again, answered by a number or by few different short answers:
    nobody talks here.
    """
    asked, answered = (
        [as_text(one).strip() for one in questions],
        [as_text(one).strip() for one in answers],
    )
    if len(asked) < 2 * ENOUGH or len(set(asked)) * 2 > len(asked):
        return False
    short = share(
        answered,
        lambda said: (
            number(said) is not None or (len(said.split()) <= 3 and said[-1:] not in ".?!…")
        ),
    )
    return short >= MOST and len(set(answered)) * 2 <= len(answered)
