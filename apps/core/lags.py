"""How long what has arrived waits for what is done with it in the background. Apps name what waits
(`lag`), /healthz shows it, and who does the work gives way to receivers only while it is short: by
its niceness, or until they are less busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.utils import timezone

from flywheel import priority
from flywheel.receiving import processors, receivers

SPARE = 0.5  # processors with nothing to do: background work, which is nicer, takes no other then
LATE_S = 60.0  # from then on background work takes as much of the machine as receiving
Since = Callable[[], datetime | None]


class Lag(NamedTuple):
    since: Since
    is_digest: bool


_lags: dict[str, Lag] = {}


def lag(name: str, *, keep_s: float = 0.0, is_digest: bool = True) -> Callable[[Since], Since]:
    """Names a function that says since when the oldest waits; None where nothing does. One that
    takes long is asked again only after `keep_s`. `is_digest`: without it, runs are not in charts,
    search or failures yet; what waits for another server, or a budget, is no digest.
    """

    def declare(since: Since) -> Since:
        _lags[name] = Lag(_kept(since, keep_s) if keep_s else since, is_digest)
        return since

    return declare


def _kept(since: Since, keep_s: float) -> Since:
    until, known = 0.0, None

    def asked_seldom() -> datetime | None:
        nonlocal until, known
        if time.monotonic() >= until:
            known, until = since(), time.monotonic() + keep_s
        return known

    return asked_seldom


def seconds() -> dict[str, float]:
    """By name, 0 where nothing waits."""
    return {name: _seconds(one) for name, one in _lags.items()}


def digest_seconds() -> dict[str, float]:
    return {name: _seconds(one) for name, one in _lags.items() if one.is_digest}


def is_late(*names: str) -> bool:
    """Whether what waits under one of these names is late."""
    return any(_seconds(_lags[name]) > LATE_S for name in names)


def give_way(*names: str) -> None:
    """For a worker, before each piece of work: gives way to receivers, unless what waits under
    these names is late.
    """
    if priority.gives_way():
        priority.take(is_late(*names), connection)


def rests(*names: str) -> bool:
    """Whether work that nobody waits for is put off: receivers are busy, they may need every
    processor, and nothing of these names is late.
    """
    is_tight = receivers.are_busy() and processors.idle() < SPARE
    return priority.gives_way() and is_tight and not is_late(*names)


def _seconds(one: Lag) -> float:
    began = one.since()
    return round(max(0.0, (timezone.now() - began).total_seconds()), 1) if began else 0.0
