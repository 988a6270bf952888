"""What a person should weigh before confirming an episode, because the failed run itself speaks
against what is expected: a record that it looked up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from apps.evals.effects import ToolEffects
from apps.failures.rules.expected import ExpectedCall
from apps.failures.rules.reading import Run

MOST_OBJECTS = 2_000  # of one reply
MOST_WARNINGS = 5
SHOWN = 80  # characters of a value
CONTRADICTED = (
    "Expected is {name} “{expected}”, which nobody says in this run; {tool} returned “{recorded}”"
    " for {whom}."
)


def warnings_of(run: Run, effects: ToolEffects, changes: Sequence[ExpectedCall]) -> list[str]:
    """Sentences; none if the run does not speak against these changes."""
    return list(dict.fromkeys(_contradictions(run, effects, changes)))[:MOST_WARNINGS]


def _contradictions(
    run: Run, effects: ToolEffects, changes: Sequence[ExpectedCall]
) -> Iterator[str]:
    """Facts that occur nowhere in the run, where a look-up returned other ones for the same thing:
    the same in all other fields that record and expected object share.
    """
    known = "\n".join(
        chain((text for _, text in run.users), (call.reply or "" for call in run.calls))
    ).casefold()
    records = [
        (call.tool, item)
        for call in run.calls
        if call.worked and effects.is_lookup(call.tool)
        for item in _objects(run.record(call))
    ]
    for wanted in (item for change in changes for item in _objects(change.args)):
        for name, value in wanted.items():
            if not _is_fact(value) or str(value).casefold() in known:
                continue
            same = [(tool, item) for tool, item in records if _is_of_same(wanted, item, name)]
            if same:
                tool, item = same[0]
                yield CONTRADICTED.format(
                    name=name,
                    expected=str(value)[:SHOWN],
                    tool=tool,
                    recorded=str(item[name])[:SHOWN],
                    whom=_named(wanted, item, name),
                )


def _objects(value: Any) -> list[dict[str, Any]]:
    """All objects in a JSON value; a loop, so that no depth is too much for it."""
    found: list[dict[str, Any]] = []
    left = [value]
    while left and len(found) < MOST_OBJECTS:
        item = left.pop()
        if isinstance(item, dict):
            found.append(item)
            left += reversed(item.values())
        elif isinstance(item, list):
            left += reversed(item)
    return found


def _is_fact(value: Any) -> bool:
    """A date, a number of something, an identifier: not a choice and not prose."""
    return isinstance(value, str) and any(map(str.isdigit, value)) and len(value.split()) <= 2


def _is_of_same(wanted: Mapping[str, Any], record: Mapping[str, Any], name: str) -> bool:
    """Whether a record is about the same thing, and has this field. One shared field must be a
    fact, or two be texts: many things have the same colour.
    """
    if not _is_fact(record.get(name)):
        return False
    shared = [other for other in _scalars(wanted) & _scalars(record) if other != name]
    if any(_folded(wanted[other]) != _folded(record[other]) for other in shared):
        return False
    texts = [other for other in shared if isinstance(wanted[other], str)]
    return len(texts) > 1 or any(_is_fact(wanted[other]) for other in texts)


def _scalars(item: Mapping[str, Any]) -> set[str]:
    return {name for name, value in item.items() if isinstance(value, str | int | float)}


def _folded(value: Any) -> str:
    return str(value).strip().casefold()


def _named(wanted: Mapping[str, Any], record: Mapping[str, Any], name: str) -> str:
    shared = (other for other in wanted if other in record and other != name)
    return " ".join(str(record[other])[:SHOWN] for other in shared)[: 2 * SHOWN]
