"""Langfuse exports: traces with their observations (`{…, observations}` or `{trace, observations,
scores}`), API pages (`{data}`), or a table of observations, whose rows are gathered by trace. Names
in camelCase or snake_case.

One trace is one run. Its conversation is the longest that its generations had: each call carries
the ones before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError, clean
from apps.trajectories.dialects import holds_messages, messages_of, one_turn
from apps.trajectories.importers.recorded import Recorded, steps_of
from apps.trajectories.importers.records import ImportError_, Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_message,
    chat_messages,
    chat_tools,
    digest,
    first,
    history,
    identity,
    items,
    milliseconds,
    moment,
    number,
    obj,
    positive,
    require_object,
    text,
    unpacked,
    usage,
    usage_of_calls,
    without_empty,
)
from apps.trajectories.interruptions import interruption
from apps.trajectories.otlp.server_state import state_of
from apps.trajectories.values import is_cut

MAX_GATHERED = 200_000
KINDS = {
    "GENERATION": "model",
    "TOOL": "tool",
    "AGENT": "agent",
    "RETRIEVER": "retrieval",
    "GUARDRAIL": "guardrail",
}
VERDICTS = frozenset(
    {
        "success",
        "task_success",
        "correct",
        "correctness",
        "passed",
        "resolved",
        "solved",
        "user-feedback",
        "user_feedback",
    }
)
STATE = ("input", "output", "modelParameters", "model_parameters", "metadata")


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """Traces as they come; a table's observations once the file has ended (at most `MAX_GATHERED`:
    ImportError_).
    """
    gathered: dict[str, tuple[int, list[dict]]] = {}
    seen = 0
    for position, record in records:
        try:
            record = require_object(record)
            if not _is_observation(record):
                yield position, _trace(record)
                continue
        except RowError as error:
            yield position, error
            continue
        seen += 1
        if seen > MAX_GATHERED:
            raise ImportError_(
                f"{name} has more than {MAX_GATHERED:,} observations. Export it in parts, by time"
                " range."
            )
        gathered.setdefault(text(_get(record, "traceId")), (position, []))[1].append(record)
    for trace, (position, observations) in gathered.items():
        try:
            yield (
                position,
                _trace({"trace": _of_table(trace, observations), "observations": observations}),
            )
        except RowError as error:
            yield position, error


def _get(value: dict, name: str) -> Any:
    """A field by its camelCase name, or by the snake_case one."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return first(value, name, snake)


def _is_observation(record: dict) -> bool:
    return (
        bool(text(_get(record, "traceId")))
        and isinstance(record.get("type"), str)
        and "observations" not in record
    )


def _of_table(trace: str, observations: list[dict]) -> dict:
    """What a table's rows say about their trace."""
    names = ("userId", "sessionId", "release", "version", "environment", "tags")
    found = {
        name: next((_get(row, name) for row in observations if _get(row, name) is not None), None)
        for name in names
    }
    title = next((_get(row, "traceName") for row in observations if _get(row, "traceName")), None)
    return {"id": trace, "name": title, **found}


def _trace(record: dict) -> dict:
    trace = obj(record.get("trace")) or record
    observations = [
        row
        for row in items(record.get("observations") or trace.get("observations"))
        if isinstance(row, dict)
    ]
    observations.sort(key=lambda row: moment(_get(row, "startTime")) or "")
    generations = [row for row in observations if _is_generation(row)]
    starts = [at for row in observations if (at := moment(_get(row, "startTime")))]
    start = moment(trace.get("timestamp")) or min(starts, default=None)
    end = max((at for row in observations if (at := moment(_get(row, "endTime")))), default=None)
    seconds = positive(trace.get("latency"))
    scores = [
        row for row in items(record.get("scores") or trace.get("scores")) if isinstance(row, dict)
    ]
    messages, others, is_whole = _conversation(trace, generations, observations)
    return {
        "id": identity(text(trace.get("id")) or f"langfuse-{digest(record)}"),
        "agent": {
            "name": _agent(observations) or text(trace.get("name"), 120),
            "version": text(first(trace, "version", "release"), 120),
        },
        "model": next((name for row in reversed(generations) if (name := _model(row))), ""),
        "workload": text(trace.get("environment"), 120),
        "session_id": text(_get(trace, "sessionId"), 200),
        "user_id": text(_get(trace, "userId"), 200),
        "started_at": start,
        "ended_at": end,
        "messages": messages,
        "tools": next((tools for row in reversed(generations) if (tools := _tools(row))), []),
        "outcome": _outcome(scores, generations, observations),
        "usage": _usage(trace, generations),
        "latency_ms": seconds * 1000 if seconds is not None else milliseconds(start, end),
        "tags": _tags(trace, generations, observations) + ["missing-history"] * (not is_whole),
        "metadata": without_empty(
            {
                "source": "langfuse",
                "observations": len(observations),
                "other_conversations": others,
                "scores": [_score(row) for row in scores],
                "metadata": unpacked(trace.get("metadata")),
            }
        )
        | steps_of([_recorded(row) for row in observations], messages),
    }


