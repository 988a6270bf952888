"""What a task says and what it expects, taken out of messages and calls for `compare` to compare. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice, product
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
    return part_text(part) or digest_of_part(part)


def digest_of_part(part: Any) -> str:
    found = json.dumps(part, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(found.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def values_of(value: Any) -> str:
    return " ".join(str(leaf) for _, leaf in leaves_of(value))


def values_in(expected: dict | None) -> list[str]:
    """The values of what is expected, as texts: those of the calls' arguments, not the tools' names."""
    calls = (expected or {}).get("calls")
    parts = [call.get("args") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [expected]
    parts = [part.get("args") if isinstance(part, dict) and "tool" in part else part for part in parts]
    return [str(leaf) for _, leaf in leaves_of(parts)]


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


# The same calls

CallsKey = tuple
ALTERNATIVES = 64  # of the right calls of one task


def keys_of_calls(expected: dict | None) -> list[CallsKey]:
    """What equals the same of another task if both expect the same calls with the same arguments, in any order; one for each
    way that `accept` allows, the first ALTERNATIVES of them. Empty where no call is expected."""
    if not expected or "answer" in expected or "constraint" in expected:
        return []
    calls = expected["calls"] if isinstance(expected.get("calls"), list) else [expected]
    calls = [call for call in calls if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    if not calls:
        return []
    ways = [list(islice(_ways(call), ALTERNATIVES)) for call in calls]
    return list(dict.fromkeys(tuple(sorted(made)) for made in islice(product(*ways), ALTERNATIVES)))


def _ways(call: dict) -> Iterator[tuple]:
    """The call in one spelling, first as its `args` are, then with every other accepted value."""
    tool, args = fold(call["tool"]), call.get("args")
    yield tool, _arguments(args)
    accept = call.get("accept")
    if isinstance(args, dict) and isinstance(accept, dict):
        choices = [[(name, value) for value in values] for name, values in accept.items() if isinstance(values, list)]
        for chosen in product(*choices):
            yield tool, _arguments(args | dict(chosen))


def _arguments(args: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(path, words) of all arguments but empty ones; what a list holds stays in its order."""
    found = [(path, tuple(words(_as_text(leaf)) or [str(leaf)])) for path, leaf in leaves_of(args) if leaf != ""]
    return tuple(sorted(found, key=lambda item: item[0]))


def _as_text(leaf: Any) -> str:
    return f"{leaf:.15g}" if isinstance(leaf, float) else str(leaf)


def weight_of(key: CallsKey) -> int:
    """How much calls say about their request, from their different values: a letter 1, a digit of a longer number 2, of a
    number below 100 (a page size, a count) 1, true and false nothing."""
    values = {word for _, args in key for _, value in args for word in value} - {"tru", "fals"}
    return sum(len(word) * (2 if any(map(str.isdigit, word)) and len(word) > 2 else 1) for word in values)
