"""Which format a file has, and its rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from apps.trajectories.importers import chat, langfuse, nemo_gym, nvidia_flywheel, swe_agent, tau_bench
from apps.trajectories.importers.records import ImportError_, Readable, Record, Source, records
from apps.trajectories.importers.shapes import Row

READERS: dict[str, Callable[[Iterable[Record], str], Iterator[Row]]] = {
    "chat": chat.rows,
    "tau-bench": tau_bench.rows,
    "nvidia-flywheel": nvidia_flywheel.rows,
    "nemo-gym": nemo_gym.rows,
    "langfuse": langfuse.rows,
    "openai-sft": chat.sft_rows,
    "swe-agent": swe_agent.rows,
}
FORMATS = tuple(READERS)
TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|[{}\[\]:,]')
LINES_LOOKED_AT = 50


@dataclass(frozen=True)
class OpenFile:
    """A file being read: `rows` are (position, raw row or RowError), positions count `unit`s ("line" or "item") from 1."""

    name: str
    format: str
    unit: str
    rows: Iterator[Row]
    source: Source


def read(file: Readable, name: str, format: str = "auto", limit: int | None = None, stop: bool = False) -> OpenFile:
    """Begins to read; at most `limit` bytes, unpacked (see Source). Raises ImportError_, here and while rows are taken."""
    source = Source(file, name, limit, stop)
    unit, found = records(source)
    format = detect(source.sample, name) if format == "auto" else format
    if format not in READERS:
        raise ImportError_(f"There is no format “{format}”. There are: {', '.join(FORMATS)}.")
    return OpenFile(name, format, unit, READERS[format](found, name), source)


def detect(sample: bytes, name: str) -> str:
    """The format, by the fields of the first record in the file's first bytes. Raises ImportError_."""
    keys = first_keys(sample)
    for format, fits in RULES:
        if fits(keys, name):
            return format
    found = ", ".join(sorted(keys)[:12]) or "none"
    raise ImportError_(f"{name} has no known format (fields of its first record: {found}). Say which format it is.")


def _langfuse(keys: set[str], name: str) -> bool:
    owner = {"traceId", "trace_id", "userId", "sessionId", "session_id", "user_id"}
    return (
        "observations" in keys
        or {"data", "meta"} <= keys
        or bool({"traceId", "trace_id"} & keys and "type" in keys)
        or ({"input", "output"} <= keys and bool(owner & keys))
    )


def _swe(keys: set[str], name: str) -> bool:
    return "trajectory_format" in keys or bool(
        ("trajectory" in keys or ".traj" in name) and {"history", "info", "environment", "trajectory"} & keys
    )


RULES: tuple[tuple[str, Callable[[set[str], str], bool]], ...] = (
    ("nemo-gym", lambda keys, name: "responses_create_params" in keys),
    ("nvidia-flywheel", lambda keys, name: {"request", "response"} <= keys),
    ("tau-bench", lambda keys, name: "traj" in keys and bool({"task_id", "reward"} & keys)),
    ("swe-agent", _swe),
    ("openai-sft", lambda keys, name: "messages" in keys and bool({"parallel_tool_calls", "functions"} & keys)),
    ("chat", lambda keys, name: "messages" in keys),
    ("openai-sft", lambda keys, name: {"prompt", "completion"} <= keys),
    ("langfuse", _langfuse),
)


def first_keys(sample: bytes) -> set[str]:
    """The fields of the first record, also where the sample ends within it."""
    for line in sample.splitlines()[:LINES_LOOKED_AT]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value:
            return set(value)
    return _scanned(sample)


def _scanned(sample: bytes) -> set[str]:
    keys: set[str] = set()
    depth, base, last = 0, 0, None
    for token in TOKEN.finditer(sample):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
            base = depth if not base and mark == b"{" else base
        elif mark in (b"}", b"]"):
            depth -= 1
            if base and depth < base:
                break
        elif mark == b":" and depth == base and last is not None:
            keys.add(last.decode("utf-8", "replace"))
        last = token[1]
    return keys