def _agent(observations: list[dict]) -> str:
    """The name of the first agent, which is the outermost one."""
    agents = (row for row in observations if text(row.get("type")).upper() == "AGENT")
    return text(next(agents, {}).get("name"), 120)


def _recorded(row: dict) -> Recorded:
    failed = text(row.get("level")).upper() == "ERROR"
    name = text(row.get("name"), 200)
    return Recorded(
        key=text(row.get("id")),
        parent=text(_get(row, "parentObservationId")),
        name=name,
        kind=KINDS.get(text(row.get("type")).upper(), "other"),
        start=moment(_get(row, "startTime")),
        end=moment(_get(row, "endTime")),
        error=(_problem(row) or f"{name or 'The step'} failed.") if failed else "",
        model=_model(row),
        used=_used(row) if _is_generation(row) else {},
    )


def _is_generation(row: dict) -> bool:
    return text(row.get("type")).upper() == "GENERATION"


def _model(row: dict) -> str:
    return text(first(row, "model", "providedModelName", "provided_model_name"), 200)


def _value(row: dict, name: str) -> Any:
    """Input or output, of which exports make a string."""
    found = unpacked(row.get(name))
    return clean(found) if found is not row.get(name) else found


def _tools(row: dict) -> list[dict]:
    given = _value(row, "input")
    return chat_tools(
        obj(given).get("tools")
        or obj(unpacked(_get(row, "modelParameters"))).get("tools")
        or unpacked(_get(row, "toolDefinitions"))
    )


def _conversation(
    trace: dict, generations: list[dict], observations: list[dict]
) -> tuple[list[dict], int, bool]:
    """(messages, how many other conversations the generations had, whether none goes on with an
    answer that is not here). Raises RowError.
    """
    found: list[list[dict]] = []
    known: dict[str, list[dict]] = {}  # by what a server that keeps the history calls them
    is_whole = True
    for row in generations:
        talk = _turns(_value(row, "input"), "user", "input") + _turns(
            _value(row, "output"), "assistant", "output"
        )
        state = state_of({name: _value(row, name) for name in STATE}, ("output",))
        before = known.get(state.previous) or known.get(state.conversation)
        if before is not None and history(talk)[: len(before)] != history(before):
            talk = before + talk
        elif before is None and state.previous:
            is_whole = is_whole and any(one["role"] == "assistant" for one in talk[:-1])
        known |= {name: talk for name in (state.answer, state.conversation) if name}
        if talk:
            found = [other for other in found if not _begins(talk, other)] + [talk]
    if found:
        longest = max(found, key=len)
        return longest, len(found) - 1, is_whole
    talk = _turns(_value(trace, "input"), "user", "input")
    for row in observations:
        if text(row.get("type")).upper() == "TOOL":
            talk += _tool_turns(row)
    talk += _turns(_value(trace, "output"), "assistant", "output")
    if not talk:
        raise RowError("observations", "no generation, and neither input nor output")
    return talk, 0, True


def _begins(talk: list[dict], other: list[dict]) -> bool:
    return len(other) <= len(talk) and history(talk[: len(other)])[-1:] == history(other)[-1:]


