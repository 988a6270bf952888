"""A program that is started warm behaves as one that is started."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests import warm

SOURCE = """
import os, signal, subprocess, sys

if sys.argv[1] == "say":
    print(os.environ["WORD"], os.getcwd(), __name__)
    print("aside", file=sys.stderr)
    sys.exit(3)
if sys.argv[1] == "start":
    child = subprocess.Popen([sys.executable, "-m", "program", "say"], stdout=subprocess.PIPE)
    child.communicate()
    sys.exit(40 + child.returncode)
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
    assert child.communicate() == (f"hello {options['cwd']} __main__\n", "aside\n")
    assert child.returncode == 3


def test_what_it_starts_is_its_child(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "start"], **options)
    assert child.communicate() == ("", "aside\n")
    assert child.returncode == 43


def test_a_signal_ends_it(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "wait"], **options)
    assert child.stdout and child.stdout.readline() == "waits\n"
    assert child.poll() is None
    child.terminate()
    assert child.wait(60) == -signal.SIGTERM


def test_a_group_of_its_own_is_signalled_as_one(options: dict[str, Any]) -> None:
    child = warm.Program(["program", "wait"], **options, start_new_session=True)
    assert child.stdout and child.stdout.readline() == "waits\n"
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM
