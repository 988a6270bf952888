"""Compares the end state of a multi-step run with the expected one. Pure.

A state is JSON: tables (lists of objects) and objects, nested. The rows of a table have no order
unless `ordered`; other lists have one, unless their field is `unordered`. The expected state is the
rollout's, or else the task's `expected.state`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from workers.lib.verifiers.base import Guarded, Options, Unscorable, options
from workers.lib.verifiers.types import Clients, Rollout, Score

MOST_DETAILS = 20


class StateOptions(Options):
    tables: list[str] | None = None
    ignore: list[str] = []
    keys: dict[str, str] = {}
    case_insensitive: bool | list[str] = False
    ordered: bool = False
    unordered: list[str] = []
    partial: bool = False


class State(Guarded):
    """1 if the states are equal, else 0; with `partial` the share of equal tables.

    `tables`: compare only these; `ignore`: names of fields to ignore; `keys` ({table: field}): how
    rows are identified in the reported differences; `case_insensitive`: true, or the fields whose
    texts are compared ignoring case.
    """

    only_calls = True

    def __init__(self, chosen: StateOptions) -> None:
        self.tables, self.ignore, self.keys = chosen.tables, frozenset(chosen.ignore), chosen.keys
        self.ordered, self.unordered, self.partial = (
            chosen.ordered,
            frozenset(chosen.unordered),
            chosen.partial,
        )
        self.caseless = chosen.case_insensitive

    def judge(self, rollout: Rollout) -> Score:
        wanted = (
            rollout.expected_state
            if rollout.expected_state is not None
            else rollout.expected.get("state")
        )
        if not isinstance(wanted, dict) or not isinstance(rollout.state, dict):
            missing = "end" if isinstance(wanted, dict) else "expected"
            raise Unscorable(f"There is no {missing} state to compare.")
        names = (
            self.tables
            if self.tables is not None
            else sorted(rollout.state.keys() | wanted.keys(), key=str)
        )
        names = [name for name in names if name not in self.ignore]
        found = {str(name): self.same(rollout.state.get(name), wanted.get(name)) for name in names}
        success, part = all(found.values()), sum(found.values()) / max(1, len(found))
        wrong = [name for name in names if not found[str(name)]]
        unsafe = any(call.unsafe for call in rollout.calls)
        return Score(
            reward=part if self.partial else float(success),
            components={name: float(value) for name, value in found.items()},
            success=success,
            unsafe=unsafe,
            details=list(self.differences(rollout.state, wanted, wrong)),
        )

    def same(self, given: Any, wanted: Any) -> bool:
        return self.canonical(given) == self.canonical(wanted)

    def canonical(self, value: Any, name: str = "") -> Any:
        """A value that is equal for equivalent values."""
        if isinstance(value, dict):
            kept = ((str(key), item) for key, item in value.items() if key not in self.ignore)
            return json.dumps(sorted((key, self.canonical(item, key)) for key, item in kept))
        if isinstance(value, list | tuple):
            items = [self.canonical(item, name) for item in value]
            in_order = (
                self.ordered
                if all(isinstance(item, dict) for item in value)
                else name not in self.unordered
            )
            return json.dumps(["list", *(items if in_order else sorted(items))])
        if isinstance(value, str):
            return json.dumps(value.casefold() if self.has_no_case(name) else value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return json.dumps(value, default=repr)

    def has_no_case(self, name: str) -> bool:
        return self.caseless is True or (isinstance(self.caseless, list) and name in self.caseless)

    # Differences

    def differences(self, state: dict, wanted: dict, names: list) -> Iterator[str]:
        texts = (
            text
            for name in names
            for text in self.of_table(str(name), state.get(name), wanted.get(name))
        )
        for at, text in enumerate(texts):
            if at == MOST_DETAILS:
                yield "… and more"
                return
            yield text

    def of_table(self, name: str, given: Any, wanted: Any) -> Iterator[str]:
        if isinstance(given, list) and isinstance(wanted, list):
            yield from self.of_rows(name, given, wanted)
        elif isinstance(given, dict) and isinstance(wanted, dict):
            for key in sorted(given.keys() | wanted.keys(), key=str):
                if key not in self.ignore and self.canonical(given.get(key), key) != self.canonical(
                    wanted.get(key), key
                ):
                    yield from self.of_table(f"{name}.{key}", given.get(key), wanted.get(key))
        else:
            yield f"{name} is {_short(given)}, should be {_short(wanted)}"

    def of_rows(self, name: str, given: list, wanted: list) -> Iterator[str]:
        mine, theirs = self.unlike(given, wanted), self.unlike(wanted, given)
        if not mine and not theirs:
            yield f"{name}: the rows are the same, in another order"
        key = self.keys.get(name, "id")
        by_key = {repr(row[key]): row for row in mine if isinstance(row, dict) and key in row}
        paired: set[int] = set()
        for row in theirs:
            other = by_key.get(repr(row.get(key))) if isinstance(row, dict) and key in row else None
            if other is None:
                yield f"{name}: missing row {_short(row)}"
            else:
                paired.add(id(other))
                yield from self.of_table(f"{name}[{row[key]!r}]"[:120], other, row)
        yield from (f"{name}: extra row {_short(row)}" for row in mine if id(row) not in paired)

    def unlike(self, rows: list, others: list) -> list:
        """The rows without an equal row among the others, each of which can be matched once."""
        left = Counter(self.canonical(row) for row in others)
        found = []
        for row in rows:
            key = self.canonical(row)
            if left[key] > 0:
                left[key] -= 1
            else:
                found.append(row)
        return found


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 160 else text[:159] + "…"


def from_spec(spec: dict, clients: Clients, path: str) -> State:
    return State(options(spec, path, StateOptions))
