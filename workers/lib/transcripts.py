"""Extracts an external agent's own messages from a conversation that it sent. Light and pure."""

from __future__ import annotations

import ast
import json
from typing import Any

from workers.lib.messages import PROMPT_ROLES, Message, calls_of, is_example, same_json, text_of

RESULTS = "results"  # of an agent's message: what its calls returned to it, in their order


def agent_turns(messages: list[Message], prompt: list[Message]) -> list[Message]:
    """The assistant's messages after the task's own, with which a whole conversation begins; a
    message with calls has the `RESULTS` that the agent reports for them, so that a replay can be
    compared with what the agent saw.

    Instructions and examples are ignored on both sides: the agent has its own, and need not repeat
    the task's.
    """
    said, asked = _conversation(messages), _conversation(prompt)
    whole = len(said) >= len(asked) and all(map(_same, said, asked))
    turns: list[Message] = []
    for message in said[len(asked) if whole else 0 :]:
        if message.get("role") == "assistant":
            turns.append({name: value for name, value in message.items() if name != RESULTS})
        elif message.get("role") in ("tool", "function") and turns:
            turns[-1].setdefault(RESULTS, []).append(
                [message.get("tool_call_id"), text_of(message)]
            )
    return turns


def reported_results(turn: Any) -> list[str | None]:
    """What the agent says that each call of its message returned, None where it does not say.
    Results are found by the id of their call, those without one in their order.
    """
    rows = turn.get(RESULTS) if isinstance(turn, dict) else None
    if not isinstance(rows, list):
        return []
    given = [row for row in rows if isinstance(row, list) and len(row) == 2]
    ids = [call.id for call in calls_of(turn)]
    by_id = {name: str(text) for name, text in given if name and ids.count(name) == 1}
    rest = iter([str(text) for name, text in given if name not in by_id])
    return [by_id[name] if name in by_id else next(rest, None) for name in ids]


def same_result(one: str, other: str) -> bool:
    """Whether two texts of a tool's result say the same: as data where both are JSON or Python
    literals, else but for white space.
    """
    return same_json(_value(one), _value(other))


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, (dict, list, str, int, float, bool, type(None))):
            return _value(value) if isinstance(value, str) and value != text else value
    return " ".join(text.split())


def _conversation(messages: list[Message]) -> list[Message]:
    return [
        message
        for message in messages
        if message.get("role") not in PROMPT_ROLES and not is_example(message)
    ]


def _same(one: Message, other: Message) -> bool:
    if one.get("role") != other.get("role") or text_of(one) != text_of(other):
        return False
    return same_json(
        [call.plain for call in calls_of(one)], [call.plain for call in calls_of(other)]
    )
