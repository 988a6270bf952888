"""NeMo Gym rollouts: a task row with the `response` (OpenAI Responses) and its `reward`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_tools,
    digest,
    each,
    first,
    flat,
    identity,
    moment,
    number,
    obj,
    text,
    usage,
    without_empty,
)
from workers.lib.messages import ItemError, from_items, reasoning_text

NO_ROLLOUT = (
    "a task without a response: this file holds tasks, not rollouts. Import it as tasks of an"
    " eval set"
)
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
    """Reward 1 or more is success, 0 or less failure, between them unknown; a masked sample is
    unknown, with its reason.
    """
    reward = number(record.get("reward"))
    label = text(record.get("failure_kind"), 120)
    reason = text(record.get("failure_reason"), 2000)
    if record.get("mask_sample") is True:
        return {
            "status": "unknown",
            "reward": reward,
            "label": label,
            "reason": reason or "The sample is masked.",
        }
    if reward is None:
        raise RowError("reward", "expected a number")
    if 0 < reward < 1:
        return {
            "status": "unknown",
            "reward": reward,
            "label": label,
            "reason": reason or f"Reward {reward:g} of 1.",
        }
    return {
        "status": "success" if reward >= 1 else "failure",
        "reward": reward,
        "label": label,
        "reason": reason,
    }


def _conversation(given: Any, path: str) -> tuple[list[dict], list[dict]]:
    """(chat messages, [{before: index of the message that the reasoning led to, text}]). Raises
    RowError.
    """
    reasoning: list[dict] = []

    def other(item: dict, index: int, messages: list[dict]) -> None:
        if item.get("type") != "reasoning":
            messages.append({"role": "assistant", "content": as_text(item)})
        elif thought := reasoning_text(item):
            reasoning.append({"before": len(messages), "text": thought})

    try:
        return from_items(given, other=other, strict=True), reasoning
    except ItemError as error:
        raise RowError(
            f"{path}[{error.index}]" + (f".{error.field}" if error.field else ""), error.text
        ) from error
