"""Extracts an external agent's own messages from a conversation that it sent. Light and pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from typing import Any

from workers.lib.messages import (
    PROMPT_ROLES,
    Message,
    calls_of,
    is_example,
    same_json,
    text_of,
    without_reasoning,
)

INSIDE = ("result", "output", "response")
FOREIGN = {
    "tool_use",
    "tool_result",
    "tool-call",
    "tool-result",
    "toolUse",
    "toolResult",
    "functionCall",
    "functionResponse",
    "function_call",
    "function_response",
}
# Frameworks put a result that is not an object into one, and rollouts' addresses every result.
WRAPPERS = ({"result"}, {"output"}, {"output", "is_error"})
LONGEST_COMPARED = 200_000  # characters that are read as data; longer results are compared as text
MCP = {"content", "isError", "is_error", "structuredContent", "_meta", "meta"}
PART = {"type", "text", "annotations", "meta", "_meta"}
TAGGED = re.compile(r"\s*(?:<tool_response>(.*)</tool_response>|```\w*\n(.*)\n```)\s*", re.DOTALL)
CALLS, OWN_CALLS, TEXT, NOTHING = "calls", "own", "text", "nothing"
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
            turn = {name: value for name, value in message.items() if name != RESULTS}
            turns.append(turn | ({RESULTS: inside} if (inside := _results_inside(turn)) else {}))
        elif turn := _answered_by(message, turns):
            turn.setdefault(RESULTS, []).append([message.get("tool_call_id"), text_of(message)])
    return turns


def is_empty(turn: Message) -> bool:
    """Whether an agent's message neither says nor calls anything."""
    return not calls_of(turn) and not _is_visible(text_of(turn)) and not turn.get("function_call")


def answer_form(messages: list[Message], tools: Iterable[str] = ()) -> str:
    """The most that the assistant's messages have: CALLS (native or as text, also broken ones),
    OWN_CALLS (only of tools that are not among `tools`, where these are known), TEXT besides
    reasoning, or NOTHING.
    """
    turns = [message for message in messages if message.get("role") == "assistant"]
    calls = [call for turn in turns for call in calls_of(turn)]
    if calls:
        known = {_spelt(name) for name in tools}
        names = {_spelt(call.tool) for call in calls if call.tool}
        return OWN_CALLS if known and names and not names & known else CALLS
    said = any(_is_visible(without_reasoning(text_of(turn))) for turn in turns)
    return TEXT if said else NOTHING


def _spelt(name: str) -> str:
    """Without what servers change in a tool's name, since not all of them allow every character."""
    return re.sub(r"\W", "_", name).casefold()


def _is_visible(text: str) -> bool:
    return any(letter.isprintable() and not letter.isspace() for letter in text)


def foreign_part(messages: list[Message]) -> str:
    """Where a message has calls or results in another form than OpenAI's chat messages, in which
    they would be overlooked; "" if none has.
    """
    for at, message in enumerate(messages):
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            names = {*part, part.get("type")} if isinstance(part, dict) else set()
            if name := next(iter(FOREIGN & {n for n in names if isinstance(n, str)}), ""):
                return (
                    f"messages[{at}].content has a “{name}” part, which is not read: send OpenAI "
                    "chat messages, with calls in tool_calls and results in messages of role tool"
                )
    return ""


def _answered_by(message: Message, turns: list[Message]) -> Message | None:
    """The turn whose calls a message of another role answers: the one with its id, or else the last
    one, if it has calls. In what an agent did by itself, only results follow calls, whatever role
    they have.
    """
    wanted = message.get("tool_call_id")
    for turn in reversed(turns):
        calls = calls_of(turn)
        if wanted and any(call.id == wanted for call in calls):
            return turn
    return turns[-1] if turns and calls_of(turns[-1]) else None


def _results_inside(turn: Message) -> list[list[Any]]:
    """Results that stand in the calls themselves."""
    rows = []
    calls = turn.get("tool_calls")
    for item, call in zip(calls if isinstance(calls, list) else (), calls_of(turn), strict=False):
        own = item if isinstance(item, dict) else {}
        inside = next((own[name] for name in INSIDE if own.get(name) is not None), None)
        if inside is not None:
            text = inside if isinstance(inside, str) else json.dumps(inside, ensure_ascii=False)
            rows.append([call.id, text])
    return rows


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
    literals, else but for white space. What frameworks put around a result does not count: content
    parts, an object of one field, a fence or tag.
    """
    if len(one) > LONGEST_COMPARED or len(other) > LONGEST_COMPARED:
        return one.split() == other.split()
    try:
        return same_json(_value(one), _value(other))
    except RecursionError:
        return one.split() == other.split()


def _value(text: str) -> Any:
    if tagged := TAGGED.fullmatch(text):
        return _value(tagged[1] or tagged[2] or "")
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return _plain(value, text)
    return " ".join(text.split())


def _plain(value: Any, text: str) -> Any:
    """A value as JSON has it, without what is around a result."""
    if isinstance(value, str):
        return _value(value) if value != text else value
    if isinstance(value, dict) and value.keys() in WRAPPERS:
        inner = value["output"] if "output" in value else value["result"]
        return _value(inner) if isinstance(inner, str) else _plain(inner, text)
    if isinstance(value, dict) and isinstance(value.get("content"), list) and value.keys() <= MCP:
        value = value["content"]
    if (parts := _texts(value)) is not None:
        return _value("\n".join(parts))
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]["json"] if value[0].keys() == {"json"} else value
    return _json(value)


def _texts(value: Any) -> list[str] | None:
    """The texts of content parts; None for other values."""
    parts = value if isinstance(value, list) and value else [value]
    texts = [part["text"] for part in parts if isinstance(part, dict) and _is_text_part(part)]
    return texts if len(texts) == len(parts) else None


def _is_text_part(part: dict) -> bool:
    is_text = part.get("type", "text") in ("text", "output_text", "input_text")
    return isinstance(part.get("text"), str) and is_text and part.keys() <= PART


def _json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, float) and value != value:  # NaN is not equal to itself
        return "NaN"
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


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
