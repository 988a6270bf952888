"""Decides who is to blame if an answer cannot be judged: the agent, if the same verifier can judge
another answer to the same task. Then the answer fails, so that no agent escapes a penalty by
breaking its verifier. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from workers.lib.messages import to_native
from workers.lib.verifiers.types import Rollout

MAX_ANSWER = 1_000_000  # characters and parts of everything that the agent said
NEUTRAL = ("I do not know.", "")


def is_too_large(messages: Any) -> bool:
    """Whether the agent said more than is judged; stops reading at that point."""
    said = [
        message
        for message in messages
        if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    waiting: list[Any] = [said]
    left = MAX_ANSWER
    while waiting and left >= 0:
        item = waiting.pop()
        left -= 1 + (len(item) if isinstance(item, str | list | dict) else 0)
        if isinstance(item, list):
            waiting.extend(item[: max(0, left)])
        elif isinstance(item, dict):
            waiting.extend(item.values())
            left -= sum(len(name) for name in item if isinstance(name, str))
    return left < 0


def controls(rollout: Rollout) -> Iterator[Rollout]:
    """The same task with answers known to be right, or else with some that no verifier should fail
    on.
    """
    expected = rollout.expected
    known = list(_right(rollout.task, expected))
    state = None
    if rollout.state is not None:
        state = (
            rollout.expected_state
            if rollout.expected_state is not None
            else expected.get("state", {})
        )
    stats = {"turns": 1, "stop_reason": "stop"}
    messages = known or [_saying(text) for text in NEUTRAL]
    # With the calls that were made, since harm must be penalised.
    for calls in (rollout.calls, []) if rollout.calls else ([],):
        for message in messages:
            yield replace(rollout, messages=[message], calls=calls, state=state, stats=stats)


def _right(task: dict, expected: dict) -> Iterator[dict]:
    """The demonstration, the expected calls and the expected answer as messages, if the task has
    them.
    """
    if isinstance(task.get("demonstration"), str) and task["demonstration"]:
        yield _saying(task["demonstration"])
    calls = expected.get("calls", [expected] if "tool" in expected else [])
    if calls and isinstance(calls, list) and all(map(_is_call, calls)):
        native = [
            to_native(call["tool"], call["args"], f"call_{n}") for n, call in enumerate(calls)
        ]
        yield _saying("") | {"tool_calls": native}
    answer = expected.get("answer")
    answer = answer[0] if isinstance(answer, list) and answer else answer
    if answer not in (None, "", []):
        yield _saying(answer if isinstance(answer, str) else json.dumps(answer, default=repr))


def _saying(text: str) -> dict:
    return {"role": "assistant", "content": text}


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("tool"), str)
        and isinstance(value.get("args"), dict)
    )