def _turns(value: Any, role: str, path: str) -> list[dict]:
    """Messages of an input or output: a list of them, `{messages}`, one message, a completion, or
    words. Of JSON that breaks off only whole messages are taken.
    """
    if is_cut(value):
        return messages_of(value, role)
    if isinstance(value, dict):
        if isinstance(value.get("messages"), list):
            value = value["messages"]
        elif isinstance(value.get("choices"), list):
            value = obj(next(iter(value["choices"]), None)).get("message")
    if value in (None, "", [], {}):
        return []
    if isinstance(value, list) and all(
        isinstance(item, dict) and (item.get("role") or "content" in item) for item in value
    ):
        return chat_messages(
            [{**item, "role": item.get("role") or item.get("type") or role} for item in value], path
        )
    if isinstance(value, dict) and (text(value.get("role")) or value.get("tool_calls")):
        return chat_message({**value, "role": text(value.get("role")) or role}, path)
    if holds_messages(value):
        return one_turn(messages_of(value, role))
    return [{"role": role, "content": as_text(value)}]


def _tool_turns(row: dict) -> list[dict]:
    arguments = _value(row, "input")
    call = {
        "id": text(row.get("id")) or digest(row),
        "type": "function",
        "function": {
            "name": text(row.get("name")) or "tool",
            "arguments": arguments if isinstance(arguments, dict) else as_text(arguments),
        },
    }
    answer = _value(row, "output")
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": as_text(first({"a": answer, "b": _problem(row)}, "a", "b")),
        },
    ]


def _problem(row: dict) -> str:
    return text(_get(row, "statusMessage"), 2000)


def _outcome(scores: list[dict], generations: list[dict], observations: list[dict]) -> dict:
    """A score with the name of a verdict decides; then an error of the last generation or of a
    root; else unknown.

    An error inside, which the agent may have mended, decides nothing.
    """
    for row in scores:
        value = number(row.get("value"))
        if text(row.get("name")).lower() in VERDICTS and value in (0, 1):
            status = "success" if value == 1 else "failure"
            return {
                "status": status,
                "reward": value,
                "label": text(row.get("name"), 120),
                "reason": text(row.get("comment")),
            }
    for row in _decisive_errors(generations, observations):
        if not interruption("", _problem(row)):
            return {
                "status": "failure",
                "reason": _problem(row) or f"{text(row.get('name')) or 'The run'} failed.",
            }
    return {}


def _decisive_errors(generations: list[dict], observations: list[dict]) -> list[dict]:
    decisive = generations[-1:] + [
        row for row in observations if not _get(row, "parentObservationId")
    ]
    return [row for row in decisive if text(row.get("level")).upper() == "ERROR"]


def _tags(trace: dict, generations: list[dict], observations: list[dict]) -> list[str]:
    """The trace's; how it was stopped if that was no error; whether its JSON was cut, so that
    messages are missing.
    """
    tags = [tag[:80] for tag in items(unpacked(trace.get("tags"))) if isinstance(tag, str) and tag]
    stopped = (
        interruption("", _problem(row)) for row in _decisive_errors(generations, observations)
    )
    values = (row.get(name) for row in (trace, *generations) for name in ("input", "output"))
    cut = ["cut-off"] if any(map(is_cut, values)) else []
    return list(dict.fromkeys([*tags, *filter(None, stopped), *cut]))


def _score(row: dict) -> dict:
    kept = {name: row.get(name) for name in ("name", "value", "comment", "source")}
    return without_empty(
        kept
        | {
            "string_value": _get(row, "stringValue"),
            "data_type": _get(row, "dataType"),
            "observation_id": _get(row, "observationId"),
        }
    )


def _usage(trace: dict, generations: list[dict]) -> dict:
    """The generations with their counts and costs. The trace's total includes what is no
    generation, but leaves out what Langfuse has no price of.
    """
    calls = [
        {"usage": _used(row), "model": _model(row), "at": moment(_get(row, "startTime"))}
        for row in generations
    ]
    costs = ["cost_usd" in call["usage"] for call in calls if call["usage"]]
    total = _get(trace, "totalCost") or None
    return usage_of_calls(calls, total if all(costs) or not any(costs) else None)


def _used(row: dict) -> dict:
    """A cost of 0 beside no details of it says that Langfuse has no price of the model."""
    cost = obj(unpacked(_get(row, "costDetails"))).get("total", _get(row, "totalCost"))
    is_known = bool(cost) or bool(unpacked(_get(row, "costDetails")))
    sent = unpacked(first(row, "usageDetails", "usage_details", "usage"))
    return usage(sent, cost if is_known else None)
