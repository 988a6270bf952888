"""The row that production agents send. Pure: no Django, no torch.

Types are checked by msgspec, whose errors name the field's path; what a type cannot say is checked
here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from apps.trajectories.decoding import MAX_DEPTH, Cleaner, Decoded, RowError, clean, printable
from apps.trajectories.dialects import as_chat
from apps.trajectories.ids import FUTURE_TOLERANCE
from workers.lib import messages as messages_lib
from workers.lib import token_usage, typed
from workers.lib.messages import is_request, text_of
from workers.lib.prices import Basis
from workers.lib.typed import know

T = TypeVar("T")
MAX_WARNINGS = 20
PREVIEWED = 4_000  # characters in which a preview is looked for
MAX_MESSAGES = 100_000
MAX_TOKENS = token_usage.MAX_TOKENS
MAX_COST_USD = 1_000_000.0
MAX_LATENCY_MS = 31_536_000_000.0  # a year
MAX_REWARD = 1e9
MAX_SAMPLE = 32_767
EVAL = "flywheel_eval"  # where the metadata keeps of which sample of an evaluation a run says to be
FIRST_TIME, END_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)


Short = Annotated[str, Meta(max_length=200)]
MAX_NAME = 120
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Reward = Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)]
Index = Annotated[int, Meta(ge=0, le=MAX_MESSAGES)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Status = Literal["success", "failure", "unknown"]
BASES = get_args(Basis)
Kind = Literal["takeover", "edit", "approve", "reject", "abort"]


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


class ModelCall(Struct):
    """One model call of a run that made several: its `usage` is the provider's own object. The cost
    of a run is the sum of its calls, each at the price of its model.
    """

    usage: dict[str, Any] = field(default_factory=dict)
    model: Short = ""
    request_model: Short = ""
    provider: Short = ""
    at: datetime | None = None


class Usage(Struct):
    """The `usage` object of any provider fits as it is (OpenAI, Anthropic, Gemini, Bedrock,
    OpenRouter …): `prompt_tokens` is another name of `input_tokens`. The input includes what was
    read from a cache or written to one, the output includes reasoning. All other members are kept
    in `metadata.usage`.

    A cost that is sent is kept as it is. Without one, the run costs what its tokens cost at the
    price of its model, and `cost_basis` says so: `sent`, `priced`, or `at_least` if some of it is
    unknown."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost_usd: Annotated[float, Meta(ge=0, lt=MAX_COST_USD)] | None = None
    cost_basis: Basis = ""
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    calls: list[ModelCall] = field(default_factory=list)


NAMES = Usage.__struct_fields__
COUNTS = tuple(name for name in NAMES if name not in ("calls", "cost_basis"))


Id = Annotated[str, Meta(min_length=1, max_length=200)]


class Named(Struct):
    id: Id


class EvalSample(Struct, forbid_unknown_fields=True):
    """The sample of an evaluation that a run is: `run` is the evaluation's id, `task` the id or key
    of one of its tasks.
    """

    run: Id
    task: Id
    sample: Annotated[int, Meta(ge=0, le=MAX_SAMPLE)] = 0


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
    eval: EvalSample | None = None


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


# What people write for a field, beyond slips of the pen.
MEANT = {
    "outcome.score": "reward",
    "outcome.comment": "reason",
    "session": "session_id",
    "user": "user_id",
    "latency": "latency_ms",
}


