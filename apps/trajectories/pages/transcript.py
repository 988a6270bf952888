"""A conversation as people read it: each call with its reply, long texts folded, images named and
not loaded. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import Any

from apps.core.bidi import escaped
from apps.trajectories import media
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
UNTYPED = ("inline_data", "inlineData", "file_data", "fileData", *MEDIA)  # Gemini's and Bedrock's
SOURCES = (
    *("url", "image_url", "uri", "file_uri", "fileUri", "data", "file_data", "bytes", "blob"),
    *("content", "image", "audio", "video", "result", "file_id", "id"),
)
FILE_NAMES = ("filename", "file_name", "displayName", "display_name", "title", "name")
LONGEST_NAME, SHOWN_MEDIA = 200, 40  # of a file; of a message


@dataclass(slots=True)
class Text:
    """`head` is seen, `rest` unfolds, `cut` characters are only in the raw JSON."""

    head: str
    rest: str = ""
    cut: int = 0


@dataclass(slots=True)
class Medium:
    """A picture, sound or file of a message. What has an `address` is elsewhere and is not loaded;
    what has a `digest` is here, and `stored` once it was looked up. `sent_as`: the name of its file
    in the message.
    """

    note: str
    address: str = ""
    digest: str = ""
    transcript: Text | None = None
    stored: Any = None
    sent_as: str = ""

    @property
    def name(self) -> str:
        return self.sent_as or (self.stored.name if self.stored else "")


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
    media: list[Medium] = field(default_factory=list)
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
    yield from filter(None, (turn.thought, turn.text, *(one.transcript for one in turn.media)))
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
    words, shown = _content(message)
    if isinstance(message.get("refusal"), str):
        words = "\n".join(filter(None, [words, message["refusal"]]))
    thought = reasoning_of(message)
    return Turn(
        index=index,
        role=role,
        name=name,
        text=fold(pretty(words) if role in RESULT_ROLES else words) if words else None,
        thought=fold(thought) if thought else None,
        media=shown,
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
    return escaped(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def fold(text: str) -> Text:
    if len(text) <= FOLD_ABOVE:
        return Text(text)
    return Text(text[:HEAD], text[HEAD:SHOWN], max(0, len(text) - SHOWN))


def _content(message: dict) -> tuple[str, list[Medium]]:
    """The words, and each picture, sound or file."""
    content = message.get("content")
    words, found = [], []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and (one := medium(part)):
            found.append(one)
        elif isinstance(part, str):
            words.append(part)
        elif part is not None and not is_reasoning(part):
            words.append(part_text(part) or json.dumps(part, ensure_ascii=False, default=str))
    pictures = message.get("images")
    beside = [message.get("audio"), *(pictures if isinstance(pictures, list) else ())]
    found += filter(None, (medium(one, "audio") for one in beside if isinstance(one, dict)))
    text = "\n".join(words)
    if media.SCHEME in text:  # in the JSON of a tool's reply
        matches = islice(media.REFERENCE.finditer(text), SHOWN_MEDIA)
        found += map(_described, dict.fromkeys(match[0] for match in matches))
        text = media.unquoted(text)
    if len(found) > SHOWN_MEDIA:
        found[SHOWN_MEDIA:] = [Medium(f"{len(found) - SHOWN_MEDIA:,} more, in the raw JSON")]
    return text, found


def medium(part: dict, kind: str = "") -> Medium | None:
    """None for a part that is text."""
    kind = _kind_of(part) or kind
    if not kind:
        return None
    found: dict[str, str] = {}
    _collect(part, found)
    declared = next((found[name] for name in media.DECLARES if name in found), "")
    source = next((found[name] for name in SOURCES if name in found), "")
    one = _described(source, kind, declared) if source else Medium(f"{kind}, empty")
    one.transcript = fold(found["transcript"]) if "transcript" in found else None
    sent_as = next((found[name] for name in FILE_NAMES if name in found), "")[:LONGEST_NAME]
    one.sent_as = "".join(filter(str.isprintable, sent_as))  # its end cannot be turned round
    return one


def _kind_of(part: dict) -> str:
    kind = _word(part.get("type"))
    if named := next((name for name in MEDIA if name in kind), ""):
        return named
    if kind in ("blob", "uri"):
        return _word(part.get("modality")) or "file"
    if kind:
        return ""
    return next((name for name in UNTYPED if isinstance(part.get(name), dict)), "").partition("_")[
        0
    ]


def _collect(value: dict, found: dict[str, str], depth: int = 0) -> None:
    """The texts of a part by their keys, the outer ones first."""
    for name, item in value.items():
        if isinstance(item, str) and item:
            found.setdefault(name, item)
    for item in value.values():
        if isinstance(item, dict) and depth < 3:
            _collect(item, found, depth + 1)


def _described(source: str, kind: str = "file", declared: str = "") -> Medium:
    if match := media.REFERENCE.search(source):
        return Medium(f"{declared or kind}, no longer stored", digest=match[1])
    if source.startswith(("http://", "https://")):
        return Medium(kind, address=source)
    if source.startswith("data:"):
        declared, _, source = source[5:].partition(",")
        declared = declared.partition(";")[0]
    elif len(source) < media.SHORTEST and not declared:
        return Medium(f"{kind} {source}")  # the id of a file of the provider
    size = len(source) * 3 // 4
    about = f"{size / 1000:,.0f} KB" if size >= 1000 else f"{size} bytes"
    return Medium(f"{declared[:60] or kind}, {about}")
