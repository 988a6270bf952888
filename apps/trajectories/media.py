"""Pictures, sounds and files in messages. Embedded ones are kept apart from their run and stand in
it as a reference, `flywheel-media:SHA256#encoding` in place of the base64; `put_back` is the exact
reverse. An uploaded file is sent as `flywheel-media:SHA256`, where a part of a message says to be a
medium. Anywhere else these words are text, which anybody may write: it is kept with one colon more
(`flywheel-media::`), so that it names nothing, and given back without it. Pure.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.lib.messages import is_reasoning

SCHEME = "flywheel-media:"
QUOTED = f"{SCHEME}:"  # that somebody wrote in a text
REFERENCE = re.compile(SCHEME + r"([0-9a-f]{64})(?:#(base64(?:url)?(?:-unpadded)?|text))?")
SHORTEST = 128  # characters of base64: what is shorter stays in its message
TEXT_FROM = 4_096  # a text in which embedded media are looked for
ODD_FROM = 65_536  # base64 in a form of its own (line breaks, wrong padding) is kept as a text
MOST = 1_000  # of one run
MOST_BACK = 128 * 2**20  # bytes that are put back into one answer: one run has at most half
MAX_PIXELS = 40_000_000  # a picture that a page shows: unpacked, 160 MB in the browser

_DATA_URL = re.compile(r"data:[^,\s]{0,200};base64,", re.IGNORECASE)
_WHOLE_DATA_URL = re.compile(r"data:[A-Za-z0-9.+/;=-]{0,100};base64,[A-Za-z0-9+/=_\s-]*")
# How the base64 of PNG, JPEG, GIF, WebP and WAV, PDF, Ogg, MP3 and FLAC begins.
_BEGINS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "JVBERi0", "T2dnUw", "SUQz", "ZkxhQ")
_IN_TEXT = re.compile(
    r"(?:(?<=;base64,)[A-Za-z0-9+/_-]|(?<=\")(?:"
    + "|".join(map(re.escape, _BEGINS))
    + r"))[A-Za-z0-9+/_-]{1000,}={0,2}(?![A-Za-z0-9+/_=\\-])"
)
_NOT_READ = frozenset({"role", "tool_calls", "function_call", "reasoning", "thinking", "name"})
DECLARES = ("media_type", "mime_type", "mimeType", "mediaType", "format")
_KINDS = ("image", "audio", "video", "file", "document", "blob", "uri")
_HOLDERS = {
    *("data", "file_data", "bytes", "blob", "content", "base64", "b64_json", "result", "url"),
    *("image", "images", "image_url", "audio", "video", "uri", "file_uri", "fileUri"),
}


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What bytes are; the size of a picture in pixels."""

    media_type: str
    width: int | None = None
    height: int | None = None

    @property
    def kind(self) -> str:
        """“image” and “audio” are those that a page may show; everything else is “file”."""
        if self.media_type.startswith("image/"):
            fits = 0 < (self.width or 0) * (self.height or 0) <= MAX_PIXELS
            return "image" if fits else "file"
        return "audio" if self.media_type.startswith("audio/") else "file"


def sniff(data: bytes) -> Sniffed:
    """By the first bytes alone. SVG, HTML and all that browsers would interpret is plain bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        return Sniffed("image/png", *struct.unpack(">II", data[16:24]))
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return Sniffed("image/gif", *struct.unpack("<HH", data[6:10]))
    if data.startswith(b"\xff\xd8\xff"):
        return Sniffed("image/jpeg", *_jpeg_size(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Sniffed("image/webp", *_webp_size(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return Sniffed("audio/wav")
    if data.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")):
        return Sniffed("audio/mpeg")
    if data.startswith(b"OggS"):
        return Sniffed("audio/ogg")
    if data.startswith(b"fLaC"):
        return Sniffed("audio/flac")
    if data[4:11] == b"ftypM4A":
        return Sniffed("audio/mp4")
    return Sniffed("application/pdf" if data.startswith(b"%PDF-") else "application/octet-stream")


def _jpeg_size(data: bytes) -> tuple[int | None, int | None]:
    """Of the first frame, as decoders find it: from marker to marker."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        elif marker == 0xDA:
            break
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None, None


def _webp_size(data: bytes) -> tuple[int | None, int | None]:
    kind, head = data[12:16], data[20:30]
    if len(head) < 10:
        return None, None
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", head[6:10])
        return width & 0x3FFF, height & 0x3FFF
    return None, None


@dataclass(slots=True)
class Lifted:
    """Messages without what was embedded in them, which is in `data` by its SHA-256; `references`
    are all, also those that were sent in place of a medium.
    """

    messages: list[Any]
    data: dict[str, bytes] = field(default_factory=dict)
    references: set[str] = field(default_factory=set)


def lift(messages: list[Any]) -> Lifted:
    found = Lifted(messages)

    def take(payload: str) -> str | None:
        """The reference in place of base64; None for what is none."""
        if len(found.data) >= MOST:
            return None
        raw, encoding = _decoded(payload)
        if not encoding:
            return None
        digest = hashlib.sha256(raw).hexdigest()
        found.data[digest] = raw
        return f"{SCHEME}{digest}#{encoding}"

    def change(text: str, is_medium: bool) -> str:
        if SCHEME in text:
            if is_medium and (sent := _whole_reference(text)):
                found.references.add(sent[1])
                return text
            text = text.replace(SCHEME, QUOTED)
        if len(text) < SHORTEST:
            return text
        if head := _DATA_URL.match(text):
            if reference := take(text[head.end() :]):
                return text[: head.end()] + reference
        elif (is_medium or text.startswith(_BEGINS)) and (reference := take(text)):
            return reference
        if len(text) >= TEXT_FROM and _may_hold(text):
            return _IN_TEXT.sub(lambda match: take(match[0]) or match[0], text)
        return text

    found.messages = _changed(messages, change)
    found.references |= found.data.keys()
    return found


