"""What the supervisor of one machine does with signals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel import progress, supervisor
from flywheel.supervisor import Program, Stack, StackError, claim_data_folder
from tests.flywheel.machine import ROOT, free_port

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP]


@pytest.fixture
def stack(data_dir: Path) -> Iterator[Stack]:
    before = {number: signal.getsignal(number) for number in ENDING}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script that starts it with `&`
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the suite runs under `nohup`
    made = Stack("127.0.0.1", free_port())
    made.heed_signals()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_is_swallowed_at_a_fork_still_stops_the_start(
    stack: Stack, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def swallow(program: Program) -> None:
        begun.append(program.name)
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(stack, "_start", swallow)
    with pytest.raises(KeyboardInterrupt):
        stack.start()
    assert begun == ["web"]
    with pytest.raises(KeyboardInterrupt):
        stack.wait_healthy()
    stack.serve_forever()  # returns


def test_a_second_hang_up_does_not_interrupt_the_stop(stack: Stack) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)


def test_nohup_is_respected(stack: Stack) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stack.heed_signals()
    signal.raise_signal(signal.SIGHUP)
    assert not stack.interrupted


def test_a_second_stack_on_a_data_folder_is_refused_and_a_dead_one_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    (tmp_path / "stack.lock").write_text("http://127.0.0.1:1, process 1")  # of a killed one
    held = claim_data_folder(tmp_path, "http://127.0.0.1:8123")
    with pytest.raises(StackError, match=rf"http://127.0.0.1:8123, process {os.getpid()}\b"):
        claim_data_folder(tmp_path, "http://127.0.0.1:8124")
    os.close(held)
    os.close(claim_data_folder(tmp_path, "http://127.0.0.1:8124"))
    assert (tmp_path / "stack.lock").read_text().startswith("http://127.0.0.1:8124,")


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=rf"Cannot listen on 127\.0\.0\.1:{port}.*--port"):
            supervisor.require_free_port("127.0.0.1", port)


def test_one_that_is_stopping_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.embedded, "lock_patiently", lambda path: _lock_at_once(path))
    monkeypatch.setattr(progress, "QUICK_S", 0.0)
    held = claim_data_folder(tmp_path, "http://127.0.0.1:8123")
    with pytest.raises(StackError, match="already runs"):
        claim_data_folder(tmp_path, "http://127.0.0.1:8124")
    supervisor.say_stopping(held)
    supervisor.say_stopping(held)
    with monkeypatch.context() as impatient, pytest.raises(StackError, match="has been stopping"):
        impatient.setattr(supervisor, "STOPS_S", -1.0)
        impatient.setattr(supervisor.embedded, "lock_within", lambda path, _: _lock_at_once(path))
        claim_data_folder(tmp_path, "http://127.0.0.1:8124")
    threading.Timer(0.3, lambda: os.close(held)).start()
    os.close(claim_data_folder(tmp_path, "http://127.0.0.1:8124"))
    waits = f"Waiting for http://127.0.0.1:8123, process {os.getpid()}, which is stopping …"
    assert waits in capsys.readouterr().out
    assert (tmp_path / "stack.lock").read_text() == f"http://127.0.0.1:8124, process {os.getpid()}"


def _lock_at_once(path: Path) -> int:
    return supervisor.embedded.lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_stack_that_stops_says_so(stack: Stack, tmp_path: Path) -> None:
    stack.claimed = claim_data_folder(tmp_path, stack.url)
    stack.stop()
    assert (tmp_path / "stack.lock").read_text().endswith(", which is stopping")
    os.close(stack.claimed)


@pytest.mark.parametrize("command", ["up", "demo"])
def test_help_says_which_port_the_endpoint_gets(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "The endpoint gets the next one, PORT + 1" in " ".join(done.stdout.split())


def test_the_processes_of_a_killed_stack_are_waited_for(tmp_path: Path) -> None:
    """They have its port, and would go on with what is scheduled."""
    held = claim_data_folder(tmp_path, "http://127.0.0.1:8123")
    orphan = subprocess.Popen(["sleep", "2"], pass_fds=[held])
    os.close(held)
    killed = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    (tmp_path / "stack.lock").write_text(f"http://127.0.0.1:8123, process {killed}")
    os.close(claim_data_folder(tmp_path, "http://127.0.0.1:8124"))
    assert orphan.poll() is not None