@dataclass(slots=True)
class Parsed:
    """A row that is of the form: typed, as it was sent, and what was mended in it as [{path,
    warning}].
    """

    row: Row
    value: dict[str, Any]
    warnings: list[dict]
    used: token_usage.Usage

    @property
    def model(self) -> str:
        """The run's, or the one that most of its calls name."""
        names = (call.model or call.request_model for call in self.row.usage.calls)
        most = Counter(filter(None, names)).most_common(1)
        return self.row.model or (most[0][0] if most else "")

    @property
    def metadata(self) -> dict[str, Any]:
        """What was sent as such, and what has no place of its own: parts of `usage`, and the sample
        of an evaluation.
        """
        details = _unread_usage(self.value, self.used)
        found = ({"usage": details} if details else {}) | self.row.metadata
        return found | {EVAL: msgspec.to_builtins(self.row.eval)} if self.row.eval else found

    @property
    def eval_sample(self) -> EvalSample | None:
        """As it was sent, or as it was kept when the run was stored before."""
        if self.row.eval or EVAL not in self.row.metadata:
            return self.row.eval
        try:
            return msgspec.convert(self.row.metadata[EVAL], know(EvalSample))
        except msgspec.ValidationError:
            return None


def parse(value: Any, form: type[Struct] = Row) -> Any:
    """The typed value. Raises RowError with the path of what is wrong."""
    return _convert(clean(value), form)


def parse_row(given: Any) -> Parsed:
    """A row from raw JSON, or from what `decode` made of it. Raises RowError with the path of what
    is wrong.
    """
    cleaner = Cleaner()
    if isinstance(given, Decoded):
        value = given.value
        if given.too_deep:
            raise RowError("", f"nested deeper than {MAX_DEPTH} levels")
    else:
        value = cleaner.clean(given)
    value = _with_chat(value)
    used = _read_usage(value)
    row = _convert(_with_counts(value, used), Row)
    if row.outcome.success is not None:
        row.outcome.status = status_of(row.outcome.success, row.outcome.status)
    row.started_at, row.ended_at = (
        in_utc("started_at", row.started_at),
        in_utc("ended_at", row.ended_at),
    )
    warnings = cleaner.warnings + _usage_warnings(row, value, used) + warnings_of(row)
    return Parsed(row, value, warnings, used)


def _with_chat(value: Any) -> Any:
    """The row with messages of other dialects (Anthropic's blocks, Gemini's contents …) as chat
    messages.
    """
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or (chat := as_chat(messages)) is messages:
        return value
    return value | {"messages": chat}


def _read_usage(value: Any) -> token_usage.Usage:
    """What `usage` says under whatever names; of a run's calls alone their sum."""
    sent = value.get("usage") if isinstance(value, dict) else None
    used = token_usage.parse(sent)
    if used.is_known or not isinstance(sent, dict):
        return used
    calls = token_usage.total(token_usage.parse(call["usage"]) for call in _sent_calls(sent))
    return replace(calls, cost_usd=None, unread=used.unread)


def _with_counts(value: Any, used: token_usage.Usage) -> Any:
    """The row with the counts of its `usage` under our names, and nothing else of it."""
    if not isinstance(value, dict) or "usage" not in value:
        return value
    sent = value["usage"] if isinstance(value["usage"], dict) else {}
    basis = sent.get("cost_basis")
    usage = used.counts | {"calls": _calls(sent)}
    return value | {"usage": usage | ({"cost_basis": basis} if basis in BASES else {})}


def _calls(usage: dict) -> list[dict]:
    """The calls that can be read: of what a provider sends under this name, none."""
    return [
        {name: call[name] for name in ModelCall.__struct_fields__ if call.get(name) is not None}
        for call in _sent_calls(usage)
    ]


