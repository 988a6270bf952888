"""Anthropic's content blocks: converts a conversation to chat messages, and a chat's answer to
blocks. Only the standard library.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from typing import Any

from workers.lib.messages.calls import ToolCall, native_calls, to_native
from workers.lib.messages.content import Message, reasoning_of, text_of
from workers.lib.messages.json_text import read_json

INVALID_JSON = "INVALID_JSON"
"""The name under which arguments that are not a JSON object are kept as text, as Anthropic
recommends for its fine-grained streaming."""
MEDIA = ("image", "document", "audio", "video")
READ = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}


Indexed = list[tuple[int, dict[str, Any]]]
"""Blocks, each with the index of its message."""


class BlockError(ValueError):
    """An invalid message: its index, and what is wrong with it, as the end of a sentence."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"messages[{index}] {problem}")
        self.index, self.problem = index, problem


def from_blocks(messages: list[dict[str, Any]]) -> list[Message]:
    """Chat messages. As in Anthropic's API, consecutive messages of a user or of the assistant are
    one turn. Results come right after the calls that they answer and in their order, before the
    text of their turn: a chat has no other place for them, and many templates do not write ids.

    Text blocks are joined: those of the assistant without, others by newlines. `thinking` becomes
    `reasoning_content`; `redacted_thinking`, citations and cache marks are left out. Raises
    BlockError.
    """
    conversation = _Conversation()
    for role, blocks in _turns(messages):
        if role == "assistant":
            conversation.add_answer(blocks)
        else:
            conversation.add_turn(role, blocks)
    return conversation.messages


def _turns(messages: list[dict[str, Any]]) -> list[tuple[str, Indexed]]:
    turns: list[tuple[str, Indexed]] = []
    for index, message in enumerate(messages):
        role, blocks = message.get("role"), blocks_of(message.get("content"))
        if not isinstance(role, str) or role not in READ:
            raise BlockError(index, f"must have one of the roles {', '.join(READ)}")
        if blocks is None:
            raise BlockError(index, "must have content: text or a list of blocks")
        if problem := next(filter(None, (_problem(block, role) for block in blocks)), ""):
            raise BlockError(index, problem)
        if role == "user" and not blocks:
            raise BlockError(index, "has no content")
        if not turns or turns[-1][0] != role or role == "system":
            turns.append((role, []))
        turns[-1][1].extend((index, block) for block in blocks)
    return turns


def blocks_of(content: Any) -> list[dict[str, Any]] | None:
    """The blocks of a content; None if it is neither text nor blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return content
    return None


def blocks_text(blocks: list[dict[str, Any]], joint: str = "\n") -> str:
    """The text of text blocks; a reference to a tool, as tool search returns it, is its name."""
    names = {"tool_reference": "tool_name"}
    texts = (block[names.get(block["type"], "text")] for block in blocks)
    return joint.join(filter(None, texts))


def text_problem(blocks: list[dict[str, Any]], also: tuple[str, ...] = ()) -> str:
    """What is wrong with blocks that must be text, as the end of a sentence."""
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and not isinstance(block.get("text"), str):
            return "has a text block without its text"
        if kind == "tool_reference" and not isinstance(block.get("tool_name"), str):
            return "has a tool_reference without its tool_name"
        if kind != "text" and kind not in also:
            return _unread(kind)
    return ""


def _unread(kind: Any) -> str:
    named = f"has a block of type {str(kind)[:40]!r}"
    return f"{named}; this model reads text" if kind in MEDIA else f"{named}, which is not read"


def _problem(block: dict[str, Any], role: str) -> str:
    kind = block.get("type")
    if kind not in READ[role]:
        return _unread(kind)
    if kind == "text":
        return text_problem([block])
    if kind == "tool_use":
        named = all(isinstance(block.get(name), str) and block[name] for name in ("id", "name"))
        right = named and isinstance(block.get("input"), dict)
        return "" if right else "has a tool_use that must have id, name and input, an object"
    if kind == "tool_result":
        content = blocks_of(block.get("content") or [])
        if not isinstance(block.get("tool_use_id"), str) or content is None:
            return "has a tool_result that must have tool_use_id, and text or blocks as content"
        return text_problem(content, also=("tool_reference",))
    if kind == "thinking" and not isinstance(block.get("thinking"), str):
        return "has a thinking block without its text"
    return ""


class _Conversation:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.open: dict[str, deque[int]] = {}  # places of the last answer's calls without a result
        self.answered: list[int] = []  # places of those with one
        self.answer_end = 0

    def add_answer(self, blocks: Indexed) -> None:
        self.messages.append(_answer([block for _, block in blocks]))
        self.open, self.answered, self.answer_end = {}, [], len(self.messages)
        for place, call in enumerate(self.messages[-1].get("tool_calls", ())):
            self.open.setdefault(call["id"], deque()).append(place)

    def add_turn(self, role: str, blocks: Indexed) -> None:
        texts = [block for _, block in blocks if block["type"] == "text"]
        for index, block in blocks:
            if block["type"] == "tool_result" and not self._add_result(block):
                named = repr(block["tool_use_id"][:80])
                raise BlockError(
                    index,
                    f"has a tool_result for {named}, which is not an unanswered call of the"
                    " assistant's message before it",
                )
        if texts or not blocks:
            self.messages.append({"role": role, "content": blocks_text(texts)})

    def _add_result(self, block: dict[str, Any]) -> bool:
        if not (places := self.open.get(block["tool_use_id"])):
            return False
        content = blocks_text(blocks_of(block.get("content") or []) or [])
        result = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}
        failed = {"is_error": True} if block.get("is_error") is True else {}
        before = bisect(self.answered, places[0])
        self.answered.insert(before, places.popleft())
        self.messages.insert(self.answer_end + before, result | failed)
        return True


def _answer(blocks: list[dict[str, Any]]) -> Message:
    """The assistant's message as a chat completion has it."""
    text = blocks_text([block for block in blocks if block["type"] == "text"], "")
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if thought := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: dict[str, Any]) -> dict[str, Any]:
    given = block["input"]
    made = to_native(block["name"], given, block["id"])
    if list(given) == [INVALID_JSON] and isinstance(given[INVALID_JSON], str):
        made["function"]["arguments"] = given[INVALID_JSON]
    return made


def answer_blocks(message: Message) -> list[dict[str, Any]]:
    """The blocks of an assistant's message: reasoning, text, calls. Reasoning has no signature,
    since only Anthropic's servers check one.
    """
    blocks: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := text_of(message):
        blocks.append({"type": "text", "text": text})
    for call in native_calls(message):
        blocks.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": _input(call)})
    return blocks


def _input(call: ToolCall) -> dict[str, Any]:
    try:
        given = read_json(call.arguments or "{}")
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {INVALID_JSON: call.arguments}
