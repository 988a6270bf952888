"""The lines a child process writes (docs/jobs.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.workers.conftest import Recorder
from workers.lib.events import Emitter


def test_events_are_numbered_from_one_and_dated(events: Recorder) -> None:
    events.progress(0, 3, "loading")
    events.metric(1, {"train/loss": 0.5})
    events.checkpoint(1, "/a/b")
    events.result(adapter="/a", metrics={"steps": 1})
    rows = events.rows()
    assert [(row["seq"], row["type"]) for row in rows] == [
        (1, "progress"),
        (2, "metric"),
        (3, "checkpoint"),
        (4, "result"),
    ]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(rows[0]["at"])).total_seconds()) < 60


def test_what_json_cannot_say_becomes_null(events: Recorder) -> None:
    events.metric(1, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    events.sample(messages=[{"n": float("-inf")}], pair=(1, float("nan")))
    metric, sample = events.rows()
    assert metric["values"] == {"a": None, "b": None, "c": 1.0}
    assert sample["messages"] == [{"n": None}] and sample["pair"] == [1, None]


def test_numbers_of_numpy_are_numbers(events: Recorder) -> None:
    events.metric(1, {"a": np.float64(0.5), "b": np.float64("nan"), "c": {"d": np.float64("inf")}})
    assert events.rows()[0]["values"] == {"a": 0.5, "b": None, "c": {"d": None}}


@pytest.mark.parametrize("text", ["two\nlines", "é ü 漢", "\x00\x1b", "\u2028", "\ud800"])
def test_every_event_is_one_line_whatever_the_model_wrote(events: Recorder, text: str) -> None:
    events.sample(output=text)
    assert events.path.read_bytes().count(b"\n") == 1
    assert events.rows()[0]["output"] == text


def test_it_writes_to_the_descriptor_it_was_given_not_to_standard_output() -> None:
    read, write = os.pipe()
    program = (
        "import workers.lib.events as e; print('noise'); e.Emitter().log('info', 'x' * 200_000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"FLYWHEEL_EVENTS_FD": str(write)},
        pass_fds=[write],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    with os.fdopen(read) as pipe:  # more than a pipe holds: the writer waits, nothing is lost
        event = json.loads(pipe.read())
    assert process.communicate()[0] == "noise\n" and process.returncode == 0
    assert (event["type"], len(event["message"])) == ("log", 200_000)


def test_without_a_descriptor_it_writes_to_standard_output() -> None:
    program = "import workers.lib.events as e; e.Emitter().error('gone')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) | {"at": "", "peak": {}} == {
        "type": "error",
        "seq": 1,
        "at": "",
        "message": "gone",
        "traceback": "",
        "cause": "",
        "peak": {},
    }


def test_a_reader_that_is_gone_is_an_error_not_a_loop() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with pytest.raises(BrokenPipeError):
            Emitter(write).log("info", "x")
    finally:
        os.close(write)
