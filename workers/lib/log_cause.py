"""The error that ended a program, found in the last lines of its log. Pure.

Programs of several processes write one log: each line may begin with its process, a level and a
time. A failure is raised in one process, logged there with a traceback, and then reported by
others, whose lines only point at it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

LONGEST = 300  # characters of what is quoted
ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\-~])|\x1b"
)
TIME = r"(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
LEVEL = r"(?P<level>TRACE|DEBUG|INFO|SUCCESS|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
PROCESS = re.compile(r"(?:\([\w.:-]+(?: [\w.:-]+)*(?: pid=\d+)?[^()]*\)|\[rank\d+\]:?)\s?")
HEADS = (
    re.compile(rf"{LEVEL} {TIME} \[[^\]]*\] ?"),  # vLLM
    re.compile(rf"\[?{TIME}\]?(?: [|-])? ?\[?{LEVEL}\b\]?\s*(?:\|[^|]*? - |- [\w.]+ - |[|:-])? ?"),
    re.compile(rf"\[?{TIME}\]?(?: -)?(?: [\w.]+)? - {LEVEL} - ?"),
    re.compile(rf"\[?{LEVEL}\]?(?::[\w.]+)?:\s*|\[{LEVEL.replace('level', 'alone')}\]\s*"),
    re.compile(rf"{LEVEL}\s+(?=\S)"),
    re.compile(r"\[?(?P<level>[DIWEF])\d{4} \d\d:\d\d:\d\d[^\]]*\] ?"),  # glog, PyTorch's C++
)
SERIOUS = frozenset(("ERROR", "CRITICAL", "FATAL", "E", "F"))
TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:\([\w.]+\))?(?::|$)")
# What programs in C++ and Rust write before they abort: the message, or a line before it.
THROWN = re.compile(r"what\(\):\s*(?P<message>.*)|thread '[^']*' (?:\(\d+\) )?panicked at [^,']+:$")
CHAINED = re.compile(r"During handling of the above exception")
UNNAMED = re.compile(r"\b(?:error|exception|fatal|abort(?:ed)?|illegal instruction)\b", re.I)
# Lines that point at another one.
POINTER = re.compile(
    r"\bsee (?:the )?(?:root cause|(?:stack ?)?trace(?:back)?|errors?|logs?|output|messages?)\b"
    r"|failed core proc|engine ?(?:core|process) (?:initialization )?failed|sub-exceptions?\)"
    r"|exception in a background process|^(?:[\w.]+\.)?(?:EngineDeadError|SystemExit)\b"
    r"|^(?:multiprocessing\.\S+RemoteTraceback|concurrent\.\S+RemoteTraceback)",
    re.IGNORECASE,
)
MARGIN = re.compile(r"^[ +|-]*\| ?")  # of the parts of an exception group
MORE = re.compile(r"For further information visit \S+")


@dataclass(frozen=True)
class Line:
    process: str
    level: str  # "" without one
    text: str  # with its indentation

    @property
    def is_serious(self) -> bool:
        return not self.level or self.level in SERIOUS


@dataclass(frozen=True)
class Cause:
    text: str
    kind: Literal["error", "pointer", "last"]


def plain(text: str) -> str:
    """The text without ANSI escapes."""
    return ANSI.sub("", text)


def parsed(line: str) -> Line:
    text, process = plain(line).rstrip(), ""
    if text.startswith("{") and (structured := _structured(text)):
        return structured
    while prefix := PROCESS.match(text):
        process, text = process + prefix[0].strip(), text[prefix.end() :]
    for head in HEADS:
        if match := head.match(text):
            groups = match.groupdict()
            level = groups.get("level") or groups.get("alone") or ""
            return Line(process, level.upper(), text[match.end() :])
    return Line(process, "", text)


def _structured(text: str) -> Line | None:
    """A log line that is a JSON object."""
    try:
        row = json.loads(text)
    except ValueError:
        return None
    names = ("msg", "message", "event")
    message = next((row[name] for name in names if isinstance(row.get(name), str)), None)
    level = next((row[name] for name in ("level", "levelname", "severity") if name in row), "")
    return None if message is None else Line("", str(level).upper(), message)


def cause(lines: Iterable[str]) -> Cause:
    """What the log says about why the program ended.

    The first exception of the first traceback; without one, the first line that is an exception;
    without one, the message of an exception in C++ or Rust; without one, the last line that reports
    an error; otherwise a line that points at another one; otherwise the last line.
    """
    log = [line for line in map(parsed, lines) if line.text.strip()]
    serious = list(_without_ignored(line for line in log if line.is_serious))
    texts = [line.text.strip() for line in serious]
    reports = [line.text.strip() for line in serious if line.level or UNNAMED.search(line.text)]
    for candidates in (
        _tracebacks(serious),
        _exceptions(serious),
        _thrown(serious),
        reversed(reports),
    ):
        error = next((text for text in candidates if text and not POINTER.search(text)), None)
        if error:
            return Cause(error[:LONGEST], "error")
    if pointer := next((text for text in reversed(texts) if POINTER.search(text)), None):
        return Cause(pointer[:LONGEST], "pointer")
    return Cause(log[-1].text.strip()[:LONGEST] if log else "", "last")


def _without_ignored(lines: Iterable[Line]) -> Iterator[Line]:
    """Without exceptions in destructors, which Python reports and ignores."""
    ignored = False
    for line in lines:
        if ignored or line.text.startswith("Exception ignored in"):
            ignored = not EXCEPTION.match(line.text)
        else:
            yield line


def _tracebacks(log: list[Line]) -> Iterator[str]:
    """The exception of each traceback, in the order in which they begin. The first line of the
    first one may be missing, since only the end of the log is kept.
    """
    begun: set[str] = set()
    for at, line in enumerate(log):
        is_frame = line.text.lstrip().startswith('File "') and line.process not in begun
        if not is_frame and not TRACEBACK.search(line.text):
            continue
        begun.add(line.process)
        yield _exception(_after(log, at))


def _exceptions(log: list[Line]) -> Iterator[str]:
    """Lines that are exceptions, without a traceback."""
    for at, line in enumerate(log):
        if EXCEPTION.match(line.text.strip()):
            yield _exception([line.text.strip(), *_after(log, at)])


def _thrown(log: list[Line]) -> Iterator[str]:
    """The messages of exceptions in C++ and of panics in Rust."""
    for at, line in enumerate(log):
        if thrown := THROWN.match(line.text.strip()):
            yield thrown["message"] or " ".join(text.strip() for text in _after(log, at)[:1])


def _after(log: list[Line], at: int) -> list[str]:
    """The further lines of the same process."""
    return [line.text for line in log[at + 1 :] if line.process == log[at].process]


def _exception(texts: list[str]) -> str:
    """The exception in which a traceback ends, from the lines behind its first: what is not
    indented, with the further lines of its message and with what was raised while it was handled.
    """
    texts = [MARGIN.sub("", text) for text in texts]
    at = next((index for index, text in enumerate(texts) if not text[:1].isspace()), len(texts))
    if at == len(texts):
        return ""
    message, rest = [texts[at].strip()], texts[at + 1 :]
    while rest and rest[0][:1].isspace() and not rest[0].lstrip().startswith('File "'):
        message.append(rest.pop(0).strip())
    error = MORE.sub("", " ".join(message)).strip()
    if len(rest) > 1 and CHAINED.match(rest[0]) and TRACEBACK.search(rest[1]):
        later = _exception(rest[2:])
        if later and not POINTER.search(later):
            return f"{error[: LONGEST // 3]} → {later}"
    return error
