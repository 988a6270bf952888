"""What a task says and what it expects, taken out of messages and calls for `compare` to compare. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from apps.evals.near_duplicates.text import fold, words
from apps.trajectories.json_text import parsed


def text_of(message: dict) -> str:
    """The text of a message: its content, and the names and values of the calls it makes."""
    parts = [_content(message.get("content"))]
    parts += [f"{call['tool']} {values_of(call['args'])}" for call in native_calls(message)]
    return "\n".join(part for part in parts if part)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _part(part: dict) -> str:
    """A text part's text. Anything else, such as a picture, is one word: its digest."""
    if isinstance(part.get("text"), str):
        return part["text"]
    text = json.dumps(part, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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


def calls_of(answer: Any) -> dict | None:
    """{"calls": […]} that an answer makes: an OpenAI assistant message, {"tool", "args"}, or either as JSON text.

    None where it makes none that can be read: then nothing is known of it.
    """
    value = parsed(answer)
    if isinstance(value, list):
        calls = [call for item in value for call in (calls_of(item) or {}).get("calls", [])]
    elif not isinstance(value, dict):
        return None
    elif isinstance(value.get("tool"), str):
        calls = [{"tool": value["tool"], "args": value.get("args") or {}}]
    elif value.get("tool_calls"):
        calls = native_calls(value)
    else:
        return calls_of(value["content"]) if isinstance(value.get("content"), str) else None
    return {"calls": calls} if calls else None


def native_calls(message: dict) -> list[dict]:
    """[{"tool", "args"}] of an OpenAI message; arguments that do not parse stay text."""
    given = message.get("tool_calls")
    made = []
    for call in given if isinstance(given, list) else []:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):
            made.append({"tool": str(function.get("name") or ""), "args": parsed(function.get("arguments"))})
    return made
