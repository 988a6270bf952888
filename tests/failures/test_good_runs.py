"""Rules blame no good run in which a careless one sees a failure, in any protocol and language."""

from __future__ import annotations

import pytest

from apps.failures.classify import classify
from bench.good_runs import LOOPS, PROTOCOLS, good_runs, projects

RUNS: dict[str, list[dict]] = {}
for name, run in good_runs():
    RUNS.setdefault(name.rpartition(", ")[0], []).append(run)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found(name: str) -> None:
    assert [classify(run) for run in RUNS[name]] == [None] * len(RUNS[name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_replies_are_known_loops_are_found_and_nothing_else(protocol: str) -> None:
    those = [it for it in projects(["ja"]) if it.name.split(", ")[-2] == protocol]
    for project in those:
        assert not any(project.blamed()), project.name
    found = [rule for project in those for rule in project.loops_found().values()]
    assert found.count("looped") >= 0.95 * len(LOOPS) * len(those)
