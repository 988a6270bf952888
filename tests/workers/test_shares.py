"""Programs whose tasks are divided among processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.flywheel.machine import eventually
from tests.workers.conftest import typed
from tests.workers.test_measure_latency import spec_of
from workers.lib.gpus import has_gpu
from workers.lib.typed import plain

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(has_gpu(), reason="with a GPU one process has all tasks")


def started(
    spec: dict[str, Any], folder: Path, threads: int, program: str = "evaluate"
) -> subprocess.Popen[str]:
    path = folder / f"spec-{threads}.json"
    path.write_text(json.dumps(spec))
    return warm.Program(
        [f"workers.{program}", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "FLYWHEEL_EVENTS_FD": ""},
    )


def parts(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def test_two_processes_sample_what_one_does(make_spec: Callable[..., dict], tmp_path: Path) -> None:
    found = []
    for threads in (1, 2):
        process = started(make_spec(samples_per_task=4), tmp_path, threads)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        events = [json.loads(line) for line in output.splitlines()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        found.append(
            {
                (event["task_id"], event["index"]): event["output"]
                for event in events
                if event["type"] == "sample"
            }
        )
        done = [event["done"] for event in events if event["type"] == "progress"]
        assert done == sorted(done) and done[-1] == 12
    assert found[0] == found[1]


@pytest.mark.proof
def test_two_processes_measure_latency_in_the_turns_of_one(
    make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    found = []
    for threads in (1, 2):
        spec = plain(typed(spec_of(make_spec, rounds=2, precision=1e-9), "measure_latency"))
        process = started(spec, tmp_path, threads, "measure_latency")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        events = [json.loads(line) for line in output.splitlines()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        samples = [event for event in events if event["type"] == "sample"]
        assert [event["round"] for event in samples] == [0] * 6 + [1] * 6
        names = ("version", "task_id", "round", "turn", "output_tokens")
        found.append({tuple(event[name] for name in names) for event in samples})
        done = [event["done"] for event in events if event["type"] == "progress"]
        assert done == list(range(13)) and events[-1]["metrics"] == {"rounds": 2}
    assert found[0] == found[1] and len(found[0]) == 12


def test_one_that_is_killed_ends_the_job_as_a_kill_does(
    make_spec: Callable[..., dict], tmp_path: Path
) -> None:
    process = started(make_spec(samples_per_task=4), tmp_path, 2)
    (part,) = eventually(lambda: parts(process))
    os.kill(part, signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL
