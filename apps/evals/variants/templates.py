"""Variants of a task by templates, offline: other words, other arguments, tools that distract, awkward requests. Pure.

A variant is made from a seed that a person confirmed and says by itself what is right: where a value changes, it changes
in the request, in the calls before, in the recorded results and in the expected call alike. `faults` is the judge: a
variant that it finds fault with is not used.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

from apps.evals.formats.rows import Bad, checked_expected, checked_messages, checked_tools
from apps.trajectories.pages.arguments import Checker

PARAPHRASE, ARGUMENTS, DISTRACTORS, EDGE = "paraphrase", "arguments", "distractors", "edge"
KINDS = {
    PARAPHRASE: "Other words",
    ARGUMENTS: "Other arguments",
    DISTRACTORS: "Tools that distract",
    EDGE: "Awkward requests",
}
SHORTEST = 2  # characters of a value that is looked for in a request

SYNONYMS = {
    "close": ("resolve", "shut"), "open": ("start", "bring up"), "create": ("make", "set up"), "make": ("create", "put together"),
    "delete": ("remove", "get rid of"), "remove": ("delete", "take out"), "cancel": ("call off", "drop"),
    "book": ("reserve", "get"), "reserve": ("book", "keep"), "send": ("mail", "pass on"), "email": ("write to", "message"),
    "find": ("look up", "locate"), "search": ("look", "hunt"), "show": ("display", "tell"), "get": ("fetch", "pull up"),
    "list": ("show", "name"), "update": ("change", "adjust"), "change": ("switch", "alter"), "move": ("shift", "transfer"),
    "schedule": ("plan", "arrange"), "add": ("put in", "include"), "assign": ("give", "hand"), "buy": ("purchase", "order"),
    "refund": ("pay back", "reimburse"), "check": ("verify", "look at"), "set": ("put", "fix"), "tell": ("inform", "notify"),
    "meeting": ("appointment", "session"), "ticket": ("case", "issue"), "order": ("purchase", "delivery"),
    "customer": ("client", "account holder"), "message": ("note", "word"), "flight": ("trip", "connection"),
    "price": ("cost", "amount"), "today": ("this day",), "urgent": ("pressing", "important"),
}  # fmt: skip
FRAMES = (
    "Could you take care of this for me: {}", "{} That is all for now.", "I have one thing for you today. {}",
    "My manager asks for the following. {}", "As discussed in our team: {}", "Next on my list: {}",
)  # fmt: skip
NOISE = (
    "By the way, the coffee machine on the second floor leaks again.", "I am on a train, so my connection may drop.",
    "The colleague who usually does this is on holiday.", "We had a long day of workshops here.",
    "I tried the mobile app before, and it was slow.", "The weather keeps everyone indoors this week.",
)  # fmt: skip
TOOLS = (
    ("weather", "forecast", "The weather at a place", {"place": "string", "days": "integer"}),
    ("currency", "convert", "An amount in another currency", {"amount": "number", "source": "string", "target": "string"}),
    ("translation", "translate", "A text in another language", {"text": "string", "language": "string"}),
    ("notes", "append", "Adds a line to a private note", {"note": "string", "line": "string"}),
    ("maps", "distance", "The distance between two places", {"start": "string", "end": "string"}),
    ("polls", "create", "Asks a group to vote", {"question": "string", "choices": "array"}),
    ("archive", "restore", "Brings back an archived document", {"document": "string"}),
    ("music", "play", "Plays music in a room", {"room": "string", "title": "string"}),
)  # fmt: skip


@dataclass(frozen=True)
class Seed:
    """What a variant is made of, and what it is: the fields of a task that it may change."""

    key: str
    messages: list[dict]
    expected: dict
    tools: list[dict] = field(default_factory=list)
    recorded: list[dict] = field(default_factory=list)
    kind: str = ""


def variants(seed: Seed, kinds: list[str], count: int, rng: random.Random) -> Iterator[Seed]:
    """Up to `count` variants of each kind. Fewer where the seed gives no more; some may be alike or faulty."""
    for kind in kinds:
        for _ in range(count):
            made = MAKERS[kind](seed, rng)
            if made is not None and made.messages != seed.messages:
                yield replace(made, kind=kind)


# Text


def text_of(messages: list[dict]) -> str:
    """All that the user says."""
    return "\n".join(_content(message) for message in messages if message.get("role") == "user")


def _content(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def with_request(seed: Seed, change: Callable[[str], str]) -> Seed | None:
    """The seed with its last request said otherwise; None where that is no plain text."""
    at = max((index for index, message in enumerate(seed.messages) if message.get("role") == "user"), default=None)
    if at is None or not isinstance(seed.messages[at].get("content"), str):
        return None
    messages = copy.deepcopy(seed.messages)
    messages[at]["content"] = change(messages[at]["content"])
    return replace(seed, messages=messages)


def _kept(seed: Seed) -> list[str]:
    """Values of the expected calls: words that no rewording may touch."""
    return [str(value) for value in leaves(_arguments(seed.expected)) if len(str(value)) >= SHORTEST]


def _outside(text: str, kept: list[str], change: Callable[[str], str]) -> str:
    """Changes what stands between the kept values."""
    if not kept:
        return change(text)
    pattern = "(" + "|".join(map(re.escape, sorted(kept, key=len, reverse=True))) + ")"
    parts = re.split(pattern, text, flags=re.IGNORECASE)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def paraphrase(seed: Seed, rng: random.Random) -> Seed | None:
    """Synonyms for what is not a value, in a frame half of the time."""

    def reword(part: str) -> str:
        return re.sub(r"[A-Za-z]+", lambda match: _synonym(match[0], rng), part)

    framed = rng.choice(FRAMES) if rng.random() < 0.5 else "{}"
    return with_request(seed, lambda text: framed.replace("{}", _outside(text, _kept(seed), reword)))


def _synonym(word: str, rng: random.Random) -> str:
    found = SYNONYMS.get(word.casefold())
    if not found or rng.random() < 0.2:
        return word
    chosen = rng.choice(found)
    return chosen[0].upper() + chosen[1:] if word[0].isupper() else chosen


# Arguments


def _calls(expected: dict) -> list[dict]:
    return expected.get("calls", [expected] if "tool" in expected else [])


def _arguments(expected: dict) -> list[dict]:
    return [call["args"] for call in _calls(expected)]


def leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers inside a value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def occurs(value: Any, text: str) -> bool:
    """Whether a value stands in a text as a word of its own, in any case."""
    return re.search(_word(str(value)), text, re.IGNORECASE) is not None


def _word(value: str) -> str:
    return rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)"


def other_arguments(seed: Seed, rng: random.Random) -> Seed | None:
    """Another value for one or more arguments that the user names; None where none can be changed."""
    said = text_of(seed.messages)
    values = [value for value in dict.fromkeys(leaves(_arguments(seed.expected))) if len(str(value)) >= SHORTEST]
    changes = {
        str(value): other
        for value in values
        if occurs(value, said) and (other := other_value(str(value), rng)) is not None
    }
    if not changes:
        return None
    some = rng.sample(sorted(changes), rng.randint(1, len(changes)))
    return _replaced(seed, {name: changes[name] for name in some})


def other_value(value: str, rng: random.Random) -> str | None:
    """Another value of the same form: a date, the digits of a number or an identifier. None for plain words."""
    try:
        return str(date.fromisoformat(value) + timedelta(days=rng.randint(1, 60)))
    except (ValueError, OverflowError):
        pass
    if time := re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", value):
        return f"{(int(time[1]) + rng.randint(1, 22)) % 24:02d}:{rng.choice(('00', '15', '30', '45'))}"
    if "@" in value:
        local, _, domain = value.partition("@")
        return f"{rng.choice(('kim', 'noor', 'sam', 'lena', 'tariq', 'mei'))}.{local[:1] or 'x'}{rng.randint(2, 99)}@{domain}"
    if not any(char.isdigit() for char in value):
        return None
    for _ in range(20):
        made = re.sub(r"\d", lambda match: str(rng.randint(1, 9)) if match[0] != "0" else "0", value)
        if made != value:
            return made
    return None


def _replaced(seed: Seed, changes: dict[str, str]) -> Seed:
    """The values exchanged wherever they stand: messages, their calls, the expected call, recorded results."""
    exchange = exchanger(changes)
    return replace(
        seed,
        messages=exchange(seed.messages),
        expected=exchange_args(seed.expected, exchange),
        recorded=exchange(seed.recorded),
    )


def exchanger(changes: dict[str, str]) -> Callable[[Any], Any]:
    """Exchanges values, as words of their own, inside texts and numbers of JSON. `changes` are both as text."""
    pattern = re.compile("|".join(_word(name) for name in sorted(changes, key=len, reverse=True)), re.IGNORECASE)
    lower = {name.casefold(): value for name, value in changes.items()}

    def exchange(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: exchange(item) for name, item in value.items()}
        if isinstance(value, list):
            return [exchange(item) for item in value]
        if isinstance(value, str):
            return pattern.sub(lambda match: lower.get(match[0].casefold(), match[0]), value)
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in changes:
            with contextlib.suppress(ValueError):  # 20260304 is a number and a date
                return type(value)(changes[str(value)])
        return value

    return exchange


def exchange_args(expected: dict, exchange: Callable[[Any], Any]) -> dict:
    """The expected value with its arguments exchanged; names of tools stay."""
    if "calls" in expected:
        return expected | {"calls": [exchange_args(call, exchange) for call in expected["calls"]]}
    return expected | {name: exchange(expected[name]) for name in ("args", "accept") if name in expected}


# Tools


def distractors(seed: Seed, rng: random.Random) -> Seed | None:
    """More tools, none of which helps, beside a rewording or other arguments. None where the task names no tools."""
    if not seed.tools:
        return None
    base = other_arguments(seed, rng) or paraphrase(seed, rng)
    have = {tool["function"]["name"] for tool in seed.tools}
    joint = "." if any("." in name for name in have) else "_"
    spare = [tool for area in TOOLS if (tool := _tool(*area, joint))["function"]["name"] not in have]
    added = rng.sample(spare, min(len(spare), rng.randint(2, 4)))
    tools = seed.tools + added
    rng.shuffle(tools)
    return replace(base, tools=tools) if base else None


def _tool(area: str, verb: str, description: str, arguments: dict[str, str], joint: str) -> dict:
    parameters = {
        "type": "object",
        "properties": {
            name: {"type": kind} | ({"items": {"type": "string"}} if kind == "array" else {})
            for name, kind in arguments.items()
        },
        "required": list(arguments),
    }
    function = {"name": f"{area}{joint}{verb}", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


# Awkward requests


def edge(seed: Seed, rng: random.Random) -> Seed | None:
    """Misspelt, with something beside the point, or with a slip of the tongue that the user takes back."""
    return rng.choice((_misspelt, _with_noise, _taken_back))(seed, rng)


def _misspelt(seed: Seed, rng: random.Random) -> Seed | None:
    def slip(match: re.Match[str]) -> str:
        word = match[0]
        if len(word) < 4 or rng.random() < 0.5:
            return word
        at = rng.randrange(1, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    return with_request(seed, lambda text: _outside(text, _kept(seed), lambda part: re.sub(r"[A-Za-z]+", slip, part)))


def _with_noise(seed: Seed, rng: random.Random) -> Seed | None:
    noise = rng.sample(NOISE, 2)
    return with_request(seed, lambda text: f"{noise[0]} {text} {noise[1]}")


def _taken_back(seed: Seed, rng: random.Random) -> Seed | None:
    said = text_of(seed.messages)
    values = [value for value in map(str, leaves(_arguments(seed.expected))) if occurs(value, said)]
    slips = {value: other for value in values if (other := other_value(value, rng))}
    if not slips:
        return None
    right = rng.choice(sorted(slips))
    words = f"{slips[right]} – no, sorry, {right}"
    return with_request(seed, lambda text: re.sub(_word(right), lambda _: words, text, count=1, flags=re.IGNORECASE))


MAKERS: dict[str, Callable[[Seed, random.Random], Seed | None]] = {
    PARAPHRASE: paraphrase,
    ARGUMENTS: other_arguments,
    DISTRACTORS: distractors,
    EDGE: edge,
}


# Validators


def faults(seed: Seed, variant: Seed) -> list[str]:
    """Why a variant is no task; empty where it is one."""
    try:
        checked_messages(variant.messages)
        checked_tools(variant.tools)
        checked_expected(variant.expected)
    except Bad as error:
        return [str(error)]
    return [*_unknown_values(seed, variant), *_broken_calls(seed, variant)]


def _unknown_values(seed: Seed, variant: Seed) -> Iterator[str]:
    """Expected values that the request does not say, unless the seed's did not say the very same one either."""
    before, after = _all_text(seed.messages), _all_text(variant.messages)
    derived = {str(value) for value in leaves(_arguments(seed.expected)) if not occurs(value, before)}
    for value in leaves(_arguments(variant.expected)):
        if str(value) and not occurs(value, after) and str(value) not in derived:
            yield f"The request does not say {json.dumps(value, ensure_ascii=False)}."


def _all_text(messages: list[dict]) -> str:
    return "\n".join(map(_content, messages))


def _broken_calls(seed: Seed, variant: Seed) -> Iterator[str]:
    """Expected calls that break their tool's schema. What was broken in the seed already is the person's word."""
    checker, before = Checker(variant.tools), Checker(seed.tools)
    for call, old in zip(_calls(variant.expected), _calls(seed.expected), strict=True):
        if variant.tools and not before.problems(old["tool"], old["args"]):
            yield from checker.problems(call["tool"], call["args"])
