"""How a job's spec is read and how its program ends: every end has its status and its sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.core.runner import command
from tests import warm
from tests.amounts import amount
from tests.forms import as_read, form_of
from workers.lib import memory
from workers.lib.errors import JobError, SpecError, sentence
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, read_spec, run_main
from workers.lib.specs.evaluate import Evaluate
from workers.lib.specs.grpo import Grpo
from workers.lib.specs.job import checked

DISK_FULL = (
    "The disk is full. Free some space and start the job again; its last checkpoint is kept."
)
NO_MEMORY = "The memory ran out: the process used up to 1.9 GB of memory."


class OutOfMemoryError(RuntimeError):
    """As torch has one."""


def evaluate_spec() -> dict:
    return {
        "model": {"base": "/m"},
        "engine": {"kind": "transformers"},
        "environment": {"kind": "builtin", "name": "workplace", "harness": {}, "verifier": {}},
        "tasks": [{"id": "1", "messages": [], "expected": {}}],
        "samples_per_task": 2,
    }


def grpo_spec() -> dict:
    found = evaluate_spec() | {"out_dir": "/o", "config": {"steps": 1, "learning_rate": 1}}
    return without(found, "samples_per_task")


def sft_spec() -> dict:
    rows = [{"messages": [], "completion": "Done."}]
    found = grpo_spec() | {
        "rows": rows,
        "config": {"steps": 1, "learning_rate": 1, "batch_size": 1},
    }
    return without(found, "tasks")


WHOLE = {"evaluate": evaluate_spec, "grpo": grpo_spec, "sft": sft_spec}


def without(spec: dict, path: str) -> dict:
    *parents, last = path.split(".")
    holder: Any = spec
    for part in parents:
        holder = holder[int(part) if isinstance(holder, list) else part]
    del holder[last]
    return spec


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_spec_passes(kind: str) -> None:
    checked(WHOLE[kind](), form_of(kind))


FILLED_IN = {"loss_type": "gspo", "correction": "off"}  # clip range and bounds


@pytest.mark.parametrize("kind", [*WHOLE, "filled in"])
def test_a_spec_is_read_as_it_was_written(kind: str) -> None:
    """Also what a method filled in, and numbers that only JSON can hold."""
    whole = WHOLE.get(kind, grpo_spec)()
    if kind == "filled in":
        whole["config"] |= FILLED_IN
    if "tasks" in whole:
        whole["tasks"][0]["expected"] = {"args": {"id": 10**30}}
    spec = checked(whole, form_of(WHOLE.get(kind, grpo_spec).__name__.removesuffix("_spec")))
    assert as_read(spec) == spec


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("evaluate", "model.base"),
        ("evaluate", "engine"),
        ("evaluate", "environment.harness"),
        ("evaluate", "tasks"),
        ("evaluate", "tasks[0].expected"),
        ("evaluate", "samples_per_task"),
        ("sft", "rows"),
        ("sft", "rows[0].messages"),
        ("sft", "config.batch_size"),
        ("grpo", "config.steps"),
        ("grpo", "out_dir"),
    ],
)
def test_a_missing_field_is_named(kind: str, path: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"“{path}” is missing")):
        checked(without(WHOLE[kind](), path.replace("[0]", ".0")), form_of(kind))


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("evaluate", {"samples_per_task": "8"}, "“samples_per_task” must be a whole number"),
        ("evaluate", {"samples_per_task": True}, "“samples_per_task” must be a whole number"),
        ("evaluate", {"samples_per_task": 0}, "“samples_per_task” must be at least 1"),
        (
            "evaluate",
            {"sample_per_task": 1},
            "“sample_per_task” is not known; did you mean “samples_per_task”?",
        ),
        ("evaluate", {"tasks": {}}, "“tasks” must be a text or a list"),
        ("evaluate", {"tasks": []}, "“tasks” is empty"),
        ("evaluate", {"tasks": ["x"]}, "“tasks[0]” must be an object"),
        (
            "evaluate",
            {"tasks": [{"id": 4, "messages": [], "expected": {}}]},
            "“tasks[0].id” must be a text",
        ),
        ("evaluate", {"model": {}}, "“model.base” is missing"),
        ("evaluate", {"model": {"base": None}}, "“model.base” must be a text"),
        (
            "evaluate",
            {"engine": {"kind": "abacus"}},
            "“engine.kind” must be one of transformers, openai",
        ),
        (
            "evaluate",
            {"engine": {"kind": "transformers", "dtype": "int8"}},
            "“engine.dtype” must be one of",
        ),
        ("evaluate", {"engine": {"kind": "openai", "model": "m"}}, "“engine.base_url” is missing"),
        (
            "grpo",
            {"config": {"steps": 1, "learning_rate": 1, "loss_type": "ppo"}},
            "“config.loss_type” must be one of",
        ),
        (
            "grpo",
            {"config": {"steps": 1, "learning_rate": 1, "temperature": 0}},
            "“config.temperature” must be at least 0.01",
        ),
        (
            "grpo",
            {"config": {"steps": 1, "learning_rate": 1, "generation": 8}},
            "did you mean “generations”?",
        ),
        (
            "grpo",
            {"config": {"steps": 1, "learning_rate": "1e-4"}},
            "“config.learning_rate” must be a number",
        ),
        (
            "sft",
            {"config": {"steps": 1, "learning_rate": 1, "batch_size": 1, "beta": 1}},
            "“config.beta” is not known",
        ),
    ],
)
def test_a_wrong_value_is_named(kind: str, change: dict, says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        checked(WHOLE[kind]() | change, form_of(kind))


@pytest.mark.parametrize(
    ("text", "says"), [("{", "is not JSON"), ("[]", "must be an object"), (None, "No such file")]
)
def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "spec.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=says):
        read_spec(path, Evaluate)


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
        (
            OSError(errno.EACCES, "Permission denied"),
            "PermissionError: [Errno 13] Permission denied",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (MemoryError(), NO_MEMORY),
        (
            chained(
                RuntimeError(
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2500000000"
                    " bytes."
                )
            ),
            f"{NO_MEMORY[:-1]} and asked for 2.5 GB more.",
        ),
        (
            OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
            f"{NO_MEMORY[:-1]} and asked for 21 MB more.",
        ),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_each_error_has_its_sentence(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "peak_memory", lambda: {"memory": 1_900_000_000})
    assert sentence(error) == says


def ended(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: Callable[[dict, Emitter, StopFlag], None],
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
            run_main(Evaluate, program)
        except SystemExit as end:
            status = end.code
        finally:
            signal.signal(signal.SIGTERM, before)
    return status, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_good_run_ends_with_its_own_events(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, events = ended(
        monkeypatch, tmp_path, lambda spec, events, stop: events.result(metrics={"n": 1})
    )
    assert status == 0 and [event["type"] for event in events] == ["result"]


def test_an_error_is_told_in_one_event_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        raise JobError("The model folder /m is missing.")

    status, [event] = ended(monkeypatch, tmp_path, program)
    assert (status, event["type"], event["message"]) == (
        1,
        "error",
        "The model folder /m is missing.",
    )
    assert "Traceback" in event["traceback"] and not event["cause"]


def test_where_the_memory_ran_out_the_event_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    status, [event] = ended(monkeypatch, tmp_path, program)
    assert (status, event["type"], event["cause"]) == (1, "error", "memory")


def test_where_the_disk_is_full_the_event_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Even if its own log, which is a file, can take nothing more."""
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", full)

    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        raise chained(OSError(errno.ENOSPC, "No space left on device"))

    status, [event] = ended(monkeypatch, tmp_path, program)
    assert (status, event["message"], event["cause"]) == (1, DISK_FULL, "disk")


