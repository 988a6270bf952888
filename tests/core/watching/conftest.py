"""Conditions are checked in the test's own thread and transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings

from apps.core.watching import conditions, incidents, probes
from apps.core.watching.conditions import Lane
from flywheel import alive


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(lane: Lane, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(conditions, "ask", ask)
    monkeypatch.setattr(incidents, "ask", ask)
    for last in (probes.ready, probes.everything):
        monkeypatch.setattr(last, "_memory", incidents.Memory())
    monkeypatch.setattr(probes, "FRESH_S", 0.0)


@pytest.fixture(autouse=True)
def _all_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = (*settings.QUEUES, alive.BEAT)
    monkeypatch.setattr(alive, "EXPIRES_S", dict.fromkeys(names, 3600))
    broker = alive.client()  # a test may take it away
    for name in names:
        alive.say(name)
    yield
    broker.delete(*(f"flywheel:alive:{name}" for name in names))
