"""Input and output of the protocol: JSON of bounded size and depth. No input may cause a 500."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from workers.lib.storable import storable_json

MiB = 2**20
MAX_TOOL, MAX_ROW, MAX_METRICS = 1 * MiB, 16 * MiB, 64 * MiB
MAX_DRAINED = 64 * 1024
MAX_DEPTH = 64
LARGEST_INTEGER = (
    10**300
)  # what a float can hold; larger numbers would break sums and PostgreSQL's JSON


class Refusal(Exception):
    """The caller's error, and what to do: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def read(request: HttpRequest, most: int) -> bytes:
    """The body. Raises Refusal (413) before more than `most` bytes are in memory."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > most:
        raise _too_large(most)
    stream, body = _stream(request), bytearray()
    while len(body) <= most and (piece := stream.read(min(MiB, most + 1 - len(body)))):
        body += piece
    if len(body) > most:
        raise _too_large(most)
    return bytes(body)


def drain(request: HttpRequest) -> None:
    """Reads the rest of a small refused body, since the server closes a connection with an unread
    one.

    Otherwise a client with a keep-alive connection would lose its next request. Larger bodies are
    not worth reading.
    """
    if int(request.META.get("CONTENT_LENGTH") or 0) <= MAX_DRAINED:
        with suppress(OSError):  # the caller has gone
            _stream(request).read(MAX_DRAINED)


def _stream(request: HttpRequest) -> Any:
    chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    # Django reads nothing without a Content-Length.
    return request.META["wsgi.input"] if chunked else request


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"The body is larger than {most // MiB} MiB.")


def parts(body: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, undecoded, so that they can be given back byte for byte. Raises
    Refusal.
    """
    return _decoded(body, dict[str, msgspec.Raw])


def value_of(body: bytes | msgspec.Raw) -> Any:
    """The JSON value, without NUL characters (PostgreSQL stores none). Raises Refusal."""
    found = _decoded(body, Any)
    check_bounds(found)
    return storable_json(found) if b"\\u0000" in bytes(body) else found


def object_of(body: bytes, what: str) -> dict:
    """Raises Refusal if the body is not a JSON object; an empty body is an empty one."""
    found = value_of(body) if body.strip() else {}
    if not isinstance(found, dict):
        raise Refusal(422, f"{what} must be a JSON object.")
    return found


def _decoded(body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"The body must be a JSON object: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"The body is not JSON: {error}.") from error
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> Refusal:
    return Refusal(422, f"The body is nested deeper than {MAX_DEPTH} levels.")


def check_bounds(value: Any) -> None:
    """That a JSON value is not nested too deeply and has no giant number. Level by level, so that
    no depth is too much for it. Raises Refusal."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(item, int) and abs(item) > LARGEST_INTEGER for item in level):
            raise Refusal(422, "A number in the body has more than 300 digits.")
        level = [
            inner for item in level if isinstance(item, dict | list) for inner in _inside(item)
        ]
        if not level:
            return
    raise _too_deep()


def _inside(item: dict | list) -> Any:
    return item.values() if isinstance(item, dict) else item


def answer(value: Any, status: int = 200) -> HttpResponse:
    """JSON; `msgspec.Raw` members are included unchanged, and no number in it is NaN."""
    return HttpResponse(msgspec.json.encode(value), content_type="application/json", status=status)
