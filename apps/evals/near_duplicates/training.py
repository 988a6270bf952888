"""The requests that a training row teaches to answer, and all texts in it, whatever its format.
Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apps.evals.near_duplicates.calls import (
    digest_of_part,
    expected_calls,
    leaves_of,
    values_of,
    words_of,
)
from workers.lib.messages import is_prompt, part_text, read_repeated

TRAINED = (
    "prompt",
    "messages",
    "input",
    "demonstration",
    "completion",
    "chosen",
    "preferred_output",
    "output",
)
FIELDS = frozenset(
    [
        "role",
        "content",
        "type",
        "text",
        "name",
        "description",
        "parameters",
        "function",
        "arguments",
        "tool_calls",
        "tool_call_id",
        "id",
        "properties",
        "required",
        "items",
        "enum",
        "tools",
        "messages",
        "expected",
        "demonstration",
        "metadata",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "examples",
        "input",
        "output",
        "tool",
        "args",
        "accept",
        "answer",
        "calls",
        "constraint",
        "key",
        "group",
        "split",
        "preferred_output",
        "non_preferred_output",
    ]
)
_TEXT_FILE = re.compile(
    r"data:(?:text/|application/json)[^,;]*(?:;charset=[^,;]*)?(?P<base64>;base64)?,", re.I
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Unit:
    """One request inside a training row and what it teaches to answer."""

    messages: list[dict]
    expected: dict | None = None
    demonstration: str = ""

    @property
    def text(self) -> str:
        return "\n".join(words_of(message) for message in self.messages if not is_prompt(message))


def passages(row: Any) -> list[tuple[str, str]]:
    """(role, text) of every string in a training row, in order: messages, calls, tools with their
    schemas, answers.

    The role is that of the message around it, "" outside messages. A string that is a JSON text is
    its strings; a picture or file is its digest, as in `words_of`. What a row asks and answers
    comes first, as it trains. A loop, so that no depth is too much for it.
    """
    found: list[tuple[str, str]] = []
    left: list[tuple[str, Any]] = [("", _as_trained(row))]
    while left:
        role, value = left.pop()
        if isinstance(value, str):
            inner = _inside(value)
            if inner is None:
                found.append((role, value))
            else:
                left.append((role, inner))
        elif isinstance(value, dict):
            own = value.get("role")
            role = own if isinstance(own, str) else role
            left += [(role, item) for key, item in reversed(value.items()) if key != "role"]
        elif isinstance(value, list):
            left += [(role, _shown(item)) for item in reversed(value)]
        elif value is not None:
            found.append((role, str(value)))
    return found


def _as_trained(row: Any) -> Any:
    """The row's fields in the order in which they are one conversation: chat templates put the
    tools before it.
    """
    if not isinstance(row, dict):
        return row
    first = [name for name in ("tools", *TRAINED) if name in row]
    return {name: row[name] for name in (*first, *(name for name in row if name not in first))}


def names_of(row: Any) -> list[tuple[str, str]]:
    """(“”, names) of every object in a training row, that is of schemas and arguments: its keys in
    order, as words; and of each that has other names than a format's the keys and values in turn.
    """
    found: list[tuple[str, str]] = []
    mixed: list[str] = []
    left: list[Any] = [row]
    while left:
        value = left.pop()
        if isinstance(value, str):
            inner = _inside(value)
            if inner is None:
                mixed.append(value)
            else:
                left.append(inner)
        elif isinstance(value, _Name):
            mixed.append(value.text)
        elif isinstance(value, dict):
            if not value.keys() <= FIELDS:
                found.append(("", " ".join(_spaced(str(key)) for key in value)))
            for key, item in reversed(value.items()):
                left += [item] if str(key) in FIELDS else [item, _Name(_spaced(str(key)))]
        elif isinstance(value, list):
            left += map(_shown, reversed(value))
        elif value is not None:
            mixed.append(str(value))
    return [*found, ("mixed", "\n".join(mixed))] if found else []


@dataclass(frozen=True)
class _Name:
    text: str


def _spaced(name: str) -> str:
    return _HUMP.sub(" ", name.replace("_", " "))


def _inside(text: str) -> Any:
    """The contents of a JSON text; None for other texts."""
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        found = read_repeated(text)
    except ValueError:
        return None
    return (
        found
        if isinstance(found, dict | list) or (isinstance(found, str) and found != text)
        else None
    )


def _shown(item: Any) -> Any:
    """A picture or file among the parts of a content as its digest, with what can be read of it."""
    is_part = (
        isinstance(item, dict)
        and "role" not in item
        and str(item.get("type")).startswith(("image", "input_", "file"))
    )
    if not is_part or part_text(item):
        return item
    return [
        digest_of_part(item),
        *(text for _, leaf in leaves_of(item) if (text := _readable(str(leaf)))),
    ]


def _readable(text: str) -> str:
    """A text, or the text in a text file's data; "" for other data and for addresses."""
    if data := _TEXT_FILE.match(text):
        try:
            return b64decode(text[data.end() :]).decode() if data["base64"] else text[data.end() :]
        except ValueError:
            return ""
    return text if " " in text[:200] else ""


