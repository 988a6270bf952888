"""Writes a conversation with tools for a model: for its chat template or, if that does not support
tools, as text. Pure.
"""

from __future__ import annotations

import json
import re

from workers.lib.messages import ToolCall, native_calls, text_of, to_native, to_text

# What a template says in `raise_exception` if it refuses a system message, or two messages of one
# role in a row.
NO_SYSTEM = re.compile(r"raise_exception\(\s*['\"][^'\"]*\bsystem\b[^'\"]*['\"]", re.IGNORECASE)
ALTERNATES = re.compile(r"raise_exception\(\s*['\"][^'\"]*\balternat[^'\"]*['\"]", re.IGNORECASE)
HOW_TO_CALL = 'To call a tool, answer with {"tool": name, "args": {…}} and nothing else. The tools:'


def written_for(
    template: str, messages: list[dict], tools: list[dict]
) -> tuple[list[dict], list[dict] | None]:
    """(messages, tools) for a chat template: native tools if it supports them, otherwise everything
    as text in the messages.
    """
    if "tools" in template:
        return for_template(messages), tools or None
    return as_text(messages, tools, template), None


def as_text(messages: list[dict], tools: list[dict], template: str = "") -> list[dict]:
    """A conversation without native calls: calls as the JSON that agents write, results as user
    turns, the tools at the end of the system prompt. Where the template refuses a system message
    (Gemma), that begins the user's first one; where it refuses two messages of one role in a row,
    they are one.
    """
    written = _with_tools(messages, tools)
    if NO_SYSTEM.search(template):
        written = [
            message | {"role": "user" if message["role"] == "system" else message["role"]}
            for message in written
        ]
    return (
        _alternating(written)
        if NO_SYSTEM.search(template) or ALTERNATES.search(template)
        else written
    )


def _alternating(messages: list[dict]) -> list[dict]:
    made: list[dict] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"]:
            parts = [text_of(made[-1]), text_of(message)]
            made[-1] = made[-1] | {"content": "\n\n".join(filter(None, parts))}
        else:
            made.append(message)
    return made


def _with_tools(messages: list[dict], tools: list[dict]) -> list[dict]:
    written = [_written(message) for message in messages]
    if not tools:
        return written
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    how = "\n".join([HOW_TO_CALL, *lines])
    if written and written[0]["role"] == "system":
        return [written[0] | {"content": f"{written[0]['content']}\n\n{how}"}, *written[1:]]
    return [{"role": "system", "content": how}, *written]


def _written(message: dict) -> dict:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result: {text_of(message)}"}
    calls = [to_text(call.tool, _args(call)) for call in native_calls(message)]
    return {"role": message["role"], "content": "\n".join(filter(None, [text_of(message), *calls]))}


def _args(call: ToolCall) -> dict:
    """Arguments that are not a JSON object are shown to the model as it wrote them."""
    return call.arguments if call.args is None else call.args  # type: ignore[return-value]


def for_template(messages: list[dict]) -> list[dict]:
    """The format that chat templates with tool support expect: contents as text, arguments of calls
    as objects.
    """
    return [_for_template(message) for message in messages]


def _for_template(message: dict) -> dict:
    calls = native_calls(message)
    native = [to_native(call.tool, {}, call.id) for call in calls]
    for item, call in zip(native, calls, strict=True):
        item["function"]["arguments"] = _args(call)
    return message | {"content": text_of(message)} | ({"tool_calls": native} if native else {})
