from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flywheel import logs, servers, supervisor
from flywheel.embedded import Layout
from flywheel.log_files import LogFile, rotate, write_lines
from tests.flywheel.machine import eventually


def test_a_log_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    log = LogFile(path, most_bytes=10, kept=2)
    for number in range(8):
        log.write(b"line %d\n" % number)
    names = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert names == {
        "web.log": b"",
        "web.log.1": b"line 6\nline 7\n",
        "web.log.2": b"line 4\nline 5\n",
    }


def test_a_log_that_is_not_large_stays(tmp_path: Path) -> None:
    path = tmp_path / "postgres.log"
    rotate(path)
    path.write_bytes(b"x")
    rotate(path)
    assert [one.name for one in tmp_path.iterdir()] == ["postgres.log"]
    rotate(path, most_bytes=1)
    assert [one.name for one in tmp_path.iterdir()] == ["postgres.log.1"]


def written(path: Path, output: bytes, **more: Any) -> list[bytes]:
    """What a part that says this leaves in its log."""
    read, write = os.pipe()
    os.write(write, output)
    os.close(write)
    write_lines(read, LogFile(path, **more), "web")
    return path.read_bytes().splitlines()


SAID = b'{"message": "of ours"}\nTraceback (most recent call last):\n  \xff\nValueError: x\n[1]\n'


def test_what_up_writes_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    written(path, b"0123456789\n" * 10, most_bytes=30, kept=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]


def test_each_line_is_json_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    lines = [json.loads(line) for line in written(tmp_path / "web.log", SAID)]
    assert lines[0] == {"message": "of ours"}
    assert [line["message"] for line in lines[1:]] == [
        "Traceback (most recent call last):",
        "\ufffd",
        "ValueError: x",
        "[1]",
    ]
    assert {line["logger"] for line in lines[1:]} == {"web"} and lines[1]["time"].endswith("Z")


def test_text_stays_as_it_is(tmp_path: Path) -> None:
    assert written(tmp_path / "web.log", SAID) == SAID.splitlines()


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-30 LOG:  database system is ready", "INFO"),
        ("FATAL:  sorry, too many clients already", "CRITICAL"),
        ("WARNING: old", "WARNING"),
        ("no level", "INFO"),
    ],
)
def test_the_level_that_a_line_names_is_kept(
    monkeypatch: pytest.MonkeyPatch, line: str, level: str
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    wrapped = logs.as_line(line.encode(), "postgres").decode()
    assert json.loads(wrapped)["level"] == level
    assert logs.message_of(wrapped) == line == logs.message_of(line)


def test_a_line_on_the_terminal_names_its_part(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    lines: list[str] = []
    stack = object.__new__(supervisor.Stack)
    monkeypatch.setattr(stack, "_put", lines.append)
    stack.say("web", '{"message": "of ours"}')
    stack.say("eval", "ended with status 1")
    assert json.loads(lines[0]) == {"message": "of ours", "process": "web"}
    assert json.loads(lines[1])["process"] == "eval"


def test_a_server_never_waits_for_who_reads_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a supervisor that is frozen does not read."""
    monkeypatch.setenv("LOG_FORMAT", "json")
    monkeypatch.setattr(servers, "write_lines", lambda *_: None)
    program = (
        "import os, sys\n"
        "for _ in range(100):\n"
        "    try: os.write(1, b'x' * 65536)\n"
        "    except BlockingIOError: pass\n"
    )
    layout = Layout.of(tmp_path)
    (layout.data / "logs").mkdir(parents=True)
    command = [sys.executable, "-c", program]
    server = servers.Server("postgres", command, signal.SIGINT, layout, lambda: True)
    server.start()
    assert isinstance(server.process, subprocess.Popen) and server.process.wait(300) == 0


def test_what_a_server_says_is_json_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    layout = Layout.of(tmp_path)
    (layout.data / "logs").mkdir(parents=True)
    command = [sys.executable, "-c", "print('FATAL:  no disk.')"]
    server = servers.Server("postgres", command, signal.SIGINT, layout, lambda: True)
    server.start()
    eventually(lambda: layout.log("postgres").read_text().endswith("\n"))
    assert json.loads(layout.log("postgres").read_text())["logger"] == "postgres"
    assert servers.reason(layout.log("postgres")) == "FATAL:  no disk"


@pytest.mark.parametrize("as_json", [True, False])
def test_what_somebody_sent_forges_no_line(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json" if as_json else "text")
    forged = "2026-11-30T20:00:00.000Z INFO flywheel.access: all is well"
    sent = f"run-1\n{forged}\r{forged}\x1b[2J"
    try:
        raise ValueError(sent)
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("apps", logging.ERROR, __file__, 1, "not %s", (sent,), told)
    with logs.about(request="r"):
        text = logs.Line().format(record)
    assert "Traceback" in text and "\r" not in text and "\x1b" not in text
    assert not any(line.startswith("2026-11-30T20:00") for line in text.split("\n"))
