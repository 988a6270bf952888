"""SWE-agent's `.traj` files (trajectory, history, info) and mini-SWE-agent's (messages, info).

A submission is not a success: no such file says whether the tests pass. An end without a submission
is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    chat_message,
    digest,
    each,
    first,
    identity,
    items,
    obj,
    text,
    unpacked,
    usage,
    without_empty,
)

ENDINGS = (".gz", ".json", ".jsonl", ".traj")


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, lambda record: _run(record, name))


def _run(record: dict, name: str) -> dict:
    info = obj(record.get("info"))
    stats = obj(info.get("model_stats"))
    instance = text(first(record, "instance_id") or info.get("instance_id"), 120) or _stem(name)
    config = obj(unpacked(record.get("replay_config")))
    return {
        "id": identity("swe-agent", instance, digest(record)[:16]),
        "agent": {
            "name": "SWE-agent",
            "version": text(first(info, "swe_agent_version", "mini_version"), 120),
        },
        "model": _model(config, info),
        "workload": "swe-agent",
        "session_id": instance,
        "messages": _messages(record),
        "outcome": _outcome(info),
        "usage": usage(
            {
                "input_tokens": stats.get("tokens_sent"),
                "output_tokens": stats.get("tokens_received"),
            },
            first(stats, "instance_cost", "total_cost"),
        ),
        "metadata": without_empty(
            {
                "source": "swe-agent",
                "instance_id": instance,
                "environment": text(record.get("environment"), 200),
                "exit_status": text(info.get("exit_status")),
                "submission": text(info.get("submission")),
                "api_calls": stats.get("api_calls"),
            }
        ),
    }


def _stem(name: str) -> str:
    stem = PurePosixPath(name.replace("\\", "/")).name
    while (suffix := PurePosixPath(stem).suffix) in ENDINGS:
        stem = stem.removesuffix(suffix)
    return "" if stem == "-" else stem[:120]


def _model(config: dict, info: dict) -> str:
    named = (
        obj(obj(config.get("agent")).get("model")).get("name"),
        obj(obj(info.get("config")).get("model")).get("model_name"),
    )
    return next((text(name, 200) for name in named if text(name)), "")


def _outcome(info: dict) -> dict:
    status, submission = text(info.get("exit_status"), 120), text(info.get("submission"))
    if isinstance(info.get("resolved"), bool):
        return {"status": "success" if info["resolved"] else "failure", "label": status}
    if not status:
        return {"status": "unknown", "reason": "The file has no exit status."}
    if submission.strip() or status.lower().startswith("submitted"):
        return {
            "status": "unknown",
            "label": status,
            "reason": "Submitted; whether the tests pass is not in the file.",
        }
    return {
        "status": "failure",
        "label": status,
        "reason": f"Ended without a submission: {status}.",
    }


def _messages(record: dict) -> list[dict]:
    """From the history; where there is none, from the steps. Raises RowError."""
    messages = items(record.get("history")) or items(record.get("messages"))
    if messages:
        found: list[dict] = []
        for index, message in enumerate(messages):
            found += _turn(message, f"history[{index}]")
        return found
    steps = items(record.get("trajectory"))
    if not steps:
        raise RowError("trajectory", "neither history nor steps")
    return [
        turn for index, step in enumerate(steps) for turn in _step(step, f"trajectory[{index}]")
    ]


def _turn(message: Any, path: str) -> list[dict]:
    """Messages of the environment's end ("exit") are not turns; a demonstration is marked as an
    example of the prompt.
    """
    if not isinstance(message, dict):
        raise RowError(path, f"expected a message, got {type(message).__name__}")
    if message.get("role") == "exit":
        return []
    turns = chat_message(message, path)
    if message.get("is_demo") is True:
        turns = [
            {**turn, "name": f"example_{'assistant' if turn['role'] == 'assistant' else 'user'}"}
            for turn in turns
        ]
    return turns


def _step(step: Any, path: str) -> list[dict]:
    if not isinstance(step, dict):
        raise RowError(path, f"expected a step, got {type(step).__name__}")
    said = as_text(first(step, "response", "thought", "action"))
    return [
        {"role": "assistant", "content": said},
        {"role": "user", "content": as_text(step.get("observation"))},
    ]
