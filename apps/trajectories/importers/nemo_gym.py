"""NeMo Gym rollouts: a task row with the `response` (OpenAI Responses) and its `reward`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    arguments_of,
    as_text,
    chat_message,
    chat_tools,
    digest,
    each,
    first,
    flat,
    identity,
    items,
    moment,
    number,
    obj,
    text,
    usage,
    without_empty,
)
from apps.trajectories.schema import RowError

NO_ROLLOUT = "a task without a response: this file holds tasks, not rollouts. Import it as tasks of an eval set"
TAKEN = frozenset({"responses_create_params", "response", "reward"})


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _rollout)


def _rollout(record: dict) -> dict:
    asked, response = record.get("responses_create_params"), record.get("response")
    if not isinstance(asked, dict):
        raise RowError("responses_create_params", "expected an object")
    if not isinstance(response, dict):
        raise RowError("response", NO_ROLLOUT if response is None else "expected an object")
    before, _ = _conversation(asked.get("input"), "responses_create_params.input")
    said, reasoning = _conversation(response.get("output"), "response.output")
    if rules := first(asked, "instructions") or first(response, "instructions"):
        before.insert(0, {"role": "system", "content": flat(rules)})
    for thought in reasoning:
        thought["before"] += len(before)
    answered = text(response.get("id"))
    indices = (text(record.get("_ng_task_index"), 30), text(record.get("_ng_rollout_index"), 30))
    rest = {name: value for name, value in record.items() if name not in TAKEN}
    return {
        "id": identity(answered, *indices) if answered else f"nemo-gym-{digest(record)}",
        "agent": {"name": text(obj(record.get("agent_ref")).get("name"), 120)},
        "model": text(first(response, "model") or asked.get("model"), 200),
        "workload": text(first(record, "environment_name", "category"), 120),
        "started_at": moment(response.get("created_at")),
        "messages": before + said,
        "tools": chat_tools(asked.get("tools")),
        "outcome": outcome(record),
        "usage": usage(response.get("usage")),
        "metadata": without_empty({"source": "nemo-gym", "task": rest, "reasoning": reasoning}),
    }


def outcome(record: dict) -> dict:
    """Reward 1 or more is success, 0 or less failure, between them unknown; a masked sample is unknown, with its reason."""
    reward = number(record.get("reward"))
    label = text(record.get("failure_kind"), 120)
    reason = text(record.get("failure_reason"), 2000)
    if record.get("mask_sample") is True:
        return {"status": "unknown", "reward": reward, "label": label, "reason": reason or "The sample is masked."}
    if reward is None:
        raise RowError("reward", "expected a number")
    if 0 < reward < 1:
        return {"status": "unknown", "reward": reward, "label": label, "reason": reason or f"Reward {reward:g} of 1."}
    return {"status": "success" if reward >= 1 else "failure", "reward": reward, "label": label, "reason": reason}


def _conversation(given: Any, path: str) -> tuple[list[dict], list[dict]]:
    """(chat messages, [{before: index of the message that the reasoning led to, text}]). Raises RowError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}], []
    if not isinstance(given, list):
        raise RowError(path, f"expected a list of Responses items, got {type(given).__name__}")
    messages: list[dict] = []
    reasoning: list[dict] = []
    for index, item in enumerate(given):
        here = f"{path}[{index}]"
        if not isinstance(item, dict):
            raise RowError(here, f"expected an item, got {type(item).__name__}")
        if item.get("type") == "reasoning":
            thought = flat(items(item.get("summary")) or items(item.get("content")))
            reasoning += [{"before": len(messages), "text": thought}] if thought else []
        else:
            _add(messages, item, here)
    return messages, reasoning


def _add(messages: list[dict], item: dict, path: str) -> None:
    kind = item.get("type") or "message"
    if kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(_call(item, path))
    elif kind == "function_call_output":
        messages.append(
            {"role": "tool", "tool_call_id": text(item.get("call_id")), "content": flat(item.get("output"))}
        )
    elif kind == "message":
        messages.extend(chat_message({**item, "role": item.get("role") or "assistant"}, path))
    else:
        messages.append({"role": "assistant", "content": as_text(item)})


def _call(item: dict, path: str) -> dict:
    if not text(item.get("name")):
        raise RowError(f"{path}.name", "a function call without a name")
    function = {"name": text(item["name"]), "arguments": arguments_of(item.get("arguments"))}
    return {"id": text(item.get("call_id")), "type": "function", "function": function}
