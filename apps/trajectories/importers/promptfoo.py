"""Promptfoo's results (`promptfoo eval -o results.json`, .yaml or .jsonl): one run a test case and
prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.trajectories.decoding import RowError
from apps.trajectories.dialects import holds_messages, messages_of, tool_call
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    as_text,
    digest,
    each,
    identity,
    items,
    number,
    obj,
    positive,
    text,
    unpacked,
    usage,
    without_empty,
)

USAGE = {"prompt": "prompt_tokens", "completion": "completion_tokens"}


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    return each(records, _result)


def _result(record: dict) -> dict:
    prompt, response = obj(record.get("prompt")), obj(record.get("response"))
    grading, case = obj(record.get("gradingResult")), obj(record.get("testCase"))
    provider = record.get("provider")
    cost = record.get("cost") if record.get("cost") is not None else response.get("cost")
    tokens = obj(response.get("tokenUsage"))
    messages = asked(prompt.get("raw")) + answered(response.get("output"))
    if not messages:
        raise RowError("prompt", "neither a prompt nor an answer")
    return without_empty(
        {
            "id": identity("promptfoo", text(record.get("id")) or digest(record)),
            "messages": messages,
            "model": text(obj(provider).get("id") or provider, 200),
            "agent": without_empty({"version": text(prompt.get("label"), 120)}),
            "workload": "promptfoo",
            "outcome": _outcome(record, grading),
            "usage": usage({name: tokens.get(key) for key, name in USAGE.items()}, cost),
            "latency_ms": positive(record.get("latencyMs")),
            "metadata": without_empty(
                {
                    "source": "promptfoo",
                    "test": text(case.get("description")),
                    "vars": record.get("vars"),
                    "assertions": [
                        _component(one) for one in items(grading.get("componentResults"))
                    ],
                    "scores": [
                        {"name": name, "value": value}
                        for name, value in obj(record.get("namedScores")).items()
                    ],
                    "metadata": obj(case.get("metadata")),
                    "tokens": tokens,
                }
            ),
        }
    )


def asked(raw: Any) -> list[dict]:
    """The messages of a rendered prompt: JSON of them, or words of the user."""
    found = unpacked(raw)
    if holds_messages(found):
        return messages_of(found, "user")
    return [{"role": "user", "content": as_text(raw)}] if raw not in (None, "") else []


def answered(output: Any) -> list[dict]:
    """The answer: text, tool calls as their JSON, or any other value as its JSON."""
    if output in (None, "", [], {}):
        return []
    found = unpacked(output)
    parts = found if isinstance(found, list) else [found]
    calls = [tool_call(one) for one in parts if isinstance(obj(one).get("function"), dict)]
    if len(calls) == len(parts) and all(calls):
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    return [{"role": "assistant", "content": as_text(output)}]


def _outcome(record: dict, grading: dict) -> dict:
    passed = record.get("success")
    reason = text(record.get("error")) or text(grading.get("reason"))
    status = {True: "success", False: "failure"}.get(passed) if isinstance(passed, bool) else None
    return without_empty(
        {
            "status": status or "unknown",
            "reward": number(record.get("score")),
            "reason": reason[:2000],
        }
    )


def _component(given: Any) -> dict:
    one = obj(given)
    kept = {name: one.get(name) for name in ("pass", "score", "reason")}
    checked = obj(one.get("assertion"))
    return without_empty(kept | {name: checked.get(name) for name in ("type", "value", "metric")})
