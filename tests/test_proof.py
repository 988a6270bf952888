"""Minutes-long proofs, run by `make proof`: the demo on the real model, also with processes killed
under it, and exported tasks under `vf-eval`, which scores them as designed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.evals.formats import TaskRow, package
from tests.flywheel.machine import Machine, eventually, ignore_ctrl_c

pytestmark = pytest.mark.proof
ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DemoRun:
    """`manage.py demo --fast --exit` in a data folder of its own; its output as it comes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.log = folder, folder / "demo.log"
        self.machine = Machine(folder)
        (
            (folder / "models").symlink_to(ROOT / "var" / "models")
            if (ROOT / "var" / "models").is_dir()
            else None
        )
        command = [
            sys.executable,
            "manage.py",
            "demo",
            "--fast",
            "--exit",
            "--port",
            str(free_port()),
            *arguments,
        ]
        env = {key: value for key, value in os.environ.items() if not key.startswith("FLYWHEEL_")}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            preexec_fn=ignore_ctrl_c,
            env=env | {"FLYWHEEL_DATA_DIR": str(folder), "PYTHONUNBUFFERED": "1"},
        )

    def wait_for(self, station: str, seconds: float = 3600) -> None:
        """Until it has passed the station; that it will is said before."""
        text = f"✓ {station}"
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"no “{text}” in {self.log.read_text()}"
            time.sleep(0.2)

    def kill(self, what: str) -> None:
        """kill -9 of the newest process of this demo that has that in its command line or title."""
        os.kill(max(eventually(lambda: self.machine.processes(what))), signal.SIGKILL)

    def report(self) -> dict:
        assert self.process.wait(7200) == 0, self.log.read_text()
        return json.loads((self.folder / "demo" / "report.json").read_text())

    def __enter__(self) -> DemoRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills what is left: a demo that never ends, and all that it started."""
        self.machine.kill_everything()
        self.process.wait()


def test_the_demo_survives_kills(tmp_path: Path) -> None:
    """PostgreSQL is killed while the agent logs, the eval worker's child, the training child in SFT
    and again in GRPO.
    """
    with DemoRun(tmp_path) as demo:
        demo.wait_for("0 · Ready")
        time.sleep(15)
        demo.kill("bin/postgres\0-D")
        demo.wait_for("1 · Production")  # which counts that every trajectory arrived
        demo.kill("evaluate")
        demo.kill("sft")
        demo.wait_for("7 · Review")
        demo.kill("grpo")
        report = demo.report()
    assert set(report["models"]) == {"baseline", "sft", "grpo"}
    day = report["next_day"]  # through the endpoint, to what was promoted
    assert report["promoted"] == day["version"] and day["after"] < day["before"]


DIGEST = """
from apps.evals.models import EvalSet
print(EvalSet.objects.get(slug__startswith="workplace-").digest)
"""


def test_the_same_seed_gives_the_same_data(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        with DemoRun(folder, "--seed", "7") as demo:
            demo.wait_for("3 · Eval set")
            digests.append(demo.machine.python(DIGEST))
            demo.process.send_signal(signal.SIGINT)
            demo.process.wait(300)
    assert len(digests[0]) == 64 and digests[0] == digests[1]


# Exported tasks under vf-eval

VERIFIERS = ROOT / ".venv-verifiers" / "bin"
HAS_VERIFIERS = pytest.mark.skipif(
    not (VERIFIERS / "vf-eval").exists(), reason="no .venv-verifiers: run `make verifiers`"
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": {"type": "object"}},
    }
    for name in ("people.find", "calendar.create")
]
FIND = {"tool": "people.find", "args": {"name": "Ann"}}
BOOK = {"tool": "calendar.create", "args": {"who": "Ann Smith", "day": "Monday"}}
BOOKED = json.dumps({"calendar": {"Monday": {"who": "Ann Smith"}}})
RECORDED = [FIND | {"content": "Ann Smith"}, BOOK | {"content": BOOKED}]
STATE = [
    {"path": "calendar.Monday.who", "equals": "ann smith"},
    {"path": "calls.calendar.create.count", "equals": 1},
]


def call(tool: str, **args: str) -> dict:
    function = {"name": tool, "arguments": json.dumps(args)}
    return {"id": f"call_{tool}", "type": "function", "function": function}


def says(text: str) -> dict:
    return {"content": text}


def calls(*made: dict) -> dict:
    return {"tool_calls": list(made)}


def row(key: str, asked: str, expected: dict, tools: list[dict], **metadata: Any) -> TaskRow:
    return TaskRow(
        key,
        [{"role": "user", "content": asked}],
        expected,
        tools,
        split="holdout",
        metadata=metadata,
    )


TASKS = [
    row("one-call", "Book Ann", BOOK, TOOLS),
    row(
        "two-calls",
        "Find Ann and book her",
        {"calls": [FIND, BOOK]},
        TOOLS,
        recorded_results=RECORDED,
    ),
    row(
        "state",
        "Find Ann, book her, tell me",
        {"calls": [FIND, BOOK]},
        TOOLS,
        recorded_results=RECORDED,
        state=STATE,
    ),
    row("answer", "Six times seven?", {"answer": "42"}, []),
    row(
        "words", "Say hello in capitals", {"constraint": {"contains": ["hello"], "upper": True}}, []
    ),
]
GOOD_FIND, GOOD_BOOK = (
    call("people.find", name="ann"),
    call("calendar.create", who="Ann Smith", day="Monday"),
)
WRONG_DAY = call("calendar.create", who="Ann Smith", day="Friday")
# What each model answers to each request, turn by turn, and the reward and metrics that this is to
# get.
MODELS: dict[str, dict[str, tuple[list[dict], dict[str, float]]]] = {
    "right": {
        "one-call": ([calls(GOOD_BOOK)], {"correct": 1, "tools": 1, "arguments": 1}),
        "two-calls": (
            [calls(GOOD_FIND), calls(GOOD_BOOK), says("Booked.")],
            {"correct": 1, "tools": 1, "arguments": 1},
        ),
        "state": (
            [calls(GOOD_FIND, GOOD_BOOK), says("Booked.")],
            {"correct": 1, "tools": 1, "arguments": 1, "state": 1},
        ),
        "answer": ([says("42.")], {"correct": 1}),
        "words": ([says("HELLO")], {"correct": 1}),
    },
    "wrong": {
        "one-call": ([says("I cannot.")], {"correct": 0, "tools": 0, "arguments": 0}),
        "two-calls": ([says("Done.")], {"correct": 0, "tools": 0, "arguments": 0}),
        "state": ([says("Done.")], {"correct": 0, "tools": 0, "arguments": 0, "state": 0}),
        "answer": ([says("41")], {"correct": 0}),
        "words": ([says("hello")], {"correct": 0}),
    },
    "partly": {
        "one-call": ([calls(WRONG_DAY)], {"correct": 0, "tools": 1, "arguments": 0.5}),
        "two-calls": (
            [calls(GOOD_FIND), says("Found her.")],
            {"correct": 0, "tools": 0.5, "arguments": 0.5},
        ),
        # The calendar is as it should be, but it was written to twice: the second is one call too
        # many.
        "state": (
            [calls(GOOD_FIND, GOOD_BOOK), calls(GOOD_BOOK)],
            {"correct": 0, "tools": 2 / 3, "arguments": 2 / 3, "state": 0.5},
        ),
        "answer": ([says("About 42")], {"correct": 0}),
        "words": ([says("Hello")], {"correct": 0}),
    },
}


@pytest.fixture
def model_server(tmp_path: Path) -> Iterator[str]:
    """The address of our OpenAI-compatible server, a process that answers as MODELS say."""
    asked = {task.key: task.messages[0]["content"] for task in TASKS}
    script = {
        model: {asked[key]: turns for key, (turns, _) in told.items()}
        for model, told in MODELS.items()
    }
    (tmp_path / "script.json").write_text(json.dumps(script))
    command = [sys.executable, "-m", "tests.evals.openai_server", str(tmp_path / "script.json")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The exported package, built and installed by pip as a user would, into a folder of its
    own.
    """
    source, target = tmp_path / "package", tmp_path / "installed"
    for path, text in package(TASKS, "Proof tasks").items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    pip = [
        str(VERIFIERS / "python"),
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(target),
        str(source),
    ]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def evaluated(
    installed: Path, server: str, model: str, *arguments: str
) -> dict[str, dict[str, float]]:
    """{task: {reward or metric: value}} by `vf-eval` itself, from the traces that it writes."""
    source, out = installed.parent / "package", installed.parent / f"out-{model}-{len(arguments)}"
    env = os.environ | {
        "MODEL_API_KEY": "none",
        "PATH": f"{VERIFIERS}:{os.environ['PATH']}",
        "PYTHONPATH": str(installed),
    }
    command = [
        str(VERIFIERS / "vf-eval"),
        "@",
        "eval.toml",
        "--client.base-url",
        f"{server}/v1",
        "--model",
        model,
    ]
    done = subprocess.run(
        [*command, "--no-push", "--no-rich", "-o", str(out), *arguments],
        cwd=source,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for file in out.rglob("traces.jsonl") for line in file.read_text().splitlines()]
    traces = [trace for line in lines for trace in json.loads(line)["traces"]]
    assert traces and not any(trace.get("errors") for trace in traces), traces
    return {trace["task"]["data"]["id"]: values_of(trace) for trace in traces}


def values_of(trace: dict) -> dict[str, float]:
    """The rewards and metrics of a trace that are ours."""
    values = {
        name: reward["score"] * reward["weight"] for name, reward in trace["rewards"].items()
    } | trace["metrics"]
    return {
        name: values[name] for name in ("correct", "tools", "arguments", "state") if name in values
    }


@HAS_VERIFIERS
def test_exported_tasks_are_scored_as_designed_under_vf_eval(
    installed: Path, model_server: str
) -> None:
    for model, told in MODELS.items():
        expected = {key: values for key, (_, values) in told.items()}
        found = evaluated(installed, model_server, model)
        print(f"{model}: {found}")
        assert found.keys() == expected.keys()
        assert {key: pytest.approx(values) for key, values in expected.items()} == found
    with urllib.request.urlopen(f"{model_server}/requests", timeout=30) as answer:
        requests = json.loads(answer.read())
    offered = [item["tools"] for item in requests if item.get("tools")]
    assert offered and all(
        tools == TOOLS for tools in offered
    )  # under the names that the agent knows
