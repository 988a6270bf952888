"""What granian gets from Django."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse

from flywheel.web import at_once


def test_a_response_is_given_in_one_piece_and_closed_and_a_stream_as_it_is() -> None:
    closed: list[Any] = []

    def pieces() -> Iterator[bytes]:
        yield b"a"

    small, stream = HttpResponse(b"done"), StreamingHttpResponse(pieces())
    for response in (small, stream):
        response.close = lambda response=response: closed.append(response)  # type: ignore[method-assign]
    answers = {"/": small, "/stream": stream}
    application = at_once(lambda environ, start: answers[environ["PATH_INFO"]])
    assert application({"PATH_INFO": "/"}, print) == [b"done"] and closed == [small]
    assert application({"PATH_INFO": "/stream"}, print) is stream and closed == [small]
