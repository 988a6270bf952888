"""Conditions are checked in the test's own thread and transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apps.core.watching import conditions, incidents, probes
from apps.core.watching.conditions import Lane
from flywheel import alive
from tests.living import NAMES, all_alive


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
    monkeypatch.setattr(alive, "EXPIRES_S", dict.fromkeys(NAMES, 3600))
    with all_alive(monkeypatch):
        yield
