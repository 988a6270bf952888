"""Where a child's events enter: nothing gets through that PostgreSQL cannot hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.events import parse_event


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"a\\u0000b"', "a\ufffdb"),
        ('"half \\ud83d"', "half \ufffd"),
        ('"whole \\ud83d\\ude00"', "whole \U0001f600"),
        ('{"\\u0000": ["\\u0000"]}', {"\ufffd": ["\ufffd"]}),
        ("NaN", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("1e400", None),
        ("-1e400", None),
        ("1.5", 1.5),
        ("12345678901234567", 12345678901234567),
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("1" * 400, None),
        ("1" * 5000, None),
        ("true", True),
    ],
)
def test_what_the_database_cannot_hold_is_mended(written: str, read: Any) -> None:
    event = parse_event(f'{{"type": "log", "seq": 1, "value": {written}}}'.encode())
    assert event is not None and event["value"] == read and type(event["value"]) is type(read)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'{"type": "log"}',
        b'{"seq": 1}',
        b'{"seq": 1.5, "type": "log"}',
        b"\xff",
        b"[" * 9000,
    ],
)
def test_what_is_no_event_is_none(line: bytes) -> None:
    assert parse_event(line) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner),
)


@pytest.mark.proof
@given(ANY)
def test_every_event_comes_out_storable(value: Any) -> None:
    event = parse_event(json.dumps({"type": "x", "seq": 1, "value": value}).encode())
    text = json.dumps(event, ensure_ascii=False, allow_nan=False)
    assert "\\u0000" not in text and text.encode()
