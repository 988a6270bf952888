"""Numbers of the whole installation for /metrics and the operator's page. Each is declared once,
next to what it counts, and computed every `every_s` seconds by the watcher; whoever shows it reads
what was computed last, from the database's cache.

    @measured("flywheel_queue_length", "Messages in a queue", ["queue"])
    def lengths() -> Values: return {("train",): 3}
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache
from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from prometheus_client.core import GaugeMetricFamily

from apps.core.timeouts import TooLong, patience
from flywheel.outages import AWAY

log = logging.getLogger(__name__)
Values = Mapping[tuple[str, ...], float]
KEY = "flywheel:measures"
KEPT_S = 3600
QUERY_MS = 5_000
CHEAP_S, DEAR_S = 10.0, 300.0


@dataclass(frozen=True)
class Measure:
    name: str
    help: str
    labels: tuple[str, ...]
    compute: Callable[[], Values]
    every_s: float


@dataclass(frozen=True)
class Measured:
    """`at`: time.time() when it was computed."""

    at: float
    values: dict[tuple[str, ...], float]


_declared: dict[str, Measure] = {}


def measured(
    name: str, help: str, labels: Sequence[str] = (), *, every_s: float = CHEAP_S
) -> Callable[[Any], Any]:
    def declare(compute: Callable[[], Values]) -> Callable[[], Values]:
        assert name not in _declared, f"{name} is declared twice"
        _declared[name] = Measure(name, help, tuple(labels), compute, every_s)
        return compute

    return declare


def declared() -> list[Measure]:
    return list(_declared.values())


class Computed:
    """What was computed last."""

    def __init__(self) -> None:
        self.found: dict[str, Measured] = {}

    def compute_due(self) -> None:
        """Computes what is due and stores it. One that fails keeps its last values, whose age is
        exported, too.
        """
        now = time.time()
        for one in declared():
            before = self.found.get(one.name)
            if before is None or now - before.at >= one.every_s:
                try:
                    with patience(QUERY_MS):
                        self.found[one.name] = Measured(now, dict(one.compute()))
                except (TooLong, DatabaseError, InterfaceError, *AWAY) as error:
                    log.warning("%s could not be measured: %s", one.name, error)
        stored = {name: (one.at, [*one.values.items()]) for name, one in self.found.items()}
        cache.set(KEY, stored, KEPT_S)


def last() -> dict[str, Measured]:
    """{} while the database does not answer."""
    try:
        if not connection.in_atomic_block:
            close_old_connections()
        stored = cache.get(KEY) or {}
    except (DatabaseError, InterfaceError):
        return {}
    return {name: Measured(at, dict(values)) for name, (at, values) in stored.items()}


def families(found: Mapping[str, Measured]) -> Iterator[GaugeMetricFamily]:
    for one in declared():
        family = GaugeMetricFamily(one.name, one.help, labels=list(one.labels))
        for labels, value in found[one.name].values.items() if one.name in found else ():
            family.add_metric([str(label) for label in labels], value)
        yield family
