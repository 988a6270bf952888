"""A trajectory's content, packed: JSON compressed with Zstandard, cut into chunks so that a long
run is read in parts.

Chunk 0 has {"messages", "tools", "interventions", "metadata", "warnings"}, the others {"messages"}.
Pure.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import zstandard

CHUNK_MESSAGES = 200
CHUNK_BYTES = 256 * 1024
FIELDS = ("messages", "tools", "interventions", "metadata", "warnings")
EMPTY: dict[str, Any] = {
    "messages": [],
    "tools": [],
    "interventions": [],
    "metadata": {},
    "warnings": [],
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_own = threading.local()


def compress(data: bytes) -> bytes:
    """Zstandard at its quickest; a compressor is made once a thread, which half of a small row's
    time went into.
    """
    if not hasattr(_own, "compress"):
        _own.compress = zstandard.ZstdCompressor(level=1).compress
    return _own.compress(data)


def decompress(data: bytes | memoryview) -> bytes:
    """The decompressor is made once a thread, too: with small rows that took longer than the
    work.
    """
    if not hasattr(_own, "decompress"):
        _own.decompress = zstandard.ZstdDecompressor().decompress
    return _own.decompress(data)


def pack(value: dict[str, Any]) -> bytes:
    return compress(_encode(value))


def unpack(data: bytes | memoryview) -> dict[str, Any]:
    return _decode(decompress(data))


def chunks(content: dict[str, Any]) -> list[tuple[int, bytes]]:
    """[(index of the first message, packed)], in order; at least one."""
    messages = content["messages"]
    if len(messages) <= CHUNK_MESSAGES:
        packed = _encode(content)
        if len(packed) <= CHUNK_BYTES or len(messages) == 1:
            return [(0, compress(packed))]
    packs = []
    for first, part in _cut(messages):
        packs.append(
            (first, pack({**content, "messages": part} if first == 0 else {"messages": part}))
        )
    return packs


def _cut(messages: list) -> Iterable[tuple[int, list]]:
    first, size = 0, 0
    for index, message in enumerate(messages):
        length = len(_encode(message))
        if index > first and (index - first >= CHUNK_MESSAGES or size + length > CHUNK_BYTES):
            yield first, messages[first:index]
            first, size = index, 0
        size += length
    yield first, messages[first:]


def join(parts: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """The whole content from its chunks in order; `EMPTY` from none."""
    content: dict[str, Any] = {**EMPTY, "messages": []}
    for number, data in enumerate(parts):
        part = unpack(data)
        if number == 0:
            content |= part
        else:
            content["messages"] = content["messages"] + part["messages"]
    return content
