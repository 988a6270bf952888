"""What can be wrong with an installation. Each condition is declared once, next to what it is
about: /readyz, /metrics, the operator's page, `manage.py doctor` and alerts are derived from it.

    @condition("disk_full", "A disk is nearly full", todo="Free some space on it.", part="disk")
    def full_disks() -> Iterator[Finding]: ...

A check is cheap, and asked every few seconds. It has `LIMIT_S`; what hangs holds up only the checks
of its own lane, which are unknown then. The first condition of a lane says whether what the lane
needs (the database, the broker) answers at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import DatabaseError, close_old_connections, connection

from apps.core.timeouts import TooLong, patience
from flywheel.outages import AWAY

log = logging.getLogger(__name__)
LIMIT_S = 1.0
QUERY_MS = 900
FAILED = "It could not be checked."
NO_ANSWER = f"It did not answer within {LIMIT_S:g} s."


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


class Lane(StrEnum):
    """What a check needs."""

    DATABASE = "database"
    BROKER = "broker"
    MACHINE = "machine"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `about` tells it from others of its condition (a queue, a server),
    `since` where that is known, `page` the path where to read more.
    """

    says: str
    about: str = ""
    since: datetime | None = None
    page: str = ""


@dataclass(frozen=True)
class Button:
    """`press(about, by)` mends a finding and returns what it did, as a sentence."""

    label: str
    press: Callable[[str, Any], str]


@dataclass(frozen=True)
class Condition:
    """`part`: of /readyz, which says 503 while it is found; "" for what keeps nobody from working.
    `wait_s`: how long it lasts before operators are alerted. `for_operators`: what is found names
    projects or quotes an error (which may have addresses and names of accounts), so probes, which
    anybody may ask, say the title only. `explains(error)`: the finding where this condition is why
    the first check of its lane failed (None: it did not answer in time); "" where it is not.
    """

    name: str
    title: str
    todo: str
    check: Callable[[], Iterable[Finding]]
    lane: Lane = Lane.DATABASE
    part: str = ""
    severity: Severity = Severity.CRITICAL
    wait_s: float = 0.0
    for_operators: bool = False
    button: Button | None = None
    explains: Callable[[Exception | None], str] | None = None

    @property
    def docs(self) -> str:
        return f"docs/operations.md#{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Checked:
    """`unknown`: why the condition could not be checked; `error`: what its check raised, which is
    for operators.
    """

    condition: Condition
    findings: list[Finding] = field(default_factory=list)
    unknown: str = ""
    error: Exception | None = None

    @property
    def why(self) -> str:
        """For operators."""
        if self.error is None:
            return self.unknown
        text = " ".join(str(self.error).split()) or type(self.error).__name__
        return f"{self.unknown} {text[:400]}"


_declared: dict[str, Condition] = {}


def condition(name: str, title: str, *, todo: str, **more: Any) -> Callable[[Any], Any]:
    """Declares the condition that the decorated check looks for."""

    def declare(check: Callable[[], Iterable[Finding]]) -> Callable[[], Iterable[Finding]]:
        assert name not in _declared, f"The condition {name} is declared twice"
        _declared[name] = Condition(name, title, todo, check, **more)
        return check

    return declare


def declared() -> list[Condition]:
    """Those of a lane together, in the order in which they were declared."""
    lanes = list(Lane)
    return sorted(_declared.values(), key=lambda one: lanes.index(one.lane))


def named(name: str) -> Condition | None:
    return _declared.get(name)


class Unknown(Exception):
    """Raised by a check that cannot say: the sentence is why."""


class NoAnswer(Exception):
    """A lane that hangs."""


