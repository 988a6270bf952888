"""Minutes-long proofs on the real model, run by `make proof`: the demo, and the demo with processes killed under it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flywheel.machine import Machine, hear_ctrl_c

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
        (folder / "models").symlink_to(ROOT / "var" / "models") if (ROOT / "var" / "models").is_dir() else None
        command = [sys.executable, "manage.py", "demo", "--fast", "--exit", "--port", str(free_port()), *arguments]
        env = {key: value for key, value in os.environ.items() if not key.startswith("FLYWHEEL_")}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=self.log.open("w"), stderr=subprocess.STDOUT, preexec_fn=hear_ctrl_c,
            env=env | {"FLYWHEEL_DATA_DIR": str(folder), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip

    def wait_for(self, text: str, seconds: float = 900) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"no “{text}” in {self.log.read_text()}"
            time.sleep(0.2)

    def kill(self, pattern: str, seconds: float = 300) -> None:
        """kill -9 of the newest process of this demo whose command line matches; they all have its data folder."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for pid in sorted(Machine(self.folder).processes(), reverse=True):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if re.search(pattern, command):
                        os.kill(pid, signal.SIGKILL)
                        return
            time.sleep(0.2)
        raise AssertionError(f"no process {pattern}")

    def report(self) -> dict:
        assert self.process.wait(1800) == 0, self.log.read_text()
        return json.loads((self.folder / "demo" / "report.json").read_text())


def test_the_demo_survives_kills(tmp_path: Path) -> None:
    """PostgreSQL is killed while the agent logs, the training child in SFT and again in GRPO, the eval worker's child."""
    demo = DemoRun(tmp_path)
    demo.wait_for("0 · Ready")
    time.sleep(15)
    demo.kill(r"bin/postgres -D")
    demo.wait_for("1 · Production")  # which counts that every trajectory arrived
    demo.kill(r"workers\.evaluate")
    demo.wait_for("5 · Review")
    demo.kill(r"workers\.sft")
    demo.wait_for("6 · SFT evaluated")
    demo.kill(r"workers\.grpo")
    report = demo.report()
    assert set(report["models"]) == {"baseline", "sft", "grpo"}


def test_the_same_seed_gives_the_same_data(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        demo = DemoRun(folder, "--seed", "7")
        demo.wait_for("3 · Eval set")
        digests.append(re.search(r"3 · Eval set\s+(.+)", demo.log.read_text()).group(1))  # type: ignore[union-attr]
        demo.process.send_signal(signal.SIGINT)
        demo.process.wait(120)
    assert digests[0] == digests[1]
