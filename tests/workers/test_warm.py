"""A program that is started warm behaves as one that is started."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

import msgspec
import pytest

import workers.lib.warm
from tests import warm
from tests.flywheel.machine import eventually
from workers.lib import gpus
from workers.lib.specs.engines import InProcess, Model, Server, computes
from workers.lib.warm import Program, Warm, serve

SOURCE = """
import os, signal, subprocess, sys

if sys.argv[1] == "say":
    print(os.environ.get("WORD"), os.environ.get("OTHER"), os.getcwd(), __name__)
    print("aside", file=sys.stderr)
    sys.exit(3)
if sys.argv[1] == "start":
    from workers.lib.warm import again
    child = again(["program", "say"], stdout=subprocess.PIPE, env={"WORD": "again"}, text=True)
    said, _ = child.communicate()
    print(said, type(child).__name__)
    sys.exit(40 + child.returncode)
if sys.argv[1] == "compute":
    torch = sys.modules["torch"]
    product = torch.ones(700, 700) @ torch.ones(700, 700)
    print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
    print(torch.get_num_threads(), float(product[0, 0]), len(os.listdir("/proc/self/fd")) > 0)
    sys.exit("ended")
print("waits", flush=True)
signal.pause()
"""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "program.py").write_text(SOURCE)
    env = os.environ | {"WORD": "hello"}
    return {"cwd": tmp_path, "env": env, "stdout": PIPE, "stderr": PIPE, "text": True}


def test_it_has_its_own_environment_folder_and_pipes_and_a_status(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "say"], **options)
    assert child.communicate() == (f"hello None {options['cwd']} __main__\n", "aside\n")
    assert child.returncode == 3


def test_what_it_starts_is_a_fork_and_its_child(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "start"], **options)
    said = f"again None {options['cwd']} __main__\n Fork\n"
    assert child.communicate() == (said, "aside\n")
    assert child.returncode == 43


def test_it_computes_and_its_parent_has_not(options: dict[str, Any]) -> None:
    """Neither CUDA nor the threads of torch would go on in a fork."""
    options["env"]["OMP_NUM_THREADS"] = "2"
    child = warm.Program(["program", "compute"], **options)
    assert child.communicate()[0].splitlines() == ["False False", "2 700.0 True"]
    assert child.returncode == 1


def test_a_signal_ends_it(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "wait"], **options)
    assert child.stdout and child.stdout.readline() == "waits\n"
    assert child.poll() is None
    child.terminate()
    assert child.wait(60) == -signal.SIGTERM


def test_a_group_of_its_own_is_signalled_as_one(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "wait"], **options, start_new_session=True)
    assert child.stdout and child.stdout.readline() == "waits\n"
    assert os.getsid(child.pid) == child.pid
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM


def test_a_file_that_is_passed_keeps_its_number(options: dict[str, Any]) -> None:
    read, write = os.pipe()
    passing = {"pass_fds": [write], "env": options["env"] | {"OTHER": str(write)}}
    child = warm.Program(["program", "say"], **options | passing)
    os.close(write)
    said, _ = child.communicate()
    assert said.split()[1] == str(write)
    assert os.read(read, 1) == b""  # nobody holds the other end
    os.close(read)


@pytest.mark.proof
def test_programs_end_with_their_parent_and_another_is_begun(options: dict[str, Any]) -> None:
    parent = Warm(os.environ, idle_s=0.01)
    parent.prepare(imports=False)
    assert parent.process and parent.process.wait(60) == 0  # it had nothing to do
    command = [sys.executable, "-m", "program", "wait"]
    child = parent.popen(command, **options)
    assert isinstance(child, Program)
    assert child.stdout and child.stdout.readline() == "waits\n"
    parent.process.kill()
    assert child.wait(60) == -signal.SIGKILL
    eventually(lambda: not Path(f"/proc/{child.pid}/fd/0").exists())


def test_where_there_is_a_gpu_nothing_is_started_warm(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DEVICES", (options["cwd"],))
    child = warm.popen([sys.executable, "-m", "program", "say"], **options)
    assert child.communicate()[1] == "aside\n" and type(child) is Popen


def test_where_nothing_can_be_forked_it_is_started_as_usual(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what runs already goes on."""

    def no_fork() -> int:
        raise BlockingIOError

    parent = Warm(os.environ)
    parent.control, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(workers.lib.warm, "import_everything", lambda: None)
    monkeypatch.setattr(os, "fork", no_fork)
    serving = Thread(target=serve, args=[there, 60.0])
    serving.start()
    child = parent.popen([sys.executable, "-m", "program", "say"], **options)
    assert child.communicate()[1] == "aside\n" and type(child) is Popen
    assert serving.is_alive() and parent.process is None
    parent.control.close()
    serving.join()


def test_what_is_too_long_to_ask_for_is_started_as_usual(options: dict[str, Any]) -> None:
    options["env"] |= {f"MUCH_{number}": 100_000 * "x" for number in range(4)}
    child = warm.popen([sys.executable, "-m", "program", "say"], **options)
    assert child.communicate()[1] == "aside\n" and type(child) is Popen
    assert child.returncode == 3


def test_what_loads_a_model_begins_warm() -> None:
    model, server = Model(base="base"), Server(base_url="http://127.0.0.1/v1", model="m")
    Spec = msgspec.defstruct("Spec", [("model", Any), ("engine", Any)])
    Sides = msgspec.defstruct("Sides", [("sides", list)])
    alone = msgspec.defstruct("Alone", [("model", Any)])
    assert computes(Spec(model, InProcess())) and not computes(Spec(model, server))
    assert computes(Sides([Spec(model, server), Spec(model, InProcess())]))
    assert computes(alone(model)) and not computes(alone("its name on a server"))
