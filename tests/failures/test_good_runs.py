"""Rules blame no good run in which a careless one sees a failure, in any protocol and language."""

from __future__ import annotations

import pytest

from apps.failures.classify import classify
from bench.good_runs import good_runs

RUNS: dict[str, list[dict]] = {}
for name, run in good_runs():
    RUNS.setdefault(name.rpartition(", ")[0], []).append(run)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found(name: str) -> None:
    assert [classify(run) for run in RUNS[name]] == [None] * len(RUNS[name])