def _sent_calls(usage: dict) -> Iterator[dict]:
    calls = usage.get("calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("usage"), dict):
            yield call


def _unread_usage(value: dict, used: token_usage.Usage) -> dict[str, Any]:
    sent = value.get("usage")
    if not isinstance(sent, dict):
        return {} if sent is None else {"sent": sent}
    ours = {"calls"} if any(_sent_calls(sent)) else set()
    ours |= {"cost_basis"} if sent.get("cost_basis") in BASES else set()
    return {name: item for name, item in used.unread.items() if name not in ours}


def _usage_warnings(row: Row, value: dict, used: token_usage.Usage) -> list[dict]:
    """Slips of the pen, and what cannot be read. None of it is refused: providers add members, and
    a run is worth more than its count of tokens.
    """
    sent, unread = value.get("usage"), _unread_usage(value, used)
    warnings = [*_of_members("usage", unread)]
    sent = sent if isinstance(sent, dict) else unread
    warnings += islice(_of_calls(sent.get("calls")), MAX_WARNINGS)
    for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        both = [sent[key] for key in (name, other) if sent.get(key) is not None]
        if len(both) == 2 and both[0] != both[1]:
            problem = f"differs from usage.{name}, which is counted"
            warnings.append({"path": f"usage.{other}", "warning": problem})
    if sent and row.usage.input_tokens is row.usage.output_tokens is row.usage.cost_usd is None:
        warnings.append(
            {"path": "usage", "warning": "has no known counts; send input_tokens and output_tokens"}
        )
    return warnings[:MAX_WARNINGS]


def _of_calls(calls: Any) -> Iterator[dict]:
    """Counts of single calls that were not read. Only a usage in which one is no whole number from
    0 is read once more.
    """
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        usage = call.get("usage") if isinstance(call, dict) else None
        if isinstance(usage, dict) and not all(map(_is_plain, map(usage.get, COUNTS))):
            unread = token_usage.parse(usage).unread.keys() & set(COUNTS)
            yield from _of_members(f"usage.calls[{index}].usage", sorted(unread))


def _is_plain(count: Any) -> bool:
    return count is None or (type(count) is int and count >= 0)


def _of_members(path: str, unread: Iterable[str]) -> Iterator[dict]:
    kept = "is kept in metadata.usage, " if path == "usage" else "is "
    for name in unread:
        if name in NAMES:
            problem = f"is not a number from 0 and {kept}not counted"
        elif close := get_close_matches(name, NAMES, 1, cutoff=0.9):
            problem = f"{kept}not counted; did you mean “{close[0]}”?"
        else:
            continue
        yield {"path": f"{path}.{printable(name)}", "warning": problem}


def status_of(success: bool, status: Status | UnsetType = UNSET) -> Status:
    """The status that `success` means. Raises RowError if a status was given that contradicts
    it.
    """
    meant: Status = "success" if success else "failure"
    if status not in (UNSET, "unknown", meant):
        raise RowError(
            "outcome.success", f"is {str(success).lower()}, but outcome.status is {status}"
        )
    return meant


def in_utc(name: str, value: datetime | None) -> datetime | None:
    """The time in UTC; one without a zone is UTC. Raises RowError for a time that no run can
    have.
    """
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
        raise RowError(printable(error.path), problem) from error


def warnings_of(row: Row) -> list[dict]:
    """What is odd in a row that is stored all the same: [{path, warning}]."""
    found = []
    started, ended = row.started_at, row.ended_at
    future = datetime.now(UTC) + FUTURE_TOLERANCE
    for name, at in (("started_at", started), ("ended_at", ended)):
        if at and at > future:
            found.append(
                {
                    "path": name,
                    "warning": "is in the future; the run is stored under its arrival time",
                }
            )
    if started and ended and ended < started:
        found.append({"path": "ended_at", "warning": "is before started_at"})
    calls: set[str | None] = set()
    for index, message in enumerate(row.messages):
        if message.tool_calls:
            calls.update([call.id for call in message.tool_calls])
        if message.role == "tool" and message.tool_call_id not in calls:
            found.append(
                {
                    "path": f"messages[{index}].tool_call_id",
                    "warning": "does not match an earlier tool call",
                }
            )
            if len(found) >= MAX_WARNINGS:
                break
    return found


def content_digest(value: dict) -> str:
    """32 hex digits of everything a row says, to tell a row sent twice from one that has
    changed.
    """
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
    found = dict.fromkeys(
        name[:120] for message in messages for name in messages_lib.tool_names(message)
    )
    return [name for name in found if name]


def preview(messages: list[dict]) -> str:
    """The first words of the user."""
    texts = (text_of(message)[:PREVIEWED].split() for message in messages if is_request(message))
    return " ".join(next(filter(None, texts), []))[:240]
