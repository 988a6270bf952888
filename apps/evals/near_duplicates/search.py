"""Which training rows contain something of a hold-out: a held-out request itself, its calls, or
nearly the same task. Pure.

There are three independent reasons:
- SAYS: a held-out request is somewhere in the row, in any role, wrapping or spelling (`contained`);
- CALLS: the row teaches exactly the expected calls of a held-out task. Calls that say little
(`get_weather()`, `factorial(5)`) also need similar text;
- ALIKE: a request of the row is nearly the same, possibly with its parts in another order
  (`compare`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.alignment import pattern_of
from apps.evals.near_duplicates.calls import (
    Call,
    calls_of,
    demonstrated,
    document,
    keys_of,
    same_calls,
    tools_of,
    values_in,
    weight_of,
    words_of,
)
from apps.evals.near_duplicates.contained import Requests, Searched
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.minhash import bands_of, minhashes
from apps.evals.near_duplicates.text import FILLERS, words
from apps.evals.near_duplicates.training import Unit, names_of, passages, texts_of
from workers.lib.messages import is_prompt

AT_ONCE = 500  # rows
LIKELIEST = 10  # held-out tasks that are compared exactly with one request
# held-out tasks with one band: it says what a template says; those that differ share other bands
CROWDED = 200
TELLING = 3  # weight of different arguments from which on calls alone say what the task is
AGREEING = 0.3  # share of the words of the shorter request, if calls say less
LEAST_TURN = 8  # meaningful words of a single turn that is searched in addition to its conversation


class Why(StrEnum):
    SAYS = "says"
    CALLS = "calls"
    ALIKE = "alike"


@dataclass(frozen=True)
class Held:
    """A held-out task, prepared for searching."""

    messages: Sequence[dict]
    expected: dict | None = None
    demonstration: str = ""

    @cached_property
    def calls(self) -> dict | None:
        return self.expected or demonstrated(self.demonstration)

    @cached_property
    def request(self) -> str:
        """What the user says; if no user speaks, everything but the instructions."""
        asked = [message for message in self.messages if message.get("role") == "user"]
        asked = asked or [message for message in self.messages if not is_prompt(message)]
        return "\n".join(words_of(message) for message in asked)

    @cached_property
    def wish(self) -> set[str]:
        return _wish(self.request)

    @property
    def requests(self) -> Iterator[str]:
        """The request, also without its markup; of a longer conversation also the first and the
        last turn that could be a request on its own."""
        yield from dict.fromkeys((self.request, plain(self.request)))
        turns = [words_of(message) for message in self.messages if message.get("role") == "user"]
        if len(turns) > 1:
            yield from (
                turn
                for turn in dict.fromkeys((turns[0], turns[-1]))
                if len(_wish(turn)) >= LEAST_TURN
            )


@dataclass(frozen=True)
class Row:
    """A training row: the texts in it, and the requests that it teaches to answer. Raises
    ValueError if it has no text.
    """

    passages: Sequence[tuple[str, str]]
    units: Sequence[Unit]
    names: Sequence[tuple[str, str]] = ()  # of properties and arguments

    @classmethod
    def of(cls, row: dict) -> Row:
        return cls(passages(row), list(texts_of(row)), names_of(row))

    @cached_property
    def calls(self) -> list[tuple[dict, str]]:
        """(calls, the request before them) that the row teaches: those that it rewards, and those
        that it demonstrates.
        """
        found = (
            (calls, unit.text)
            for unit in self.units
            for calls in (unit.expected, demonstrated(unit.demonstration))
        )
        return [(calls, text) for calls, text in found if calls]


@dataclass(frozen=True)
class Match:
    """A row's key, the position of the held-out task, why, and how similar they are (1 if one
    contains the other).
    """

    key: Any
    held: int
    why: Why
    similarity: float = 1.0


class HeldOut:
    """An index of held-out tasks for searching training rows: built in about 0.3 ms a task, then
    kept.
    """

    def __init__(self, tasks: Sequence[Held]) -> None:
        self.tasks = tasks
        searched = [(at, request) for at, task in enumerate(tasks) for request in task.requests]
        self._task_of = [at for at, _ in searched]
        self._requests = Requests(
            [pattern_of(request, values_in(tasks[at].calls)) for at, request in searched]
        )
        self._calls = [calls_of(task.calls) for task in tasks]
        self._by_argument: dict[Hashable, set[int]] = defaultdict(set)
        for at, calls in enumerate(self._calls):
            for key in keys_of(calls):
                self._by_argument[key].add(at)
        self.documents = [
            document(task.messages, task.expected, task.demonstration) for task in tasks
        ]
        self._minhashes = minhashes([one.features for one in self.documents])
        self._bands: dict[int, list[int]] = defaultdict(list)
        for at, bands in enumerate(bands_of(self._minhashes).tolist()):
            if len(self.documents[at].features):
                for band in bands:
                    self._bands[band].append(at)

    def search(self, rows: Iterable[tuple[Hashable, Row]]) -> Iterator[Match]:
        """The first reason for each row that contains something of a held-out task; rows are
        processed AT_ONCE at a time.
        """
        given = iter(rows)
        while self.tasks and (some := list(islice(given, AT_ONCE))):
            alike = self._alike([row for _, row in some])
            for number, (key, row) in enumerate(some):
                match = next(self._matches(key, row), None)
                if match is None and number in alike:
                    match = Match(key, alike[number][0], Why.ALIKE, alike[number][1])
                if match:
                    yield match

    def every(self, rows: Iterable[tuple[Hashable, Row]]) -> Iterator[Match]:
        """All held-out tasks that rows contain or whose calls they teach; without those that are
        only similar (`compare.pairs`).
        """
        for key, row in rows:
            yield from self._matches(key, row)

    def _matches(self, key: Hashable, row: Row) -> Iterator[Match]:
        taught = frozenset(
            word for calls, _ in row.calls for value in values_in(calls) for word in words(value)
        )
        for at in self._requests.within(Searched(row.passages, taught, row.names)):
            yield Match(key, self._task_of[at], Why.SAYS)
        for calls, text in row.calls:
            for at, same in self._same_calls(calls_of(calls)):
                if weight_of(same) >= TELLING or _agree(_wish(text), self.tasks[at].wish):
                    yield Match(key, at, Why.CALLS)

    def _same_calls(self, calls: Sequence[Call]) -> Iterator[tuple[int, tuple]]:
        """(held-out task, the calls) that both accept. Looked up by the argument whose values are
        the rarest.
        """
        if not calls:
            return
        arguments = [keys for call in calls for keys in call.keys.values()]
        found = min(
            (
                [self._by_argument.get(key, set()) for key in keys]
                for keys in (*arguments, tools_of(calls))
            ),
            key=lambda sets: sum(map(len, sets)),
        )
        for at in sorted(set().union(*found)):
            if same := same_calls(calls, self._calls[at]):
                yield at, same

    def _alike(self, rows: Sequence[Row]) -> dict[int, tuple[int, float]]:
        """{number of a row: (the nearest held-out task, similarity)} of rows with a
        near-duplicate.
        """
        units = [
            (number, document(unit.messages, unit.expected, unit.demonstration))
            for number, row in enumerate(rows)
            for unit in row.units
        ]
        hashes = minhashes([one.features for _, one in units])
        best: dict[int, tuple[int, float]] = {}
        for (number, ours), mine, bands in zip(
            units, hashes, bands_of(hashes).tolist(), strict=True
        ):
            for at in self._likeliest(mine, bands) if len(ours.features) else ():
                score = compare.similarity(ours, self.documents[at])
                if score >= compare.THRESHOLD and score > best.get(number, (0, 0.0))[1]:
                    best[number] = at, score
        return best

    def _likeliest(self, mine: np.ndarray, bands: list[int]) -> list[int]:
        shared = (self._bands[band] for band in bands if band in self._bands)
        found = sorted({at for tasks in shared if len(tasks) <= CROWDED for at in tasks})
        if len(found) <= LIKELIEST:
            return found
        estimates = (self._minhashes[found] == mine).mean(axis=1)
        return [found[at] for at in np.argsort(-estimates, kind="stable")[:LIKELIEST].tolist()]


def _wish(text: str) -> set[str]:
    return set(words(text)) - FILLERS


def _agree(ours: set[str], theirs: set[str]) -> bool:
    least = min(len(ours), len(theirs))
    return not least or len(ours & theirs) >= AGREEING * least
