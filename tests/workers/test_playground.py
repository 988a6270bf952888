"""The program of a playground with a real (tiny) model in this process: what it tells while answers
are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.workers.conftest import Recorder, typed
from workers import playground
from workers.lib.program import StopFlag
from workers.ml import transformers_engine


def test_answers_of_this_process_are_told_while_they_are_written(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version's, before its answers; what is told is how the answer begins."""
    for module in (transformers_engine, playground):
        monkeypatch.setattr(module, "SHOWN_EVERY_S", 0.0)
    given: dict[str, Any] = make_spec()
    side = {name: given[name] for name in ("model", "engine", "environment")}
    spec = {name: value for name, value in given.items() if name not in side}
    playground.main(
        typed(spec | {"sides": [side, side], "samples_per_task": 2}, "playground"),
        events,
        StopFlag(),
    )
    rows = events.rows()
    answers = {
        (row["side"], row["task_id"], row["index"]): row for row in rows if row["type"] == "sample"
    }
    partial = [row for row in rows if row["type"] == "partial"]
    assert len(answers) == 12 and {
        (row["side"], row["task_id"], row["index"]) for row in partial
    } == set(answers)
    for row in partial:
        whole = answers[row["side"], row["task_id"], row["index"]]
        assert row["seq"] < whole["seq"] and whole["output"].strip().startswith(
            row["text"].strip().rstrip("\ufffd")
        )
    assert rows[-1]["type"] == "result"
