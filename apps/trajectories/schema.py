"""The row that production agents send. Pure: no Django, no torch.

Types are checked by msgspec, whose errors name the field's path; what a type cannot say is checked here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

MAX_DEPTH = 60
Short = Annotated[str, Meta(max_length=200)]
Name = Annotated[str, Meta(max_length=120)]
Count = Annotated[int, Meta(ge=0, le=2_000_000_000)]


class RowError(Exception):
    """A row that is not of the form. `path` is where, `error` is what."""

    def __init__(self, path: str, error: str) -> None:
        super().__init__(f"{path}: {error}" if path else error)
        self.path, self.error = path, error


class Agent(Struct):
    name: Name = ""
    version: Name = ""


class ToolFunction(Struct):
    name: str
    arguments: str | dict | None = None


class ToolCall(Struct):
    function: ToolFunction
    id: str | None = None
    type: str = "function"


class Message(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Outcome(Struct):
    status: Literal["success", "failure", "unknown"] = "unknown"
    reward: float | None = None
    label: Name = ""
    reason: str = ""


class Intervention(Struct):
    kind: Literal["takeover", "edit", "approve", "reject", "abort"]
    message_index: Annotated[int, Meta(ge=0)] | None = None
    by: str | None = None
    before: Any = None
    after: Any = None
    note: str = ""


class Usage(Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost_usd: Annotated[float, Meta(ge=0, lt=1_000_000)] | None = None


class Row(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=200)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=100_000)]
    agent: Agent = field(default_factory=Agent)
    model: Short = ""
    workload: Name = ""
    session_id: Short = ""
    user_id: Short = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tools: list[dict] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    interventions: list[Intervention] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    latency_ms: Annotated[float, Meta(ge=0)] | None = None
    tags: list[Annotated[str, Meta(min_length=1, max_length=80)]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


class Feedback(Struct, forbid_unknown_fields=True):
    """Later news of a trajectory. `corrected` is what the agent should have done: a demonstration."""

    outcome: Outcome | None = None
    score: float | None = None
    comment: str = ""
    corrected: Any = None
    message_index: Annotated[int, Meta(ge=0)] | None = None
    by: str = ""
    takeover: bool = False


def clean(value: Any, path: str = "", depth: int = 0) -> Any:
    """The value as PostgreSQL's jsonb can keep it: no NUL, no lone surrogates. Raises RowError for NaN and depth."""
    if depth > MAX_DEPTH:
        raise RowError(path, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if "\x00" in value or not value.isascii():
            value = value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError(path, "NaN and infinity are not JSON numbers")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
        raise RowError(path, "number out of range")
    if isinstance(value, list):
        return [clean(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            clean(str(key)): clean(item, f"{path}.{key}" if path else str(key), depth + 1)
            for key, item in value.items()
        }
    return value


def parse(value: Any, form: type[Struct] = Row) -> Any:
    """The typed row. Raises RowError with the path of what is wrong."""
    try:
        return msgspec.convert(clean(value), form)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        raise RowError(path.rstrip("`").removeprefix("$").lstrip("."), text) from error


def loads(body: bytes) -> Any:
    """JSON, strictly. Raises RowError."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RowError("", f"not JSON: {error}") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def rows_of(body: bytes, ndjson: bool) -> Iterator[Any | RowError]:
    """The raw rows of a batch: a JSON array, or one object a line. A bad line is yielded as its error."""
    if not ndjson and body.lstrip()[:1] == b"[":
        yield from loads(body)
        return
    for line in body.splitlines():
        if line.strip():
            try:
                yield loads(line)
            except RowError as error:
                yield error


def content_digest(row: Row) -> str:
    """SHA-256 hex of everything the row says, to tell a row sent twice from one that has changed."""
    return hashlib.sha256(msgspec.json.encode(row, order="sorted")).hexdigest()


def plain(value: Any) -> Any:
    """A struct as JSON types, without the fields that were not given."""
    built = msgspec.to_builtins(value)
    return _without_none(built)


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None or key == "content"}
    return value


def tool_names(messages: list[dict]) -> list[str]:
    """Tools the agent called, each once, in the order of first use."""
    names = [
        str(call.get("function", {}).get("name", ""))[:120]
        for message in messages
        for call in message.get("tool_calls") or []
    ]
    return list(dict.fromkeys(name for name in names if name))


def is_example(message: dict) -> bool:
    """A few-shot turn of the prompt, by OpenAI's convention for `name`: not part of the conversation itself."""
    return str(message.get("name") or "").startswith("example_")


def preview(messages: list[dict]) -> str:
    """The first words of the user."""
    for message in messages:
        if message.get("role") == "user" and isinstance(message.get("content"), str) and not is_example(message):
            return " ".join(message["content"].split())[:240]
    return ""
