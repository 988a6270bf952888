"""How a job's spec is read and how its program ends: every end has its status and its sentence."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.lib.events import Emitter
from workers.lib.spec import JobError, SpecError, StopFlag, check_spec, read_spec, run_main, sentence

DISK_FULL = "The disk is full. Free some space and start the job again; its last checkpoint is kept."


def evaluate_spec() -> dict:
    return {
        "model": {"base": "/m"},
        "engine": {"kind": "transformers"},
        "environment": {"kind": "builtin", "name": "workplace", "harness": {}, "verifier": {}},
        "tasks": [{"id": "1", "messages": [], "expected": {}}],
        "samples_per_task": 2,
    }


def training_spec(**fields: Any) -> dict:
    return evaluate_spec() | {"out_dir": "/o", "config": {"steps": 1, "learning_rate": 1, "batch_size": 1}} | fields


def without(spec: dict, path: str) -> dict:
    *parents, last = path.split(".")
    holder: Any = spec
    for part in parents:
        holder = holder[int(part) if isinstance(holder, list) else part]
    del holder[last]
    return spec


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("evaluate", evaluate_spec()),
        ("grpo", training_spec()),
        ("sft", training_spec(rows=[{"messages": [], "completion": ""}])),
    ],
)
def test_a_whole_spec_passes(kind: str, spec: dict) -> None:
    check_spec(spec, kind)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("evaluate", "model.base"),
        ("evaluate", "engine"),
        ("evaluate", "environment.harness"),
        ("evaluate", "tasks"),
        ("evaluate", "tasks.0.expected"),
        ("evaluate", "samples_per_task"),
        ("sft", "rows"),
        ("sft", "rows.0.completion"),
        ("sft", "config.batch_size"),
        ("grpo", "config.steps"),
        ("grpo", "out_dir"),
    ],
)
def test_a_missing_field_is_named(kind: str, path: str) -> None:
    spec = evaluate_spec() if kind == "evaluate" else training_spec(rows=[{"messages": [], "completion": ""}])
    with pytest.raises(SpecError, match=f"lacks “{path}”"):
        check_spec(without(spec, path), kind)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples_per_task": "8"}, "“samples_per_task” must be a whole number"),
        ({"samples_per_task": True}, "“samples_per_task” must be a whole number"),
        ({"samples_per_task": 0}, "“samples_per_task” must be at least 1"),
        ({"tasks": {}}, "“tasks” must be a list"),
        ({"tasks": []}, "“tasks” is empty"),
        ({"tasks": ["x"]}, "“tasks.0” must be an object"),
        ({"tasks": [{"id": 4, "messages": [], "expected": {}}]}, "“tasks.0.id” must be a text"),
        ({"model": "x"}, "lacks “model.base”"),
        ({"model": {"base": None}}, "“model.base” must be a text"),
    ],
)
def test_a_wrong_type_is_named(change: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        check_spec(evaluate_spec() | change, "evaluate")


@pytest.mark.parametrize(
    ("text", "says"), [("{", "is not JSON"), ("[]", "must be a JSON object"), (None, "No such file")]
)
def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "spec.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=says):
        read_spec(path, "evaluate")


def chained(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise RuntimeError("while saving") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (JobError("The model folder /m is missing."), "The model folder /m is missing."),
        (OSError(errno.ENOSPC, "No space left on device"), DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK_FULL),
        (chained(OSError(errno.ENOSPC, "No space left on device")), DISK_FULL),
        (RuntimeError("I/O error: No space left on device (os error 28)"), DISK_FULL),
        (OSError(errno.EACCES, "Permission denied"), "PermissionError: [Errno 13] Permission denied"),
        (MemoryError(), "There was not enough memory. Make the batch smaller."),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_each_error_has_its_sentence(error: Exception, says: str) -> None:
    assert sentence(error) == says


def ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Callable[[dict, Emitter, StopFlag], None]
) -> tuple[Any, list[dict]]:
    """Runs a program as `python -m` would, with a good spec: (exit status, events)."""
    spec, out = tmp_path / "spec.json", tmp_path / "events.jsonl"
    spec.write_text(json.dumps(evaluate_spec()))
    status: Any = 0
    before = signal.getsignal(signal.SIGTERM)
    with out.open("wb") as file:
        monkeypatch.setenv("FLYWHEEL_EVENTS_FD", str(file.fileno()))
        monkeypatch.setattr(sys, "argv", ["workers.evaluate", str(spec)])
        try:
            run_main("evaluate", program)
        except SystemExit as end:
            status = end.code
        finally:
            signal.signal(signal.SIGTERM, before)
    return status, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_good_run_ends_with_its_own_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, events = ended(monkeypatch, tmp_path, lambda spec, events, stop: events.result(metrics={"n": 1}))
    assert status == 0 and [event["type"] for event in events] == ["result"]


def test_an_error_is_told_in_one_event_with_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        raise JobError("The model folder /m is missing.")

    status, [event] = ended(monkeypatch, tmp_path, program)
    assert (status, event["type"], event["message"]) == (1, "error", "The model folder /m is missing.")
    assert "Traceback" in event["traceback"]


def test_sigterm_ends_the_program_where_it_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        events.log("info", "still here")
        for _ in range(100):
            time.sleep(0.01)
            stop.check()

    status, events = ended(monkeypatch, tmp_path, program)
    assert status == 143
    assert [event["message"] for event in events] == ["still here", "Stopped on request."]


@pytest.mark.parametrize(("kind", "lacks"), [("evaluate", "model.base"), ("sft", "out_dir"), ("grpo", "model.base")])
def test_every_program_runs_by_hand_and_says_what_is_wrong(kind: str, lacks: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"model": {}}')
    done = subprocess.run([sys.executable, "-m", f"workers.{kind}", str(path)], capture_output=True, text=True)
    event = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert (event["type"], event["seq"], event["message"]) == ("error", 1, f"The spec lacks “{lacks}”.")
