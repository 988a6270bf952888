"""Bodies that ended before their Content-Length: the client has gone, or was cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from django.core.exceptions import BadRequest

TOO_SHORT = "The body ends before its Content-Length. Send it again."


class WholeBody:
    """A WSGI input that raises BadRequest where it ends too early. Part of a body must not be taken
    for all of it: of NDJSON, CSV or a file it often reads as if it were.
    """

    __slots__ = ("_left", "_stream")

    def __init__(self, stream: Any, length: int) -> None:
        self._stream, self._left = stream, length

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or what is left of the body; never fewer."""
        wanted = self._left if size < 0 else min(size, self._left)
        piece = self._stream.read(wanted)
        while len(piece) < wanted:  # some servers give less than they have
            if not (more := self._stream.read(wanted - len(piece))):
                raise BadRequest(TOO_SHORT)
            piece += more
        self._left -= wanted
        return piece

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(self._left if size < 0 else min(size, self._left))
        self._left -= len(line)
        if not line and self._left and size:
            raise BadRequest(TOO_SHORT)
        return line

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


def whole_bodies(application: Callable[..., Any]) -> Callable[..., Any]:
    """Answers 400 to a request whose body is cut off, whichever view reads it."""

    @wraps(application)
    def answer(sent: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        length = sent.get("CONTENT_LENGTH")
        if length and length.isdecimal() and "HTTP_TRANSFER_ENCODING" not in sent:
            sent["wsgi.input"] = WholeBody(sent["wsgi.input"], int(length))
        return application(sent, start_response)

    return answer
