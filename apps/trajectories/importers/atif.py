"""ATIF, the Agent Trajectory Interchange Format (Harbor): `{schema_version, agent, steps,
final_metrics}`, one run per document.

A step has a `source` (system, user, agent), its message, its tool calls, and in `observation` their
results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.chat import said_outcome
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    chat_tools,
    digest,
    each,
    first,
    flat,
    identity,
    items,
    milliseconds,
    moment,
    obj,
    text,
    usage,
    usage_of_calls,
    without_empty,
)
from apps.trajectories.importers.turns import as_arguments

ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _run)


def _run(record: dict) -> dict:
    steps = [step for step in items(record.get("steps")) if isinstance(step, dict)]
    if not steps:
        raise RowError("steps", "no steps")
    agent, final = obj(record.get("agent")), obj(record.get("final_metrics"))
    times = [at for step in steps if (at := moment(step.get("timestamp")))]
    start, end = min(times, default=None), max(times, default=None)
    extra = obj(record.get("extra"))
    return without_empty(
        {
            "id": identity(
                "atif",
                text(record.get("session_id")),
                text(record.get("trajectory_id")) or digest(record)[:16],
            ),
            "agent": {
                "name": text(agent.get("name"), 120),
                "version": text(agent.get("version"), 120),
            },
            "model": (
                text(agent.get("model_name"), 200)
                or next((name for step in steps if (name := text(step.get("model_name"), 200))), "")
            ),
            "session_id": text(record.get("session_id"), 200),
            "started_at": start,
            "ended_at": end,
            "latency_ms": milliseconds(start, end),
            "messages": [
                message
                for index, step in enumerate(steps)
                for message in _step(step, f"steps[{index}]")
            ],
            "tools": chat_tools(agent.get("tool_definitions")),
            "outcome": said_outcome(extra) or said_outcome(final),
            "usage": _usage(steps, final),
            "metadata": without_empty(
                {
                    "source": "atif",
                    "schema_version": text(record.get("schema_version"), 40),
                    "notes": text(record.get("notes")),
                    "agent": obj(agent.get("extra")),
                    "extra": extra,
                }
            ),
        }
    )


def _step(step: dict, path: str) -> list[dict]:
    role = ROLES.get(text(step.get("source")))
    if role is None:
        raise RowError(f"{path}.source", "expected system, user or agent")
    calls = [
        _call(call, f"{path}.tool_calls[{at}]")
        for at, call in enumerate(items(step.get("tool_calls")))
    ]
    said: Any = step.get("message")
    content = said if isinstance(said, str) else flat(said) if said else ""
    if thought := text(step.get("reasoning_content")):
        content = [{"type": "reasoning", "text": thought}] + (
            [{"type": "text", "text": content}] if content else []
        )
    message: dict[str, Any] = {"role": role, "content": content or (None if calls else "")}
    found = [message | ({"tool_calls": calls} if calls else {})]
    for result in items(obj(step.get("observation")).get("results")):
        found += _result(obj(result), {call["id"] for call in calls})
    return found


def _call(given: Any, path: str) -> dict:
    name = text(obj(given).get("function_name"))
    if not name:
        raise RowError(path, "a tool call without a name")
    function = {"name": name, "arguments": as_arguments(given.get("arguments"))}
    return {
        "id": text(given.get("tool_call_id")) or digest(given),
        "type": "function",
        "function": function,
    }


def _result(result: dict, calls: set[str]) -> list[dict]:
    """The answer to a call is a tool's message; anything that the environment says unasked is a
    user message.
    """
    content = flat(first(result, "content", "subagent_trajectory_ref"))
    called = text(result.get("source_call_id")) or (next(iter(calls)) if len(calls) == 1 else "")
    if called:
        return [{"role": "tool", "tool_call_id": called, "content": content}]
    return [{"role": "user", "content": content, "name": "environment"}]


def _usage(steps: list[dict], final: dict) -> dict:
    """The run's totals, and the calls that they are of."""
    total = {
        "input_tokens": final.get("total_prompt_tokens"),
        "output_tokens": final.get("total_completion_tokens"),
        "cache_read_tokens": final.get("total_cached_tokens"),
    }
    calls = [
        {
            "usage": usage(step.get("metrics")),
            "model": text(step.get("model_name"), 200),
            "at": moment(step.get("timestamp")),
        }
        for step in steps
    ]
    return usage_of_calls(calls) | usage(total, final.get("total_cost_usd"))
