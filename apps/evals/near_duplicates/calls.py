"""What a task says and what it expects, taken out of messages and calls for `compare` to compare. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from apps.evals.near_duplicates.text import fold, words
from workers.lib.messages import ToolCall, calls_in, native_calls, part_text, text_of


def words_of(message: dict) -> str:
    """All that a message says: its text, its pictures and files as a digest each, the names and values of its calls."""
    content = message.get("content")
    parts = [_part(part) for part in content] if isinstance(content, list) else [text_of(message)]
    parts += [f"{call['tool']} {values_of(call['args'])}" for call in map(_bare, native_calls(message))]
    return "\n".join(part for part in parts if part)


def _part(part: Any) -> str:
    """A text part's text. Anything else, such as a picture, is one word: its digest."""
    if text := part_text(part):
        return text
    found = json.dumps(part, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(found.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def values_of(value: Any) -> str:
    return " ".join(str(leaf) for _, leaf in leaves_of(value))


def expected_leaves(expected: dict | None) -> frozenset[tuple[str, str, str]] | None:
    """(tool, argument, word) triples of what is expected; None where it says nothing that can be read."""
    if not expected:
        return None
    for form in ("answer", "constraint"):
        if form in expected:
            return frozenset(_triples("", {form: expected[form]}))
    calls = expected["calls"] if isinstance(expected.get("calls"), list) else [expected]
    calls = [call for call in calls if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    if not calls and expected.get("calls") != []:
        return None
    return frozenset(triple for call in calls for triple in _triples(call["tool"], call.get("args")))


def _triples(tool: str, args: Any) -> Iterator[tuple[str, str, str]]:
    tool = fold(tool)
    yield tool, "", ""
    for path, leaf in leaves_of(args):
        text = f"{leaf:g}" if isinstance(leaf, float) else str(leaf)
        for word in words(text) or [text]:
            yield tool, path, word


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """(path, value) of everything that is neither object nor list; a loop, so that no depth is too much for it."""
    found: list[tuple[str, Any]] = []
    left = [("", value)]
    while left:
        path, item = left.pop()
        if isinstance(item, dict):
            left += [(f"{path}.{key}", inner) for key, inner in reversed(item.items())]
        elif isinstance(item, list):
            left += [(path, inner) for inner in reversed(item)]
        elif item is not None:
            found.append((path, item))
    return found


def expected_calls(answer: Any) -> dict | None:
    """{"calls": […]} that an answer makes, in any of the field's forms. None where it makes none: then nothing is known of it."""
    calls = calls_in(answer)
    return {"calls": [_bare(call) for call in calls]} if calls else None


def _bare(call: ToolCall) -> dict:
    """{"tool", "args"}; arguments that cannot be read stay text."""
    return {"tool": call.tool, "args": call.arguments if call.args is None else call.args}