def texts_of(row: dict) -> Iterator[Unit]:
    """Every request that a training row teaches to answer, in any of the training formats.

    Chat rows ({"messages"}), prompt and completion, preference pairs (TRL's and OpenAI's), few-shot
    examples ({"examples"}), {"text"}, {"input", "output"}, and tasks ({"messages", "expected",
    "demonstration"}). For each turn of the assistant: everything before it, and what came since its
    previous turn, so that a held-out request is also found inside a longer conversation. Of a
    preference pair only the chosen answer counts as expected: the rejected one is wrong by design.
    Anything that is not a request is yielded as one text, so that nothing escapes the comparison.
    Raises ValueError for a row without text.
    """
    units = [*_task_units(row), *_preference_units(row), *_chat_units(row)]
    if not units and (
        text := values_of({key: value for key, value in row.items() if key != "tools"}).strip()
    ):
        units = [Unit([{"role": "user", "content": text}])]
    if not units:
        raise ValueError(
            f"A training row without text (fields: {', '.join(sorted(map(str, row))) or 'none'})."
        )
    yield from units


def _task_units(row: dict) -> Iterator[Unit]:
    if isinstance(row.get("expected"), dict) or isinstance(row.get("demonstration"), str):
        expected = row.get("expected") if isinstance(row.get("expected"), dict) else None
        messages = _as_messages(row.get("messages"))
        said = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
        yield from _turns(messages[: said[-1] + 1] if said else [])
        yield Unit(messages, expected, row.get("demonstration") or "")


def _preference_units(row: dict) -> Iterator[Unit]:
    """Of prompt/chosen/rejected, input/preferred_output/non_preferred_output, prompt/completion and
    input/output.
    """
    prompt, given = row.get("prompt", row.get("input")), row.get("input")
    if prompt is None and "completion" in row:
        prompt = row.get("messages")
    if isinstance(given, dict) and "messages" in given:
        prompt = given["messages"]
    chosen = next(
        (
            row[name]
            for name in ("chosen", "preferred_output", "completion", "output")
            if name in row
        ),
        None,
    )
    rejected = row.get("rejected", row.get("non_preferred_output"))
    answer = _as_messages(chosen, "assistant")
    before = _as_messages(prompt)
    yield from _turns(before + answer)
    yield from (
        Unit(unit.messages, (expected_calls(answer) if answer else None))
        for unit in _turns(before + _as_messages(rejected, "assistant"))
    )


def _chat_units(row: dict) -> Iterator[Unit]:
    if (
        not isinstance(row.get("expected"), dict) and "completion" not in row
    ):  # otherwise its turns have been yielded
        yield from _turns(_as_messages(row.get("messages")))
    yield from _turns(_as_messages(row.get("examples")))
    yield from _turns(_as_messages(row.get("text")))


def _as_messages(value: Any, role: str = "user") -> list[dict]:
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value.strip() else []
    if isinstance(value, dict):
        return [value]
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _turns(messages: list[dict]) -> Iterator[Unit]:
    """The conversation before each turn of the assistant, whole and since its last turn; all of it
    where there is none.
    """
    before: list[dict] = []
    since = 0
    for message in messages:
        if message.get("role") == "assistant":
            if before[since:]:
                yield from _both(before, since, expected_calls(message))
            since = len(before) + 1
        before.append(message)
    if before[since:] and any(item.get("role") == "user" for item in before[since:]):
        yield from _both(before, since, None)


def _both(before: list[dict], since: int, expected: dict | None) -> Iterator[Unit]:
    whole, last = (_without_system(part) for part in (before, before[since:]))
    yield Unit(whole, expected)
    if 0 < len(last) < len(whole):
        yield Unit(last, expected)


def _without_system(messages: list[dict]) -> list[dict]:
    return [message for message in messages if not is_prompt(message)]