class Thread:
    """Does one thing after another for others, who wait for a limited time only. One that hangs is
    asked nothing more until it is back.
    """

    def __init__(self, name: str) -> None:
        self._name, self._turn = name, threading.Lock()
        self._work: Callable[[], Any] | None = None
        self._given, self._done = threading.Event(), threading.Event()
        self._result: tuple[Any, Exception | None] = None, None
        self._is_busy = self._is_started = False

    def ask(self, work: Callable[[], Any], limit_s: float) -> Any:
        """What `work` returns or raises. Raises NoAnswer after `limit_s`."""
        with self._turn:
            if self._is_busy:
                if not self._done.is_set():
                    raise NoAnswer
                self._is_busy = False
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._done.clear()
            self._work, self._is_busy = work, True
            self._given.set()
            if not self._done.wait(limit_s):
                raise NoAnswer
            self._is_busy = False
            returned, error = self._result
        if error is not None:
            raise error
        return returned

    def _run(self) -> None:
        while True:
            self._given.wait()
            self._given.clear()
            assert self._work is not None
            try:
                self._result = self._work(), None
            except Exception as error:
                self._result = None, error
            self._done.set()


_threads = {lane: Thread(f"checks of the {lane}") for lane in Lane}


def _begin_again() -> None:
    """A forked process has no thread of its parent."""
    _threads.update({lane: Thread(f"checks of the {lane}") for lane in Lane})


os.register_at_fork(after_in_child=_begin_again)


def ask(lane: Lane, work: Callable[[], Any]) -> Any:
    """Does it in the lane's thread. Raises NoAnswer, or what `work` raises."""
    return _threads[lane].ask(work, LIMIT_S)


def check_all(conditions: Iterable[Condition] | None = None) -> list[Checked]:
    checked = list[Checked]()
    down: dict[Lane, str] = {}
    for one in declared() if conditions is None else conditions:
        if any(before.condition.name == one.name for before in checked):
            continue  # the explanation of its lane
        is_first = not any(before.condition.lane == one.lane for before in checked)
        if reason := down.get(one.lane):
            checked.append(Checked(one, unknown=reason))
            continue
        result = _check(one)
        if result.unknown and is_first and one.lane != Lane.MACHINE:
            checked += (results := _down(result))
            down[one.lane] = results[0].unknown or f"The {one.lane} does not answer."
            continue
        if result.unknown == NO_ANSWER:
            down[one.lane] = f"Another check of the {one.lane} did not answer."
        checked.append(result)
    return checked


def _down(first: Checked) -> list[Checked]:
    """Of a lane whose first check failed: that it does not answer; or the condition that explains
    why, in its part of /readyz.
    """
    lane, part = first.condition.lane, first.condition.part
    for one in _declared.values():
        if one.lane == lane and one.explains and (says := one.explains(first.error)):
            if one.name == first.condition.name:
                return [Checked(one, [Finding(says)])]
            return [
                Checked(first.condition, unknown=says),
                Checked(replace(one, part=part), [Finding(says)]),
            ]
    return [Checked(first.condition, [Finding(first.why)])]


def _check(one: Condition) -> Checked:
    try:
        return Checked(one, ask(one.lane, lambda: _findings(one)))
    except NoAnswer:
        return Checked(one, unknown=NO_ANSWER)
    except Unknown as why:
        return Checked(one, unknown=str(why))
    except Exception as error:  # a check that fails says nothing about the others
        if not isinstance(error, (*AWAY, DatabaseError, OSError)):
            log.exception("The condition %s cannot be checked", one.name)
        return Checked(one, unknown=FAILED, error=error)


def unknown(checked: Iterable[Checked]) -> dict[str, list[Condition]]:
    """{why: the conditions that could not be checked}, for operators"""
    reasons: dict[str, list[Condition]] = {}
    for one in checked:
        if one.unknown:
            reasons.setdefault(one.why, []).append(one.condition)
    return reasons


def keep_connection() -> None:
    """This thread's connection does not end with age: who has to say that none is left could not
    have a new one.
    """
    connection.ensure_connection()
    connection.close_at = None


def _findings(one: Condition) -> list[Finding]:
    if one.lane != Lane.DATABASE:
        return list(one.check())
    if not connection.in_atomic_block:
        close_old_connections()
        keep_connection()
    try:
        with patience(QUERY_MS):
            return list(one.check())
    except TooLong as error:
        raise NoAnswer from error
