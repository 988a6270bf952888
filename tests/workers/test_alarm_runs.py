"""The alarms on recorded real runs of all methods (`bench.alarm_runs`): none that is ill goes
unnoticed, and of those that are sound at most one in forty is ended.
"""

from __future__ import annotations

import pytest

from bench.alarm_attack import TRACES, common, noticed
from bench.alarm_runs import load, replay


def test_no_ill_run_goes_unnoticed() -> None:
    ill = [trace for trace in load() if trace["ill"]]
    assert len(ill) >= 20
    assert [trace["name"] for trace in ill if not replay(trace)[0]] == []


@pytest.mark.proof
def test_runs_of_an_attack() -> None:
    """The one that is unnoticed was recorded before `data/uses` was measured."""
    traces = load(TRACES)
    usual, ill = common(traces), [trace for trace in traces if trace["ill"]]
    assert len(ill) >= 60
    unnoticed = [trace["name"] for trace in ill if not noticed(trace, usual)]
    assert unnoticed == ["ill dpo: one pair"]


@pytest.mark.proof
def test_hardly_a_sound_run_is_ended() -> None:
    sound = [trace for trace in [*load(), *load(TRACES)] if not trace["ill"]]
    ended = [
        (trace["name"], replay(trace))
        for trace in sound
        if replay(trace)[0] in ("pause", "stop", "fails")
    ]
    assert len(sound) >= 20 and len(ended) <= len(sound) / 40, ended
