"""From bytes to JSON values that can be kept: decoded, one row of a batch after the other, and
cleaned. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import re2

from workers.lib.storable import storable
from workers.lib.typed import FormError

MAX_DEPTH = 60


def _pattern(text: str) -> Any:
    """For raw bytes. RE2 is ten times as fast here as Python's own."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(text.encode(), options)


# NUL, surrogates, numbers beyond 64 bits: what the quick decoder would let through or cannot hold.
# Digits inside a string, as in an id or a time in nanoseconds, are no number.
SUSPICIOUS = _pattern(r"\\u(?:0000|[dD][89a-fA-F])|(?:^|[\[:,\s])-?[0-9]{18}|\x00")
# Of eighteen digits in a row six are among every third byte, next to each other. Ids in hex seldom
# have so many.
STRIDE, SIX_DIGITS = 3, b"000000"
DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 1 for byte in range(256))


def is_suspicious(body: bytes) -> bool:
    """Whether the quick decoder may not read it. Of most bodies a glance says that it may."""
    is_near = b"\\u" in body or b"\x00" in body or SIX_DIGITS in body[::STRIDE].translate(DIGITS)
    return is_near and SUSPICIOUS.search(body) is not None


class RowError(FormError):
    """A row that is not of the form."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


@dataclass(slots=True)
class Decoded:
    """JSON that has no character, number or NaN that cannot be kept: it needs no cleaning.

    `shallow`: it has too few brackets to be nested deeper than MAX_DEPTH.
    """

    value: Any
    shallow: bool = False

    @property
    def too_deep(self) -> bool:
        return not self.shallow and deeper(self.value, MAX_DEPTH)


class Cleaner:
    """Makes values such as PostgreSQL and UTF-8 can keep, and notes what it mended."""

    def __init__(self) -> None:
        self.warnings: list[dict] = []

    def clean(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """The value without NUL and lone surrogates. Raises RowError for NaN, giant numbers and
        depth.
        """
        if depth > MAX_DEPTH:
            raise RowError(path, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(path, "NaN and infinity are not JSON numbers")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
            raise RowError(path, "number out of range")
        if isinstance(value, list | tuple):
            return [
                self.clean(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)
            ]
        if isinstance(value, dict):
            return {
                self._text(str(key), path): self.clean(
                    item, f"{path}.{key}" if path else str(key), depth + 1
                )
                for key, item in value.items()
            }
        return value

    def _text(self, value: str, path: str) -> str:
        mended = storable(value)
        if mended != value:
            self.warnings.append(
                {
                    "path": printable(path),
                    "warning": "an invalid character (NUL or an unpaired surrogate) was replaced",
                }
            )
        return mended


def printable(path: str) -> str:
    return storable(path)[:200]


def clean(value: Any) -> Any:
    """See Cleaner.clean."""
    return Cleaner().clean(value)


def deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested deeper than that, level by level."""
    layer = [value] if type(value) in (dict, list) else []
    for _ in range(levels + 1):
        if not layer:
            return False
        layer = [
            item
            for container in layer
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
    return bool(layer)


def loads(body: bytes | bytearray) -> Any:
    """JSON, strictly. Raises RowError."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RowError("", f"not JSON: {error}") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def decode(body: Any) -> Decoded | Any:
    """One JSON value: fast if nothing in it can be wrong, otherwise with Python's parser. Raises
    RowError.
    """
    text = bytes(body)
    if not is_suspicious(text):
        try:
            return Decoded(
                msgspec.json.decode(text), text.count(b"{") + text.count(b"[") <= MAX_DEPTH
            )
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # the slow path reports the error
    return loads(text)


def split(body: bytes | bytearray, ndjson: bool) -> list[memoryview]:
    """The undecoded rows of a batch: of a JSON array, or one a line. Raises RowError if the array
    is broken.
    """
    if not ndjson and next((byte for byte in body if byte not in b" \t\r\n"), None) == ord("["):
        try:
            return [memoryview(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, RecursionError):
            # Half a surrogate pair in one row, which the quick decoder refuses, must not cost the
            # others.
            return [memoryview(json.dumps(item).encode()) for item in loads(body)]
    return list(_lines(body))


def _lines(body: bytes | bytearray) -> Iterator[memoryview]:
    view, start = memoryview(body), 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        if body[start:end].strip():
            yield view[start:end]
        start = end + 1


def decoded(parts: Iterable[memoryview]) -> Iterator[Any]:
    """Each part decoded when its turn comes; a broken one is yielded as its RowError."""
    for part in parts:
        try:
            yield decode(part)
        except RowError as error:
            yield error
