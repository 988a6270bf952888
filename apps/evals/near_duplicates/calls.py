"""What a task says and what it expects, taken out of messages and calls, for `compare` to compare
(`Document`). Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from apps.evals.near_duplicates.embedded import json_in, python_calls_in
from apps.evals.near_duplicates.glyphs import fold
from apps.evals.near_duplicates.text import content, is_slot, names_in, words
from workers.lib.messages import (
    ToolCall,
    calls_in,
    is_prompt,
    native_calls,
    part_text,
    text_of,
)

SLOT_WEIGHT = 2


def words_of(message: dict) -> str:
    """All that a message says: its text, its pictures and files as a digest each, the names and
    values of its calls.
    """
    content = message.get("content")
    parts = [_part(part) for part in content] if isinstance(content, list) else [text_of(message)]
    parts += [
        f"{call['tool']} {values_of(call['args'])}" for call in map(_bare, native_calls(message))
    ]
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
    """The values of what is expected, as texts: those of the calls' arguments, not the tools'
    names.
    """
    calls = (expected or {}).get("calls")
    parts = (
        [call.get("args") for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else [expected]
    )
    parts = [
        part.get("args") if isinstance(part, dict) and "tool" in part else part for part in parts
    ]
    return [str(leaf) for _, leaf in leaves_of(parts)]


def expected_leaves(expected: dict | None) -> frozenset[tuple[str, str, str]] | None:
    """(tool, argument, word) triples of what is expected; None if it says nothing that can be
    read.
    """
    if not expected:
        return None
    for form in ("answer", "constraint"):
        if form in expected:
            return frozenset(_triples("", {form: expected[form]}))
    calls = expected["calls"] if isinstance(expected.get("calls"), list) else [expected]
    calls = [call for call in calls if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    if not calls and expected.get("calls") != []:
        return None
    return frozenset(
        triple for call in calls for triple in _triples(call["tool"], call.get("args"))
    )


def _triples(tool: str, args: Any) -> Iterator[tuple[str, str, str]]:
    tool = fold(tool)
    yield tool, "", ""
    for path, leaf in leaves_of(args):
        text = f"{leaf:g}" if isinstance(leaf, float) else str(leaf)
        for word in words(text) or [text]:
            yield tool, path, word


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """(path, value) of everything that is neither object nor list; a loop, so that no depth is too
    much for it.
    """
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
    """{"calls": […]} that an answer makes, in any of the field's forms. None if it makes none: then
    nothing is known of it.
    """
    calls = calls_in(answer)
    return {"calls": [_bare(call) for call in calls]} if calls else None


def demonstrated(answer: str) -> dict | None:
    """{"calls": […]} that an answer in a task's or row's text makes or writes down: also in tags,
    among words, and as Python. None if it makes none."""
    return (
        expected_calls(answer)
        or expected_calls({"role": "assistant", "content": answer})
        or _written(answer)
    )


def _written(answer: str) -> dict | None:
    found = [
        call
        for _, _, value in json_in(answer)
        for call in (expected_calls(value) or {"calls": []})["calls"]
    ]
    found = found or list(python_calls_in(answer))
    return {"calls": found} if found else None


def _bare(call: ToolCall) -> dict:
    """{"tool", "args"}; arguments that cannot be read stay text."""
    return {"tool": call.tool, "args": call.arguments if call.args is None else call.args}


@dataclass(frozen=True, eq=False)
class Document:
    """A task as it is compared. `features` are sorted unique uint64; `calls` is None if nothing is
    expected of it.
    """

    features: np.ndarray
    words: frozenset[str]
    calls: frozenset[tuple[str, str, str]] | None = None
    values: frozenset[str] = frozenset()  # the words that are filled in: slots, names, arguments
    order: tuple[str, ...] = ()  # all words, also those that carry no wish


def document(
    messages: Sequence[dict], expected: dict | None = None, demonstration: str = ""
) -> Document:
    """What of a task is compared. Where `expected` is empty, what the demonstration calls is
    expected.
    """
    texts = [words_of(message) for message in messages if not is_prompt(message)]
    found = [word for text in texts for word in content(text)]
    if not found:  # nothing but signs: they themselves are the words
        found = "".join(fold(text) for text in texts).split()
    calls = expected_leaves(expected or expected_calls(demonstration))
    filled = {word for _, _, word in calls or ()}.union(*map(names_in, texts))
    values = frozenset(filled.intersection(found)).union(filter(is_slot, found))
    return Document(
        _features(found), frozenset(found), calls, values, tuple(words("\n".join(texts)))
    )


def _features(found: Iterable[str]) -> np.ndarray:
    """Hashes of (word, which occurrence); a slot has SLOT_WEIGHT of them for each."""
    seen: dict[str, int] = {}
    hashes: list[int] = []
    for word in found:
        for _ in range(SLOT_WEIGHT if is_slot(word) else 1):
            seen[word] = seen.get(word, 0) + 1
            hashes.append(_hash(word, seen[word]))
    return np.unique(np.array(hashes, dtype=np.uint64))


@lru_cache(maxsize=100_000)
def _hash(word: str, count: int) -> int:
    data = f"{count}\0{word}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


# The same calls

NAMESPACES = ("functions", "function", "tools", "tool", "default", "api", "mcp")
Argument = tuple[
    tuple[str, tuple[str, ...]], ...
]  # (path, words) of all that one argument's value holds; () of none


@dataclass(frozen=True)
class Call:
    """A call in one spelling: for each argument all values with which it is right, as its `args`
    are or as `accept` lists.
    """

    tool: str
    arguments: Mapping[str, frozenset[Argument]]

    @property
    def keys(self) -> dict[str, list[Hashable]]:
        """{argument that must be given: what equals one of the keys of the same call}."""
        return {
            name: [(self.tool, name, value) for value in values]
            for name, values in self.arguments.items()
            if () not in values
        }

    def common(self, other: Call) -> tuple | None:
        """The call that is right for both; None if there is none."""
        found: list = []
        for name in sorted(self.arguments.keys() | other.arguments.keys()):
            both = self.arguments.get(name, _NONE) & other.arguments.get(name, _NONE)
            if not both:
                return None
            found += min(both)
        return (self.tool, tuple(found)) if self.tool == other.tool else None


_NONE: frozenset[Argument] = frozenset([()])


def calls_of(expected: dict | None) -> list[Call]:
    """The expected calls, sorted by tool. Empty if no call is expected."""
    if not expected or "answer" in expected or "constraint" in expected:
        return []
    calls = expected["calls"] if isinstance(expected.get("calls"), list) else [expected]
    found = [
        _call(call)
        for call in calls
        if isinstance(call, dict) and isinstance(call.get("tool"), str)
    ]
    return sorted(found, key=lambda call: call.tool)


def _call(call: dict) -> Call:
    args, accept = call.get("args"), call.get("accept")
    if not isinstance(args, dict):
        args = {"": args}
    values = {name: [value] for name, value in args.items()}
    for name, more in accept.items() if isinstance(accept, dict) else ():
        if isinstance(more, list):
            values[name] = [*values.get(name, ()), *more]
    right = {
        name: frozenset(_arguments({name: value}) for value in some)
        for name, some in values.items()
    }
    return Call(
        _tool(call["tool"]), {name: some for name, some in right.items() if some and some != _NONE}
    )


def keys_of(calls: Sequence[Call]) -> Iterator[Hashable]:
    """What calls are found by: what any of their arguments may be, also those that may be left out;
    and their tools.
    """
    for call in calls:
        yield from (
            (call.tool, name, value) for name, values in call.arguments.items() for value in values
        )
    if calls:
        yield from tools_of(calls)


def tools_of(calls: Sequence[Call]) -> list[Hashable]:
    return [tuple(call.tool for call in calls)]


@lru_cache(maxsize=20_000)
def _tool(name: str) -> str:
    """A tool's name without its joints and what a client puts before it: calendar.create,
    calendar_create, functions.calendar.create.
    """
    parts = [part for part in re.split(r"[\W_]+", fold(name)) if part]
    while len(parts) > 1 and parts[0] in NAMESPACES:
        parts.pop(0)
    return "".join(parts) or fold(name)


def same_calls(ours: Sequence[Call], theirs: Sequence[Call]) -> tuple | None:
    """Calls that are right for both, in whatever order they are made; None if there are none."""
    if [call.tool for call in ours] != [call.tool for call in theirs]:
        return None
    left, found = list(theirs), []
    for call in sorted(
        ours, key=lambda one: sum(map(len, one.arguments.values()))
    ):  # the least choice first
        at, both = next(
            ((at, both) for at, other in enumerate(left) if (both := call.common(other))), (0, None)
        )
        if both is None:
            return None
        left.pop(at)
        found.append(both)
    return tuple(found)


def _arguments(args: Any) -> Argument:
    """(path, words) of all arguments but empty ones; what a list holds stays in its order."""
    found = [
        (path, tuple(words(_as_text(leaf)) or [str(leaf)]))
        for path, leaf in leaves_of(args)
        if leaf != ""
    ]
    return tuple(sorted(found, key=lambda item: item[0]))


def _as_text(leaf: Any) -> str:
    return f"{leaf:.15g}" if isinstance(leaf, float) else str(leaf)


def weight_of(key: tuple) -> int:
    """How much calls say about their request, from their different values: a letter 1, a digit of a
    longer number 2, of a number below 100 (a page size, a count) 1, true and false nothing."""
    values = {word for _, args in key for _, value in args for word in value} - {"tru", "fals"}
    return sum(
        len(word) * (2 if any(map(str.isdigit, word)) and len(word) > 2 else 1) for word in values
    )
