"""The content of a message: its text, its reasoning, and whether it belongs to the prompt. Only the
standard library.

A message is OpenAI's chat message as JSON: {role, content: text or parts, reasoning_content?,
tool_calls?, tool_call_id?, name?}. Messages are untrusted: a field of another type counts as
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from workers.lib.messages.json_text import json_of

Message = dict[str, Any]

PROMPT_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
REASONING_PARTS = frozenset(("reasoning", "thinking", "redacted_thinking"))
_FENCE = re.compile(r"```[\w-]*\s*")
# Code and prose may mention the tags: quoted ones are text, and so is an opening tag within a line
# that is never closed.
_THINK = re.compile(
    r"(?P<start>(?:^|(?<=>))["
    r" \t]*)?(?<![\"'`])<think(?:ing)?>|(?P<close></)think(?:ing)?>(?![\"'`\\)])",
    re.IGNORECASE | re.MULTILINE,
)


def text_of(message: Message) -> str:
    """The text of a message without its reasoning; if an assistant refuses, its refusal.

    Parts are joined by newlines. Those of an assistant are pieces of one text (OpenAI's
    `output_text`, Anthropic's text between citations) and are joined without.
    """
    content = message.get("content")
    if content and isinstance(content, str):
        return content
    found = (
        content_text(content, "" if message.get("role") == "assistant" else "\n") if content else ""
    )
    refusal = message.get("refusal")
    return found or (refusal if isinstance(refusal, str) else "")


def content_text(content: Any, joint: str = "\n") -> str:
    """The text of a message's content: text, parts, or one part. Reasoning, images, files and calls
    have no text.
    """
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return joint.join(text for text in map(part_text, parts) if text)


def part_text(part: Any) -> str:
    """The text of one part of a content; "" for a part that is not text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or is_reasoning(part):
        return ""
    text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
    return text if isinstance(text, str) else ""


def without_reasoning(text: str) -> str:
    """An assistant's text with spaces in place of its reasoning between <think> and </think>: to
    the end if it is not closed, from the start if it was not opened. JSON is left unchanged.
    """
    if "think" not in text.lower() or json_of(text) is not None:
        return text
    hidden: list[tuple[int, int]] = []
    opened: re.Match | None = None
    for tag in _THINK.finditer(text):
        if not tag["close"]:
            opened = opened or tag
        elif opened:
            hidden.append((opened.start(), tag.end()))
            opened = None
        else:  # the chat template opened it, in the prompt
            hidden = [(0, tag.end())]
    if opened and opened["start"] is not None:
        hidden.append((opened.start(), len(text)))
    ends = [0, *(end for _, end in hidden)]
    kept = (
        text[at:start] + " " * (end - start) for at, (start, end) in zip(ends, hidden, strict=False)
    )
    return "".join([*kept, text[ends[-1] :]])


def is_reasoning(part: Any) -> bool:
    """Whether a part of a content is the model's reasoning, also as Gemini marks it."""
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return part.get("thought") is True or (isinstance(kind, str) and kind in REASONING_PARTS)


def reasoning_of(message: Message) -> str:
    """The model's reasoning before it answered, from a field of the message or from parts of its
    content.
    """
    for name in REASONING_FIELDS:
        if isinstance(found := message.get(name), str) and found:
            return found
    content = message.get("content")
    parts = filter(is_reasoning, content if isinstance(content, list) else ())
    names = ("text", "thinking", "reasoning")
    thoughts = (
        next((part[name] for name in names if isinstance(part.get(name), str)), "")
        for part in parts
    )
    return "\n".join(filter(None, thoughts))


def unfenced(text: str) -> str:
    """A text without a code fence around all of it, and without empty lines just inside."""
    first, line_end, rest = text.strip().partition("\n")
    if not line_end or not rest.endswith("```") or not _FENCE.fullmatch(first):
        return text
    inner = rest[:-3].rstrip()
    return inner[inner.rfind("\n", 0, len(inner) - len(inner.lstrip())) + 1 :]


def is_prompt(message: Message) -> bool:
    """Whether a message is the harness's instructions."""
    return message.get("role") in PROMPT_ROLES


def is_example(message: Message) -> bool:
    """Whether a message is a few-shot example in the prompt, by OpenAI's convention for `name`
    ("example_user").
    """
    name = message.get("name")
    return isinstance(name, str) and name.startswith("example_")


def system_prompt(messages: Iterable[Message]) -> str:
    """The text of all instructions."""
    return "\n\n".join(
        text for message in messages if is_prompt(message) and (text := text_of(message))
    )


def is_request(message: Message) -> bool:
    """Whether the message is a user's turn in the conversation itself, not in an example."""
    return message.get("role") == "user" and not is_example(message)


def last_request(messages: list[Message]) -> int | None:
    """The index of the user's last message; None if there is none."""
    return next(
        (index for index in range(len(messages) - 1, -1, -1) if is_request(messages[index])), None
    )


def last_answer(messages: list[Message]) -> Message:
    """The last message of the assistant; {} if there is none."""
    return next(
        (message for message in reversed(messages) if message.get("role") == "assistant"), {}
    )
