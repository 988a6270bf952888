"""Trajectories as files: JSON Lines of our rows, Parquet, OpenAI's fine-tuning JSON Lines. All are
streams of bytes.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from django.db.models import QuerySet

from apps.core.bus import Question, ask
from apps.core.models import Project
from apps.trajectories.api import as_json
from apps.trajectories.decoding import RowError
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.schema import Message, parse, plain
from workers.lib.messages import OpenCalls, ToolCall, calls_in, is_example, native_calls, to_native
from workers.lib.token_usage import TOKENS

READ_AT_ONCE = 200
ROW_GROUP = 1000
ROW_GROUP_BYTES = 64 * 1024 * 1024
COLUMNS = {
    **dict.fromkeys(
        ("id", "agent_name", "agent_version", "model", "workload", "session_id", "user_id"), "text"
    ),
    **dict.fromkeys(("started_at", "ended_at"), "time"),
    **dict.fromkeys(("messages", "tools", "outcome_status"), "text"),
    "outcome_reward": "real",
    **dict.fromkeys(("outcome_label", "outcome_reason", "interventions"), "text"),
    **dict.fromkeys(TOKENS, "whole"),
    "cost_usd": "real",
    "cost_basis": "text",
    "latency_ms": "real",
    "tags": "texts",
    "metadata": "text",
}
NESTED = frozenset({"messages", "tools", "interventions", "metadata"})
PARTS_OF_TURN = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


def jsonl(rows: QuerySet[Trajectory]) -> Iterator[bytes]:
    """One row a line, in the form in which it can be sent again."""
    for row in _loaded(rows):
        yield msgspec.json.encode(as_json(row)) + b"\n"


def _loaded(rows: QuerySet[Trajectory]) -> Iterator[Trajectory]:
    """The rows with what they say, read some hundred at a time."""
    found = rows.iterator(chunk_size=READ_AT_ONCE)
    while part := list(islice(found, READ_AT_ONCE)):
        yield from with_content(part)


def parquet(rows: QuerySet[Trajectory]) -> Iterator[bytes]:
    """Parquet in row groups of at most 1,000 rows or about 64 MiB; what is nested is JSON text.

    Columns: id, agent_name, agent_version, model, workload, session_id, user_id (string),
    started_at, ended_at (µs, UTC), messages, tools (JSON), outcome_status, outcome_reward,
    outcome_label, outcome_reason, interventions (JSON), input_tokens, output_tokens,
    cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_usd, cost_basis, latency_ms, tags
    (list of string), metadata (JSON).
    """
    import pyarrow as pa  # only here: tens of megabytes, which the web process need not hold
    import pyarrow.parquet as pq

    schema = _parquet_schema()
    sink = _Sink()
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd") as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist(group, schema=schema), row_group_size=ROW_GROUP)
            yield sink.drain()
    yield sink.drain()


def _parquet_schema() -> Any:
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "real": pa.float64(),
        "whole": pa.int64(),
        "texts": pa.list_(pa.string()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _groups(rows: QuerySet[Trajectory]) -> Iterator[list[dict]]:
    group: list[dict] = []
    size = 0
    for trajectory in _loaded(rows):
        row = _flat(as_json(trajectory))
        group.append(row)
        size += sum(len(row[name]) for name in NESTED)
        if len(group) >= ROW_GROUP or size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("agent", "outcome"):
            made |= {f"{name}_{inner}": item for inner, item in value.items()}
        elif name == "usage":
            made |= value
        else:
            made[name] = msgspec.json.encode(value).decode() if name in NESTED else value
    return made


class _Sink(io.RawIOBase):
    """A file that is given away while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        return self._at

    def drain(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class LeftOut(Exception):
    """A trajectory that is not a training example; the message is the reason."""


class MayNotTrain(Question[Collection[int]]):
    """The indexes of those runs that no model may learn from. `lines` are theirs of the export."""

    project: Project
    runs: Sequence[Trajectory]
    lines: Sequence[dict]


GUARDED_AT_ONCE = 100
HELD_OUT = "held out, in a held-out group, or a near-duplicate of a held-out task"
NOT_GOOD = "neither successful nor corrected"
REFUSED = "rejected or aborted by a person"
NO_TURN = "no assistant turn after a user's"
BROKEN_CALLS = "tool calls and tool replies do not match"
BAD_CORRECTION = "the correction is not an assistant turn"


class SftExport:
    """OpenAI's fine-tuning JSON Lines, `{messages, tools?}`, of what is worth imitating. Iterate
    once.

    In: runs that succeeded, up to their last assistant turn; and runs that were corrected (an
    intervention of kind edit or takeover with `after`), whatever their outcome: the messages before
    the corrected one, then the correction as the last assistant turn. The last correction counts.
    Assistant turns that nobody called right (those before a correction, and examples of the prompt)
    have OpenAI's `weight` 0: they are read and not learnt.

    Left out, counted in `left_out` by reason as the iteration goes on (`written` counts the
    others): `HELD_OUT`: no model may learn from it (`MayNotTrain`); `NOT_GOOD`; `REFUSED`: a
    person rejected or aborted it and gave no correction; `NO_TURN`: nothing to learn from;
    `BROKEN_CALLS`: OpenAI refuses a file with a tool call that has no reply, or a reply that has no
    call; `BAD_CORRECTION`.
    """

    def __init__(self, rows: QuerySet[Trajectory], *, project: Project) -> None:
        self._rows, self._project = rows, project
        self.written = 0
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[bytes]:
        examples = self._examples()
        while some := list(islice(examples, GUARDED_AT_ONCE)):
            runs, lines = [run for run, _ in some], [line for _, line in some]
            forbidden = set().union(*ask(MayNotTrain(self._project, runs, lines)))
            self.left_out += Counter({HELD_OUT: len(forbidden)})
            for index, line in enumerate(lines):
                if index not in forbidden:
                    self.written += 1
                    yield msgspec.json.encode(line) + b"\n"

    def _examples(self) -> Iterator[tuple[Trajectory, dict[str, Any]]]:
        for trajectory in _loaded(self._rows):
            try:
                yield trajectory, example(as_json(trajectory))
            except LeftOut as reason:
                self.left_out[str(reason)] += 1


def example(row: dict[str, Any]) -> dict[str, Any]:
    """{messages, tools?} of a row in our form. Raises LeftOut."""
    messages = row["messages"]
    corrected = [
        item
        for item in row["interventions"]
        if item["kind"] in ("edit", "takeover") and item.get("after")
    ]
    learnt = 0
    if corrected:
        learnt = corrected_turn(messages, corrected[-1].get("message_index"))
        messages = messages[:learnt] + correction(corrected[-1]["after"])
    elif row["outcome"]["status"] != "success":
        raise LeftOut(NOT_GOOD)
    elif any(item["kind"] in ("reject", "abort") for item in row["interventions"]):
        raise LeftOut(REFUSED)
    end = max(
        (index + 1 for index, turn in enumerate(messages) if turn.get("role") == "assistant"),
        default=0,
    )
    if not any(turn.get("role") == "user" for turn in messages[:end]):
        raise LeftOut(NO_TURN)
    made = {
        "messages": matched(
            [_turn(turn, index >= learnt) for index, turn in enumerate(messages[:end])]
        )
    }
    return made | {"tools": row["tools"]} if row["tools"] else made


def corrected_turn(messages: list[dict], index: int | None) -> int:
    """Where the correction goes: the assistant turn at or before `index`, or the last one; else the
    end.
    """
    upto = messages if index is None else messages[: index + 1]
    return max(
        (at for at, turn in enumerate(upto) if turn.get("role") == "assistant"), default=len(upto)
    )


def correction(after: Any) -> list[dict]:
    """Assistant turns from a correction: words, a message or messages, or calls in any form;
    anything else as JSON text.

    Raises LeftOut.
    """
    if (
        isinstance(after, list)
        and after
        and all(isinstance(turn, dict) and "role" in turn for turn in after)
    ):
        turns = after
    elif isinstance(after, dict) and (after.get("role") == "assistant" or after.get("tool_calls")):
        turns = [{**after, "role": "assistant"}]
    elif (
        isinstance(after, dict | list)
        and (calls := calls_in(after))
        and not any(call.problem for call in calls)
    ):
        turns = [
            {
                "role": "assistant",
                "tool_calls": [to_native(call.tool, call.args or {}) for call in calls],
            }
        ]
    else:
        words = after if isinstance(after, str) else msgspec.json.encode(after).decode()
        turns = [{"role": "assistant", "content": words}]
    try:
        parsed = [plain(parse(turn, Message)) for turn in turns]
    except RowError as error:
        raise LeftOut(BAD_CORRECTION) from error
    if parsed[-1]["role"] != "assistant":
        raise LeftOut(BAD_CORRECTION)
    return parsed


def _turn(turn: dict, learnt: bool) -> dict:
    made = {
        name: value for name, value in turn.items() if name in PARTS_OF_TURN and value is not None
    }
    if made.get("role") == "developer":
        made["role"] = "system"
    if made.get("role") == "assistant" and (not learnt or is_example(turn)):
        made["weight"] = 0
    return made if "content" in made or made.get("tool_calls") else made | {"content": ""}


def matched(messages: list[dict]) -> list[dict]:
    """The messages with an id on every call, arguments as text, each call answered before the next
    turn.

    Calls of the last message need no answer. Raises LeftOut.
    """
    made: list[dict] = []
    waiting: OpenCalls[ToolCall] = OpenCalls()
    open_ids: dict[int, str] = {}
    for index, turn in enumerate(messages):
        if turn["role"] == "tool":
            answered = waiting.take(turn)
            if answered is None:
                raise LeftOut(BROKEN_CALLS)
            turn = {**turn, "tool_call_id": open_ids.pop(id(answered))}
        elif open_ids or turn["role"] == "function":
            raise LeftOut(BROKEN_CALLS)
        if calls := turn.get("tool_calls"):
            called = native_calls(turn)
            turn = {
                **turn,
                "tool_calls": [_call(call, f"call_{index}_{at}") for at, call in enumerate(calls)],
            }
            open_ids = {
                id(call): named["id"]
                for call, named in zip(called, turn["tool_calls"], strict=True)
            }
            waiting.add(called)
        made.append(turn)
    return made


def _call(call: dict, fallback: str) -> dict:
    arguments = call["function"].get("arguments")
    text = (
        arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    )
    function = {"name": call["function"]["name"], "arguments": text}
    return {"id": call.get("id") or fallback, "type": "function", "function": function}
