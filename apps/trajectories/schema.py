"""The row that production agents send. Pure: no Django, no torch.

Types are checked by msgspec, whose errors name the field's path; what a type cannot say is checked here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import re2
from msgspec import UNSET, Meta, Struct, UnsetType, field

from apps.trajectories.ids import FUTURE_TOLERANCE
from workers.lib import messages as messages_lib
from workers.lib import typed
from workers.lib.messages import is_request, text_of

T = TypeVar("T")
MAX_DEPTH = 60
MAX_WARNINGS = 20
PREVIEWED = 4_000  # characters in which a preview is looked for
MAX_MESSAGES = 100_000
MAX_TOKENS = 2_000_000_000
MAX_COST_USD = 1_000_000.0
MAX_LATENCY_MS = 31_536_000_000.0  # a year
MAX_REWARD = 1e9
FIRST_TIME, END_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)


def _pattern(text: str) -> Any:
    """For bytes as they are. RE2 is ten times as quick here as Python's own."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(text.encode(), options)


# NUL, surrogates, numbers beyond 64 bits: what the quick decoder would let through or cannot hold.
SUSPICIOUS = _pattern(r"\\u(?:0000|[dD][89a-fA-F])|[0-9]{18}|\x00")
Short = Annotated[str, Meta(max_length=200)]
Name = Annotated[str, Meta(max_length=120)]
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Reward = Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)]
Index = Annotated[int, Meta(ge=0, le=MAX_MESSAGES)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Status = Literal["success", "failure", "unknown"]
Kind = Literal["takeover", "edit", "approve", "reject", "abort"]


class RowError(Exception):
    """A row that is not of the form. `path` is where, `error` is what."""

    def __init__(self, path: str, error: str) -> None:
        super().__init__(f"{path}: {error}" if path else error)
        self.path, self.error = path, error


class Agent(Struct, forbid_unknown_fields=True):
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
    role: Role
    content: str | list | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Outcome(Struct, forbid_unknown_fields=True):
    """`success` is another way to give the status."""

    status: Status = "unknown"
    reward: Reward | None = None
    label: Name = ""
    reason: str = ""
    success: bool | None = None


class Intervention(Struct):
    kind: Kind
    message_index: Index | None = None
    by: str | None = None
    before: Any = None
    after: Any = None
    note: str = ""


class Usage(Struct, forbid_unknown_fields=True):
    """OpenAI's and Anthropic's `usage` fit as they are: `prompt_tokens` is another name of `input_tokens`; what only says
    of which parts a count is made is kept in `metadata.usage`."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost_usd: Annotated[float, Meta(ge=0, lt=MAX_COST_USD)] | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: dict | None = None
    completion_tokens_details: dict | None = None
    input_tokens_details: dict | None = None
    output_tokens_details: dict | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None


Id = Annotated[str, Meta(min_length=1, max_length=200)]


class Named(Struct):
    id: Id


class Row(Struct, forbid_unknown_fields=True):
    id: Id
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
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
    latency_ms: Annotated[float, Meta(ge=0, le=MAX_LATENCY_MS)] | None = None
    tags: list[Annotated[str, Meta(min_length=1, max_length=80)]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


class OutcomeChange(Struct, forbid_unknown_fields=True):
    """The parts of an outcome that are said; the others stay as they are."""

    status: Status | UnsetType = UNSET
    reward: Reward | UnsetType | None = UNSET
    label: Name | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    success: bool | UnsetType = UNSET


class Feedback(Struct, forbid_unknown_fields=True):
    """Later news of a trajectory. `corrected` is what the agent should have done: a demonstration.

    Of one `id` there is one feedback, however often it is sent; without an `id`, of one content.
    """

    id: Annotated[str, Meta(max_length=100)] = ""
    outcome: OutcomeChange | None = None
    score: Reward | None = None
    comment: str = ""
    corrected: Any = None
    message_index: Index | None = None
    by: Annotated[str, Meta(max_length=200)] = ""
    takeover: bool = False


USAGE_DETAILS = frozenset(name for name in Usage.__struct_fields__ if name.endswith("_details") or "cache" in name)
# What people write for a field, beyond slips of the pen.
MEANT = {
    "usage.cost": "cost_usd",
    "usage.input": "input_tokens",
    "usage.output": "output_tokens",
    "outcome.score": "reward",
    "outcome.comment": "reason",
    "session": "session_id",
    "user": "user_id",
    "latency": "latency_ms",
}


@dataclass(slots=True)
class Parsed:
    """A row that is of the form: typed, as it was sent, and what was mended in it as [{path, warning}]."""

    row: Row
    value: dict[str, Any]
    warnings: list[dict]

    @property
    def metadata(self) -> dict[str, Any]:
        """What was sent as such, and the parts of `usage` that have no place of their own."""
        details = {name: item for name, item in (self.value.get("usage") or {}).items() if name in USAGE_DETAILS}
        return ({"usage": details} if details else {}) | self.row.metadata


@dataclass(slots=True)
class Decoded:
    """JSON that has no character, number or NaN that cannot be kept: it needs no cleaning."""

    value: Any


class Cleaner:
    """Makes values such as PostgreSQL and UTF-8 can keep, and notes what it mended."""

    def __init__(self) -> None:
        self.warnings: list[dict] = []

    def clean(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """The value without NUL and lone surrogates. Raises RowError for NaN, giant numbers and depth."""
        if depth > MAX_DEPTH:
            raise RowError(path, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(path, "NaN and infinity are not JSON numbers")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
            raise RowError(path, "number out of range")
        if isinstance(value, list | tuple):
            return [self.clean(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {
                self._text(str(key), path): self.clean(item, f"{path}.{key}" if path else str(key), depth + 1)
                for key, item in value.items()
            }
        return value

    def _text(self, value: str, path: str) -> str:
        if "\x00" not in value and value.isascii():
            return value
        mended = value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        if mended != value:
            self.warnings.append(
                {
                    "path": _printable(path),
                    "warning": "a character that is not valid text (NUL or half a surrogate pair) was replaced",
                }
            )
        return mended


def _printable(path: str) -> str:
    return path.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")[:200]


def clean(value: Any) -> Any:
    """See Cleaner.clean."""
    return Cleaner().clean(value)


def parse(value: Any, form: type[Struct] = Row) -> Any:
    """The typed value. Raises RowError with the path of what is wrong."""
    return _convert(clean(value), form)


def parse_row(given: Any) -> Parsed:
    """A row from raw JSON, or from what `decode` made of it. Raises RowError with the path of what is wrong."""
    cleaner = Cleaner()
    if isinstance(given, Decoded):
        value = given.value
        if deeper(value, MAX_DEPTH):
            raise RowError("", f"nested deeper than {MAX_DEPTH} levels")
    else:
        value = cleaner.clean(given)
    row = _convert(value, Row)
    settle_usage(row.usage)
    if row.outcome.success is not None:
        row.outcome.status = status_of(row.outcome.success, row.outcome.status)
    row.started_at, row.ended_at = in_utc("started_at", row.started_at), in_utc("ended_at", row.ended_at)
    return Parsed(row, value, cleaner.warnings + warnings_of(row))


def settle_usage(usage: Usage) -> None:
    """Brings both names of a count to one. Raises RowError where they disagree."""
    for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        if (count := getattr(usage, other)) is not None:
            if getattr(usage, name) not in (None, count):
                raise RowError(f"usage.{other}", f"is {count}, but usage.{name} is {getattr(usage, name)}")
            setattr(usage, name, count)


def status_of(success: bool, status: Status | UnsetType = UNSET) -> Status:
    """The status that `success` means. Raises RowError where a status was given that contradicts it."""
    meant: Status = "success" if success else "failure"
    if status not in (UNSET, "unknown", meant):
        raise RowError("outcome.success", f"is {str(success).lower()}, but outcome.status is {status}")
    return meant


def in_utc(name: str, value: datetime | None) -> datetime | None:
    """The time in UTC; one without a zone is UTC. Raises RowError for a time that no run can have."""
    if value is None:
        return None
    known = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    if not FIRST_TIME <= known < END_OF_TIME:
        raise RowError(name, f"is outside the years {FIRST_TIME.year} to {END_OF_TIME.year - 1}")
    return known.astimezone(UTC)


def _convert(value: Any, form: type[T]) -> T:
    try:
        return typed.convert(value, form)
    except typed.FormError as error:
        meant = MEANT.get(error.path)
        problem = f"is not known; did you mean “{meant}”?" if meant else error.problem
        raise RowError(_printable(error.path), problem) from error


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


def warnings_of(row: Row) -> list[dict]:
    """What is odd in a row that is stored all the same: [{path, warning}]."""
    found = []
    started, ended = row.started_at, row.ended_at
    future = datetime.now(UTC) + FUTURE_TOLERANCE
    for name, at in (("started_at", started), ("ended_at", ended)):
        if at and at > future:
            found.append({"path": name, "warning": "is in the future; the run is filed under the time it arrived"})
    if started and ended and ended < started:
        found.append({"path": "ended_at", "warning": "is before started_at"})
    calls: set[str | None] = set()
    for index, message in enumerate(row.messages):
        if message.tool_calls:
            calls.update([call.id for call in message.tool_calls])
        if message.role == "tool" and message.tool_call_id not in calls:
            found.append({"path": f"messages[{index}].tool_call_id", "warning": "answers no call before it"})
            if len(found) >= MAX_WARNINGS:
                break
    return found


def loads(body: bytes | bytearray) -> Any:
    """JSON, strictly. Raises RowError."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RowError("", f"not JSON: {error}") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def decode(body: Any) -> Decoded | Any:
    """One JSON value: quickly where nothing in it can be wrong, else with Python's parser. Raises RowError."""
    if not SUSPICIOUS.search(body):
        try:
            return Decoded(msgspec.json.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # the slow way says what is wrong
    return loads(bytes(body))


def split(body: bytes | bytearray, ndjson: bool) -> list[memoryview]:
    """The undecoded rows of a batch: of a JSON array, or one a line. Raises RowError where the array is broken."""
    if not ndjson and next((byte for byte in body if byte not in b" \t\r\n"), None) == ord("["):
        try:
            return [memoryview(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, RecursionError):
            # Half a surrogate pair in one row, which the quick decoder refuses, must not cost the others.
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


def content_digest(value: dict) -> str:
    """32 hex digits of everything a row says, to tell a row sent twice from one that has changed."""
    return hashlib.blake2b(msgspec.json.encode(value, order="sorted"), digest_size=16).hexdigest()


def plain(value: Any) -> Any:
    """A struct as JSON types, without the fields that were not given."""
    return _without_none(msgspec.to_builtins(value))


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def tool_names(messages: list[dict]) -> list[str]:
    """Tools the agent called, each once, in the order of first use."""
    found = dict.fromkeys(name[:120] for message in messages for name in messages_lib.tool_names(message))
    return [name for name in found if name]


def preview(messages: list[dict]) -> str:
    """The first words of the user."""
    texts = (text_of(message)[:PREVIEWED].split() for message in messages if is_request(message))
    return " ".join(next(filter(None, texts), []))[:240]