def test_sigterm_ends_the_program_where_it_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def program(spec: dict, events: Emitter, stop: StopFlag) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        events.log("info", "still here")
        for _ in range(100):
            time.sleep(0.01)
            stop.check()

    status, events = ended(monkeypatch, tmp_path, program)
    assert status == 143
    assert [event["message"] for event in events] == ["still here", "Stopped on request."]


def test_the_garbage_collector_is_put_off_only_while_a_program_imports() -> None:
    program = (
        "import sys, gc\nusual = gc.get_threshold()\nsys.argv = {argv}\nimport workers\nput_off ="
        " gc.get_threshold() > usual\nfrom workers.lib.garbage import"
        " is_imported\nis_imported()\nprint(put_off, gc.get_freeze_count() > 0, gc.get_threshold()"
        " == usual)"
    )
    for argv, said in (["-m"], "True True True"), (["-c"], "False False True"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(argv=argv)], capture_output=True, text=True
        )
        assert done.stdout.strip() == said, done.stderr


def cold(arguments: list[str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", *arguments], **options)


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "lacks"), [("evaluate", "model"), ("sft", "out_dir"), ("grpo", "out_dir")]
)
def test_every_program_runs_by_hand_and_says_what_is_wrong(
    kind: str, lacks: str, tmp_path: Path
) -> None:
    """In the proof it loads torch by itself, for 5 CPU s."""
    path = tmp_path / "spec.json"
    path.write_text("{}")
    program = amount(warm.Program, cold)(
        [f"workers.{kind}", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"FLYWHEEL_EVENTS_FD": ""},
    )
    written, errors = program.communicate()
    assert program.returncode == 2 and "Traceback" not in written + errors, errors
    assert errors.splitlines()[-1] == f"“{lacks}” is missing."
    [event] = map(json.loads, written.splitlines())
    assert (event["type"], event["seq"], event["message"]) == (
        "error",
        1,
        f"“{lacks}” is missing.",
    )


@pytest.mark.parametrize(
    ("processes", "words"),
    [(1, ["workers.grpo"]), (2, ["workers.lib.processes", "workers.grpo", "2"])],
)
def test_a_job_of_several_processes_begins_with_their_parent(
    processes: int, words: list[str]
) -> None:
    """Which imports nothing, while the program would import torch only to be replaced."""
    spec = grpo_spec()
    spec["config"] |= {"processes": processes}
    kind: Any = SimpleNamespace(python=lambda: "python")
    assert command(kind, checked(spec, Grpo)) == ["python", "-m", *words]
