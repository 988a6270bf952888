"""A conversation as people read it: each call with its reply, long texts folded, images named and
not loaded. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from apps.trajectories.arguments import Checker
from workers.lib.messages import (
    RESULT_ROLES,
    OpenCalls,
    ToolCall,
    is_example,
    is_reasoning,
    native_calls,
    part_text,
    reasoning_of,
    unpacked,
)

HEAD, FOLD_ABOVE, SHOWN = (
    2_000,
    4_000,
    60_000,
)  # characters: before the fold, of what is folded, and at most
ROOM, BRIEF = (
    90_000,
    200,
    # bytes of HTML for all that is seen, and again for all that unfolds; characters of a text
    # without room
)
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
MEDIA = ("image", "audio", "video", "file", "document")


@dataclass(slots=True)
class Text:
    """`head` is seen, `rest` unfolds, `cut` characters are only in the raw JSON."""

    head: str
    rest: str = ""
    cut: int = 0


@dataclass(slots=True)
class Call:
    name: str
    arguments: Text
    id: str = ""
    given: Any = None  # the arguments as JSON where they are JSON
    problems: list[str] = field(default_factory=list)
    dangerous: bool = False
    reply: Turn | None = None

    @property
    def tool(self) -> str:
        return self.name


@dataclass(slots=True)
class Turn:
    """One message with the replies to its calls. `index` is its place in the trajectory."""

    index: int
    role: str
    name: str = ""
    text: Text | None = None
    thought: Text | None = None
    media: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reply_to: str = ""
    example: bool = False
    blamed: bool = False
    unanswered: bool = False
    interventions: list[dict] = field(default_factory=list)

    @property
    def css(self) -> str:
        return self.role if self.role in ROLES else ""

    @property
    def indices(self) -> set[int]:
        return {self.index} | {call.reply.index for call in self.calls if call.reply}


def turns_of(
    messages: Iterable[Any],
    tools: Any = None,
    *,
    first: int = 0,
    blamed: int | None = None,
    interventions: Iterable[dict] = (),
) -> list[Turn]:
    """The turns of messages of any shape. `first` is the index of the first; `interventions` stand
    at their turn.
    """
    checker, found = Checker(tools), []
    waiting: OpenCalls[Call] = OpenCalls()
    for index, message in enumerate(messages, first):
        message = message if isinstance(message, dict) else {"content": message}
        turn = _turn(message, index, checker)
        if turn.role in RESULT_ROLES and (call := waiting.take(message)):
            call.reply = turn
            continue
        found.append(turn)
        if turn.role == "assistant":
            waiting.add(turn.calls)
        elif turn.role not in RESULT_ROLES:
            waiting.end_turn()
    for turn in found:
        turn.blamed = blamed in turn.indices
        turn.unanswered = turn is not found[-1] and any(call.reply is None for call in turn.calls)
    _attach(found, interventions)
    return found


def fit(turns: list[Turn]) -> list[Turn]:
    """The same turns with texts cut so that a page of them stays light."""
    seen = unfolded = ROOM
    for text in (text for turn in turns for text in _texts(turn)):
        if (size := _weight(text.head)) > seen and len(text.head) > BRIEF:
            text.rest, text.head = text.head[BRIEF:] + text.rest, text.head[:BRIEF]
            size = _weight(text.head)
        seen -= min(seen, size)
        if (size := _weight(text.rest)) > unfolded:
            kept = len(text.rest) * unfolded // size
            text.rest, text.cut = text.rest[:kept], text.cut + len(text.rest) - kept
        unfolded -= min(unfolded, size)
    return turns


def _texts(turn: Turn) -> Iterator[Text]:
    yield from filter(None, (turn.thought, turn.text))
    for call in turn.calls:
        yield call.arguments
        if call.reply:
            yield from _texts(call.reply)


def _weight(text: str) -> int:
    return len(escape(text).encode(errors="replace"))


def _attach(turns: list[Turn], interventions: Iterable[dict]) -> None:
    by_index = {index: turn for turn in turns for index in turn.indices}
    for item in interventions:
        if turn := by_index.get(item.get("message_index")):
            turn.interventions.append(item)


def _turn(message: dict, index: int, checker: Checker) -> Turn:
    role, name = _word(message.get("role")) or "message", _word(message.get("name"))
    words, media = _content(message.get("content"))
    if isinstance(message.get("refusal"), str):
        words = "\n".join(filter(None, [words, message["refusal"]]))
    thought = reasoning_of(message)
    return Turn(
        index=index,
        role=role,
        name=name,
        text=fold(pretty(words) if role in RESULT_ROLES else words) if words else None,
        thought=fold(thought) if thought else None,
        media=media,
        calls=[_call(call, checker) for call in native_calls(message)],
        reply_to=_word(message.get("tool_call_id")),
        example=is_example(message),
    )


def _call(call: ToolCall, checker: Checker) -> Call:
    return Call(
        name=call.tool,
        arguments=fold("" if call.given is None else pretty(call.given)),
        id=call.id,
        given=unpacked(call.given),
        problems=checker.problems(call.tool, call.given),
        dangerous=call.tool in checker.dangerous,
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:200]


def pretty(value: Any) -> str:
    """JSON with indents; text that is not a JSON object or array as it is."""
    if isinstance(value, str):
        if len(value) > SHOWN or value.lstrip()[:1] not in ("{", "["):
            return value
        found = unpacked(value)
        if isinstance(found, str):
            return value
        value = found
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def fold(text: str) -> Text:
    if len(text) <= FOLD_ABOVE:
        return Text(text)
    return Text(text[:HEAD], text[HEAD:SHOWN], max(0, len(text) - SHOWN))


def _content(content: Any) -> tuple[str, list[str]]:
    """The words, and a note for each image, sound or file."""
    if content is None or isinstance(content, str):
        return content or "", []
    words, media = [], []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and (note := medium(part)):
            media.append(note)
        elif not is_reasoning(part):
            words.append(part_text(part) or json.dumps(part, ensure_ascii=False, default=str))
    return "\n".join(words), media


def medium(part: dict) -> str:
    """“image/png, 34 KB” or where it is stored, for a part that is not text; empty for others.
    Nothing of it is loaded.
    """
    kind = next((name for name in MEDIA if name in _word(part.get("type"))), "")
    if not kind:
        return ""
    holders = [part, *(value for value in part.values() if isinstance(value, dict))]
    for holder in holders:
        for key in ("url", "image_url", "data", "file_data", "image", "file_id"):
            if isinstance(value := holder.get(key), str) and value:
                return _described(
                    kind, value, _word(holder.get("media_type") or holder.get("format"))
                )
    return f"{kind}, empty"


def _described(kind: str, value: str, media_type: str) -> str:
    if value.startswith(("http://", "https://", "file-")):
        return f"{kind} at {value[:200]} (not loaded)"
    if value.startswith("data:"):
        media_type, _, value = value[5:].partition(",")
        media_type = media_type.partition(";")[0]
    size = len(value) * 3 // 4
    return (
        f"{media_type[:60] or kind}, {size / 1000:,.0f} KB"
        if size >= 1000
        else f"{media_type[:60] or kind}, {size} bytes"
    )