def _may_hold(text: str) -> bool:
    return ";base64," in text or any(f'"{begin}' in text for begin in _BEGINS)


def is_embedded(text: str) -> bool:
    """Whether a text is nothing but a reference or a data URL, or the base64 of a medium that is
    known by how it begins.
    """
    if text.startswith((SCHEME, "data:")):
        return _whole_reference(text) is not None or _WHOLE_DATA_URL.fullmatch(text) is not None
    return len(text) >= SHORTEST and text.startswith(_BEGINS) and bool(_BASE64.fullmatch(text))


def _whole_reference(text: str) -> re.Match[str] | None:
    """Of a text that is nothing else, or the data URL of one."""
    head = _DATA_URL.match(text)
    return REFERENCE.fullmatch(text, head.end() if head else 0)


def unquoted(text: str) -> str:
    """As it was written."""
    return text.replace(QUOTED, SCHEME)


@dataclass(slots=True)
class Room:
    """How many bytes may still be put back into an answer."""

    left: int = field(default_factory=lambda: MOST_BACK)


def put_back(
    messages: list[Any], read: Callable[[str], tuple[bytes, str] | None], room: Room | None = None
) -> list[Any]:
    """The messages as they were sent: `read` gives the bytes of a digest and their type. Uploaded
    files become data URLs; what cannot be read, or has no `room` left, stays a reference.
    """
    room = room or Room()

    def change(text: str, is_medium: bool) -> str:
        if SCHEME not in text:
            return text

        def original(match: re.Match[str]) -> str:
            encoding = match[2] or ("" if match[0] != text else "url")
            if not encoding or room.left <= 0 or (medium := read(match[1])) is None:
                return match[0]
            data, media_type = medium
            room.left -= len(data)
            if room.left < 0:
                return match[0]
            if encoding == "url":
                return f"data:{media_type};base64,{b64encode(data).decode()}"
            return _encoded(data, encoding)

        return unquoted(REFERENCE.sub(original, text))

    return _changed(messages, change)


def references(messages: list[Any]) -> set[str] | None:
    """The digests that messages refer to; None if `put_back` would change nothing."""
    found: set[str] = set()
    is_changed = False

    def change(text: str, is_medium: bool) -> str:
        nonlocal is_changed
        if SCHEME in text:
            is_changed = True
            found.update(match[1] for match in REFERENCE.finditer(text))
        return text

    _changed(messages, change)
    return found if is_changed else None


Change = Callable[[str, bool], str]


def _changed(messages: list[Any], change: Change) -> list[Any]:
    """The messages with some of their texts changed; the same list if none is."""
    made = [_message(message, change) if type(message) is dict else message for message in messages]
    return messages if all(map(_is, made, messages)) else made


def _is(one: Any, other: Any) -> bool:
    return one is other


def _message(message: dict, change: Change) -> dict:
    copy = message
    for name, value in message.items():
        kind = type(value)
        if kind is str:
            if name != "content" or (len(value) < SHORTEST and SCHEME not in value):
                continue
            new: Any = change(value, False)
        elif (kind is not list and kind is not dict) or name in _NOT_READ:
            continue
        else:
            new = _walk(value, change, name in _HOLDERS and name != "content", name)
        if new is not value:
            copy = (dict(message) if copy is message else copy) | {name: new}
    return copy


def _walk(value: Any, change: Change, declared: bool, name: str) -> Any:
    if isinstance(value, str):
        return change(value, declared and name in _HOLDERS)
    if isinstance(value, list):
        made = [_walk(item, change, declared, name) for item in value]
        return value if all(map(_is, made, value)) else made
    if not isinstance(value, dict) or is_reasoning(value):
        return value
    declared = declared or declares(value)
    new = {key: _walk(item, change, declared, key) for key, item in value.items()}
    return value if all(map(_is, new.values(), value.values())) else new


def declares(part: Mapping[str, Any]) -> bool:
    """Whether a part says to be a medium."""
    kind = part.get("type")
    return (isinstance(kind, str) and any(one in kind for one in _KINDS)) or any(
        isinstance(part.get(name), str) for name in DECLARES
    )


def _decoded(text: str) -> tuple[bytes, str]:
    """The bytes of base64 and the encoding by which they become the same text again; "" for what is
    none.
    """
    plain = text.replace("-", "+").replace("_", "/")
    missing = -len(text) % 4
    encoding = f"base64{'' if plain == text else 'url'}{'-unpadded' if missing else ''}"
    try:
        raw = binascii.a2b_base64(plain + "=" * missing, strict_mode=True)
    except (ValueError, binascii.Error):
        raw = b""
    if raw and _encoded(raw, encoding) == text:
        return raw, encoding
    odd = len(text) >= ODD_FROM and _ODD.fullmatch(text)
    return (text.encode(), "text") if odd else (b"", "")


_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_ODD = re.compile(r"[A-Za-z0-9+/_=\s-]*")


def _encoded(data: bytes, encoding: str) -> str:
    if encoding == "text":
        return data.decode(errors="replace")
    text = (urlsafe_b64encode if "url" in encoding else b64encode)(data).decode()
    return text.rstrip("=") if encoding.endswith("-unpadded") else text
