"""Mutations of an output: of its text, and of its calls. Each describes itself, so that a finding
shows how it was made.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from workers.lib.messages import text_of
from workers.lib.probes.cases import other_value

LONGEST = 30_000  # characters
_UNITS = {"lines": re.compile(r"[^\n]*\n|[^\n]+$"), "words": re.compile(r"\s*\S+\s*?(?=\s|$)|\s+$")}


@dataclass(frozen=True)
class Output:
    """Assistant messages, and how they were made."""

    messages: list[dict]
    path: tuple[str, ...]

    @property
    def text(self) -> str:
        return text_of(self.messages[-1]) if self.messages else ""

    def with_text(self, text: str, step: str) -> Output:
        messages = deepcopy(self.messages) or [{"role": "assistant", "content": ""}]
        messages[-1]["content"] = text[:LONGEST]
        return Output(messages, self.path if self.path[-1:] == (step,) else (*self.path, step))


def pieces(text: str, unit: str) -> list[str]:
    """The parts of a text; joined, they give the text again."""
    if unit == "letters":
        return list(text) if len(text) <= 200 else []
    parts = _UNITS[unit].findall(text)
    return parts if "".join(parts) == text else [text]


Change = Callable[[str, str, list[str], random.Random], tuple[str, str]]


def _span(text: str, rng: random.Random) -> tuple[list[str], int, int]:
    parts = pieces(text, rng.choice(("lines", "words", "words"))) or [""]
    start = rng.randrange(len(parts))
    return parts, start, rng.randint(start + 1, min(len(parts), start + max(1, len(parts) // 2)))


def insert(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    parts, at, _ = _span(text, rng)
    piece = rng.choice(material)
    at = rng.choice((0, at, len(parts)))
    glue = rng.choice(("", " ", "\n"))
    return f"insert “{piece[:40]}”", "".join(parts[:at]) + glue + piece + glue + "".join(parts[at:])


def delete(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    parts, start, end = _span(text, rng)
    return "leave a part out", "".join(parts[:start] + parts[end:])


def repeat(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    parts, start, end = _span(text, rng)
    times = rng.choice((2, 3, 10))
    return f"repeat a part {times} times", "".join(
        parts[:end] + parts[start:end] * times + parts[end:]
    )


def cross(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    left, at, _ = _span(text, rng)
    right, _, cut = _span(other, rng)
    return "cross with another output", "".join(left[:at]) + rng.choice(("", "\n")) + "".join(
        right[cut:]
    )


def join(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    return "join with another output", f"{text}\n{other}"


def shuffle(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    parts = [part.strip() for part in pieces(text, "words")]
    rng.shuffle(parts)
    return "shuffle the words", " ".join(parts)


def wrap(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    form = rng.choice(
        (
            "<think>{}</think>",
            "<answer>{}</answer>",
            "\\boxed{{{}}}",
            "**{}**",
            "# {}",
            "```\n{}\n```",
            "<!-- {} -->",
            '{{"answer": "{}"}}',
        )
    )
    return f"wrap as {form.format('…')}", form.format(text)


def case(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    return "change case", rng.choice((str.upper, str.lower, str.title))(text)


def number(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    factor = rng.choice((2, 10, -1, 0))
    return f"numbers × {factor}", re.sub(
        r"\d{1,9}", lambda found: str(int(found[0]) * factor + rng.choice((0, 1))), text
    )


def trim(text: str, other: str, material: list[str], rng: random.Random) -> tuple[str, str]:
    return "keep the beginning", text[: rng.randint(1, max(1, len(text)))]


CHANGES: tuple[Change, ...] = (
    insert,
    insert,
    insert,
    delete,
    repeat,
    cross,
    join,
    shuffle,
    wrap,
    case,
    number,
    trim,
)


def mutated(output: Output, other: Output, material: list[str], rng: random.Random) -> Output:
    """Apply one mutation; sometimes to the calls, if there are any."""
    if output.messages and output.messages[-1].get("tool_calls") and rng.random() < 0.6:
        return _calls_changed(output, other, rng)
    step, text = rng.choice(CHANGES)(output.text, other.text, material, rng)
    return output.with_text(text, step)


def _calls_changed(output: Output, other: Output, rng: random.Random) -> Output:
    messages = deepcopy(output.messages)
    calls = messages[-1]["tool_calls"]
    what = rng.choice(
        (
            "repeat a call",
            "leave a call out",
            "change a value",
            "leave an argument out",
            "add another's calls",
        )
    )
    at = rng.randrange(len(calls))
    if what == "repeat a call":
        calls.append(deepcopy(calls[at]))
    elif what == "leave a call out":
        calls.pop(at)
    elif what == "add another's calls":
        calls += deepcopy((other.messages[-1].get("tool_calls") or []) if other.messages else [])
    else:
        _argument_changed(calls[at], what, rng)
    if not calls:
        messages[-1].pop("tool_calls")
    return Output(messages, (*output.path, what))


def _argument_changed(call: dict, what: str, rng: random.Random) -> None:
    try:
        args = json.loads(call["function"]["arguments"])
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(args, dict) and args:
        name = rng.choice(sorted(args))
        args = {
            key: value for key, value in args.items() if key != name or what == "change a value"
        }
        if name in args:
            args[name] = other_value(args[name])
        call["function"]["arguments"] = json.dumps(args)
