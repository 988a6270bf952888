"""What a start prints of what it is doing."""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flywheel import progress, up
from flywheel.progress import doing
from flywheel.supervisor import _missing
from tests.flywheel.machine import eventually


def test_what_is_done_at_once_is_not_mentioned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUICK_S", 1e6)
    with doing("Migrating the database"):
        pass
    assert capsys.readouterr().out == ""


def test_what_takes_a_while_is_said_and_then_for_how_long_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUICK_S", 0.0)
    monkeypatch.setattr(progress, "AGAIN_S", 0.01)
    printed = ""

    def has_said_it_again() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed.count("\n") > 1

    with doing("Starting the web server", lambda: "waiting for beat"):
        eventually(has_said_it_again)
    first, second = printed.splitlines()[:2]
    assert first == "Starting the web server …"
    assert re.fullmatch(r"Starting the web server … \d+ s, waiting for beat", second)


@pytest.mark.parametrize(
    ("health", "missing"),
    [
        ('503 {"parts": {"database": true, "beat": false}}', "waiting for beat"),
        ("500 <h1>Server error</h1>", ""),
        ("[Errno 111] Connection refused", ""),
    ],
)
def test_parts_that_are_not_up_are_named(health: str, missing: str) -> None:
    assert _missing(health) == missing


def test_both_addresses_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = SimpleNamespace(url="http://h:1", endpoint_url="http://h:2", serve_forever=lambda: None)
    monkeypatch.setattr(up, "running_stack", lambda host, port: nullcontext(stack))
    up.run("h", 1)
    printed = capsys.readouterr().out
    assert "http://h:1 " in printed and "http://h:2/v1\n" in printed
