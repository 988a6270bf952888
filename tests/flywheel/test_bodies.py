"""A body that is cut off is refused, whatever it would mean by itself."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.core.handlers.wsgi import WSGIRequest

from flywheel.bodies import WholeBody, whole_bodies

LINES = b'{"id": "a"}\n{"id": "b"}\n'


def body_through_django(environ: dict[str, Any], start_response: Any) -> bytes:
    return WSGIRequest(environ).body


def environ(body: bytes, length: int | None = None, **more: str) -> dict[str, Any]:
    said = {} if length is None else {"CONTENT_LENGTH": str(length)}
    return {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(body), **said, **more}


def test_a_whole_body_is_read() -> None:
    answer = whole_bodies(body_through_django)
    assert answer(environ(LINES, len(LINES)), None) == LINES
    assert answer(environ(b"", 0), None) == b""
    assert answer(environ(LINES + b"more", len(LINES)), None) == LINES
    assert answer(environ(LINES, None), None) == b""


@pytest.mark.parametrize("cut", [0, 12, len(LINES) - 1])
def test_a_body_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest):
        whole_bodies(body_through_django)(environ(LINES[:cut], len(LINES)), None)


def test_it_is_noticed_by_every_way_of_reading() -> None:
    for read in (
        lambda body: body.read(),
        lambda body: [body.read(5) for _ in range(9)],
        lambda body: [body.readline() for _ in range(9)],
        list,
    ):
        with pytest.raises(BadRequest):
            read(WholeBody(io.BytesIO(LINES), len(LINES) + 1))
    assert list(WholeBody(io.BytesIO(LINES), len(LINES))) == LINES.splitlines(keepends=True)
    assert WholeBody(io.BytesIO(b""), 3).read(0) == b""
