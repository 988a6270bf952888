"""From bytes to JSON records: lines, or the items of an array, one at a time; a bad one does not
end the file.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

from apps.trajectories.decoding import Cleaner, RowError
from apps.trajectories.importers.encodings import examples, guesses, wide_encoding

SAMPLE = 256 * 1024
MAX_MENDED = 20  # replaced characters of a file that are reported one by one
CHUNK = 1024 * 1024
MAX_RECORD = 64 * 1024 * 1024
SPACE = re.compile(r"\s*")
DECODER = json.JSONDecoder()
Record = tuple[int, Any]  # (position from 1, a JSON value or a RowError)


class ImportError_(Exception):
    """A file that cannot be read at all; the message is a sentence for the page."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Counted:
    """A file that counts what was read of it and can be given its first bytes back."""

    def __init__(self, file: Readable) -> None:
        self._file, self._head, self.count = file, b"", 0

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head, b""
            return data
        data = self._file.read(size)
        self.count += len(data)
        return data

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (data := self._file.read(size - len(self._head))):
            self.count += len(data)
            self._head += data
        return self._head


class Source:
    """The bytes of a file, gzip or not, with its first `SAMPLE` bytes to look at.

    `taken` is how many bytes of the (packed) file were read. Raises ImportError_ if the file cannot
    be read, its gzip is broken, or more than `limit` bytes come out of it; with `stop` it ends
    there instead, and says so in `stopped`. `mended` has the first notes about rows that were read
    all the same, [{position, path, warning}]; `mendings` counts them all. `columns`: the names in a
    table's header. What it gives is UTF-8, whatever the file's `encoding`: one that was chosen, or
    the first of `guesses`, where it cannot be known; `examples` shows them.
    """

    def __init__(
        self,
        file: Readable,
        name: str,
        limit: int | None = None,
        stop: bool = False,
        encoding: str = "",
    ) -> None:
        self.name, self.stopped, self.limit, self.may_stop, self._out = name, False, limit, stop, 0
        self.mended: list[dict] = []
        self.mendings = 0
        self.columns: list[str] = []
        self._raw: Any = _Counted(file)
        self._file: Any = self._raw
        if self._guard(lambda: self._raw.peek(2)) == b"\x1f\x8b":
            self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")
        self._decoder: codecs.IncrementalDecoder | None = None
        self._replaced = False
        self._head = b""
        while len(self._head) < SAMPLE and (data := self._next(SAMPLE - len(self._head))):
            self._head += data
        wide = wide_encoding(self._head)
        self.guesses = [] if wide else guesses(self._head)
        self.is_encoding_guessed = bool(self.guesses) and not encoding
        self.examples = examples(self._head, self.guesses)
        self.encoding = encoding or wide or next(iter(self.guesses), "utf-8")
        if self.encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(self.encoding)("replace")
            self._head = self._recoded(self._head)
        self.sample = self._head

    @property
    def encoding_problem(self) -> str:
        """Why nothing is stored: nobody has confirmed a guess."""
        if not self.is_encoding_guessed:
            return ""
        return (
            f"{self.name} is not UTF-8. It may be {', '.join(self.guesses[:4])}: preview it, and"
            " choose its encoding."
        )

    def switch(self, file: Readable) -> None:
        """Goes on with what a program made of the file."""
        self._file, self._decoder, self._head, self._out = file, None, b"", 0
        while len(self._head) < SAMPLE and (data := self._next(SAMPLE - len(self._head))):
            self._head += data
        self.sample = self._head

    def _recoded(self, data: bytes, final: bool = False) -> bytes:
        said = self._decoder.decode(data, final)  # type: ignore[union-attr]
        if "\ufffd" in said and not self._replaced:
            self._replaced = True
            warning = f"has bytes that are not {self.encoding}: they are shown as \ufffd"
            self.note(1, [{"path": "", "warning": warning}])
        return said.encode("utf-8", "replace")

    @property
    def bytes_read(self) -> int:
        return self._raw.count

    def note(self, position: int, warnings: list[dict]) -> None:
        self.mendings += len(warnings)
        self.mended += [
            {"position": position} | warning
            for warning in warnings[: MAX_MENDED - len(self.mended)]
        ]

    @property
    def read_bytes(self) -> int:
        """Bytes that came out of it so far, unpacked."""
        return self._out

    def read(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        data = self._next(size)
        return self._recoded(data, not data) if self._decoder else data

    def _next(self, size: int) -> bytes:
        if self.stopped:
            return b""
        data = self._guard(lambda: self._file.read(size))
        self._out += len(data)
        if self.limit is not None and self._out > self.limit:
            if not self.may_stop:
                raise ImportError_(
                    f"{self.name} holds more than {self.limit // 2**20} MiB. Split it."
                )
            self.stopped = True
            return data[: self.limit - self._out]
        return data

    def _guard(self, read: Any) -> bytes:
        try:
            return read()
        except ImportError_:
            raise
        except (
            Exception
        ) as error:  # gzip, the disk, and remote file systems each raise what they like
            raise ImportError_(
                f"{self.name} cannot be read: {error or type(error).__name__}"
            ) from error


def records(source: Source) -> tuple[str, Iterator[Record]]:
    """What positions count ("line" or "item") and the records. Raises ImportError_ for what is not
    JSON at all.
    """
    sample = source.sample.removeprefix(codecs.BOM_UTF8).lstrip()
    if not sample:
        raise ImportError_(f"{source.name} is empty.")
    if sample[:1] == b"[":
        return "item", cleaned(_documents(source, array=True), source)
    if sample[:1] != b"{":
        raise ImportError_(
            f"{source.name} is not JSON or JSON Lines (it begins with {sample[:20]!r})."
        )
    if _is_lines(sample):
        return "line", cleaned(_lines(source), source)
    return "item", cleaned(_documents(source, array=False), source)


def _is_lines(sample: bytes) -> bool:
    """Whether each line is a record; else a record goes over many lines."""
    first, _, rest = sample.partition(b"\n")
    if not rest.strip():
        return True
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return rest.lstrip(b"\r\n")[:1] == b"{"
    return True


def cleaned(found: Iterator[Record], source: Source) -> Iterator[Record]:
    for position, value in found:
        cleaner = Cleaner()
        try:
            value = value if isinstance(value, RowError) else cleaner.clean(value)
        except RowError as error:
            value = error
        source.note(position, cleaner.warnings)
        yield position, value


def _lines(source: Source) -> Iterator[Record]:
    for number, line in enumerate(_split(source), 1):
        if isinstance(line, RowError):
            yield number, line
        elif line := line.removeprefix(codecs.BOM_UTF8).strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, RowError("", f"not JSON: {error}")


def _split(source: Source) -> Iterator[bytes | RowError]:
    held: list[bytes] = []
    size = 0
    while chunk := source.read(CHUNK):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield _whole(held, size, end)
            held, size = [], 0
        size += len(rest)
        if size <= MAX_RECORD:
            held.append(rest)
    if size:
        yield _whole(held, size, b"")


def _whole(held: list[bytes], size: int, end: bytes) -> bytes | RowError:
    if size + len(end) > MAX_RECORD:
        return RowError("", f"longer than {MAX_RECORD // 2**20} MiB")
    return b"".join([*held, end])


def _documents(source: Source, array: bool) -> Iterator[Record]:
    """The items of an array, or objects one after another. What follows a broken one cannot be
    found: it is the last.
    """
    window, number = _Window(source), 0
    try:
        if array:
            window.skip()
            window.at += 1
        while mark := window.skip():
            if array and mark == "]":
                return
            if array and number:
                if mark != ",":
                    raise RowError("", "not JSON: a comma is missing here")
                window.at += 1
            number += 1
            yield number, window.decode()
        if array:
            raise RowError("", "not JSON: the array ends too early")
    except RowError as error:
        yield max(number, 1), error


class _Window:
    """The text that is read and not yet parsed."""

    def __init__(self, source: Source) -> None:
        self.text, self.at, self._ended = "", 0, False
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()

    def skip(self) -> str:
        """The next character that is not a space; "" at the end."""
        while True:
            self.at = SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or self._ended:
                return self.text[self.at : self.at + 1]
            self._grow()

    def decode(self) -> Any:
        """The next JSON value. Raises RowError."""
        while True:
            self.skip()
            try:
                value, end = DECODER.raw_decode(self.text, self.at)
                if end < len(self.text) or self._ended:
                    self.at = end
                    return value
            except (ValueError, RecursionError) as error:
                if self._ended or not isinstance(error, json.JSONDecodeError):
                    raise RowError("", f"not JSON: {error}") from error
            self._grow()

    def _grow(self) -> None:
        """Reads as much again as is held, so that a long record is tried few times."""
        held = self.text[self.at :]
        if len(held) > MAX_RECORD:
            raise RowError("", f"not JSON, or longer than {MAX_RECORD // 2**20} MiB")
        parts, wanted = [held], max(CHUNK, len(held))
        while wanted > 0 and not self._ended:
            data = self._source.read(wanted)
            self._ended = not data
            wanted -= len(data)
            try:
                parts.append(self._decoder.decode(data, final=self._ended))
            except UnicodeDecodeError as error:
                raise RowError("", f"not UTF-8: {error}") from error
        self.text, self.at = "".join(parts), 0
