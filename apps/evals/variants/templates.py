"""Variants of a task without a model: other words, other values. Pure.

Each variant must be as correct as its seed, so changes are few and safe: verbs and ways of asking
whose meaning does not depend on the context, and values that the request mentions as often as the
expected calls use them.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from apps.evals.formats.rows import Bad
from apps.evals.variants.seeds import ARGUMENTS, PARAPHRASE, Seed, count, exchanger
from workers.lib.messages import text_of

KINDS = {PARAPHRASE: "Other words", ARGUMENTS: "Other arguments"}

# Verbs that begin a request: the first ones only where no “me” follows (“find me a hotel” is not
# “compute me a hotel”).
VERBS = {
    "find": ("look up", "get"),
    "calculate": ("compute", "work out"),
    "compute": ("calculate", "work out"),
    "determine": ("work out", "find"),
    "get": ("retrieve", "fetch"),
    "retrieve": ("get", "fetch"),
    "fetch": ("get",),
    "provide": ("give me",),
    "estimate": ("give an estimate of",),
    "predict": ("forecast",),
    "evaluate": ("assess",),
    "book": ("reserve",),
    "reserve": ("book",),
    "buy": ("purchase",),
    "purchase": ("buy",),
    "create": ("make",),
    "schedule": ("set up", "arrange"),
    "cancel": ("call off",),
    "delete": ("remove",),
    "remove": ("delete",),
    "identify": ("find out",),
    "analyze": ("examine",),
    "compare": (),
    "convert": (),
    "add": (),
    "assign": (),
    "reassign": (),
    "close": (),
    "reopen": (),
    "move": (),
    "send": (),
    "reply": (),
    "forward": (),
    "update": (),
    "change": (),
    "set": (),
    "search": (),
    "list": (),
    "show": (),
    "tell": (),
    "give": (),
    "check": (),
    "play": (),
    "draw": (),
    "plot": (),
    "solve": (),
    "order": (),
    "simulate": (),
    "generate": (),
    "translate": (),
    "rename": (),
}
PHRASES = {
    "find me": ("get me",),
    "show me": ("give me",),
    "tell me the": ("give me the",),
    "i want to": ("I would like to", "I'd like to"),
    "i would like to": ("I want to", "I'd like to"),
    "i'd like to": ("I want to", "I would like to"),
    "i need to": ("I have to",),
    "approximately": ("about", "roughly"),
    "biggest": ("largest",),
    "most recent": ("latest",),
    "latest": ("most recent",),
    "cheapest": ("least expensive",),
    "search for": ("look for",),
    "entire": ("whole",),
    "currently": ("at the moment", "right now"),
    "information about": ("details about",),
    "information on": ("details on",),
}
VERB = re.compile(
    r"(?<![\w'])("
    + "|".join(VERBS)
    + r")(?=\s+(?!me\b|us\b|him\b|her\b|them\b|out\b|up\b|for\b)\w)",
    re.I,
)
LEADS = re.compile(
    r"(?:^|[.!?]\s+|\b(?:please|you|to|then|also)\s+)$", re.I
)  # what may stand before a verb of a request
PHRASE = re.compile(r"\b(" + "|".join(PHRASES) + r")\b", re.I)
QUOTED = r"\"[^\"]*\"|“[^”]*”|‘[^’]*’|(?<!\w)'[^']*'(?!\w)"
ASKS = re.compile(r"(?:can|could|would|will) you (?:please )?([^?]+)\?", re.I)
WHAT = re.compile(r"what(?:'s| is| are) (the [^?]+)\?$", re.I)
# Arguments whose numbers have limits or belong together.
BOUNDED = re.compile(
    r"month|day|hour|minute|second|week|quarter|lat|lon|coord|percent|prob|rat(?:e|ing)|round|decimal|precision",
    re.I,
)


def variants(seed: Seed, kinds: list[str], each: int, rng: random.Random) -> Iterator[Seed]:
    """Up to `each` variants of each kind. Fewer if the seed allows no more; some may be
    near-duplicates or faulty.
    """
    makers: dict[str, Callable[[Seed, random.Random], Seed | None]] = {
        PARAPHRASE: reworded,
        ARGUMENTS: revalued,
    }
    for kind in kinds:
        for _ in range(each):
            made = makers[kind](seed, rng)
            if made is not None and made.messages != seed.messages:
                yield replace(made, kind=kind)


# Other words


def reworded(seed: Seed, rng: random.Random) -> Seed | None:
    """Synonyms outside values and quotations, and usually another way of asking."""
    if seed.request is None:
        return None
    text = _synonyms(seed, rng)
    return seed.with_request(
        _asked_otherwise(text, rng) if text == seed.request or rng.random() < 0.7 else text
    )


def _synonyms(seed: Seed, rng: random.Random) -> str:
    values = sorted(
        {str(value) for value in [*seed.values, *seed.accepted] if str(value).strip()},
        key=len,
        reverse=True,
    )
    kept = re.compile("|".join([QUOTED, *map(re.escape, values)]), re.I)
    said = " ".join(values).casefold()
    parts, at = [], 0
    for match in [*kept.finditer(seed.request or ""), None]:
        free = (seed.request or "")[at : match.start() if match else None]
        before = "".join(parts)
        free = PHRASE.sub(lambda found: _other(found[0], PHRASES, said, rng), free)
        parts.append(_verbs(before, free, said, rng))
        if match:
            parts.append(match[0])
            at = match.end()
    return "".join(parts)


def _verbs(before: str, text: str, said: str, rng: random.Random) -> str:
    def change(found: re.Match[str]) -> str:
        begins = (
            LEADS.search((before + text[: found.start()])[-40:])
            or not (before + text[: found.start()]).strip()
        )
        return _other(found[0], VERBS, said, rng) if begins else found[0]

    return VERB.sub(change, text)


def _other(word: str, choices: dict[str, tuple[str, ...]], said: str, rng: random.Random) -> str:
    """Unchanged where an expected value has the word's stem: it may come from there."""
    found = choices[word.casefold()]
    if not found or word.casefold()[:5] in said or rng.random() < 0.15:
        return word
    chosen = rng.choice(found)
    return chosen[0].upper() + chosen[1:] if word[0].isupper() else chosen


def _asked_otherwise(text: str, rng: random.Random) -> str:
    """“Can you find it?” as “Please find it.”, “What is the sum?” as “Give me the sum.”, and the
    other way round.
    """
    if match := ASKS.match(text):
        lead = rng.choice(("Please ", "I need you to ", "I'd like you to "))
        return f"{lead}{match[1]}.{text[match.end() :]}"
    if match := WHAT.match(text):
        return rng.choice(("Give me {}.", "I need {}.", "I'd like to know {}.")).format(match[1])
    first = text.split(" ", 1)[0]
    if (
        first.casefold() in VERBS
        and not re.search(r"[.!?]\s+\S", text)
        and not text.rstrip().endswith("?")
    ):
        request = (first.lower() + text[len(first) :]).rstrip().rstrip(".!")
        return rng.choice(("Can you {}?", "Could you {}?")).format(request)
    return text


# Other values


def revalued(seed: Seed, rng: random.Random) -> Seed | None:
    """Another value for one or more arguments that the user names; None if none can be changed."""
    said = "\n".join(text_of(message) for message in seed.messages if message.get("role") == "user")
    values = seed.values
    derived = [str(value) for value in values if not count(value, said)]
    if any(re.search(r"\d{4}", value) for value in derived):
        return None  # looked up by the request's words: other words would lead to something else
    elsewhere = [*derived, *map(str, seed.accepted)]
    named = {
        str(value): value
        for call in seed.calls
        for value in _free(call["args"], numbers=not _numbers(derived))
    }
    changes = {
        name: other
        for name, value in named.items()
        if count(value, said) == _occurrences(name, said) == values.count(value)
        and not any(name in text for text in elsewhere)
        if (other := other_value(value, said, rng)) is not None
    }
    if not changes:
        return None
    some = rng.sample(sorted(changes), rng.randint(1, len(changes)))
    exchange = exchanger({name: changes[name] for name in some})
    try:
        made = seed.with_arguments([exchange(call["args"]) for call in seed.calls])
    except Bad:  # the text "12" and the number 12 take different values
        return None
    return made if _order(seed.values) == _order(made.values) else None


def _occurrences(value: str, said: str) -> int:
    """How often the value is mentioned, also joined to letters and signs: the 3 of 3x^2 may be the
    same 3.
    """
    return len(re.findall(rf"(?<!\d){re.escape(value.lstrip('-'))}(?!\d)", said, re.I))


def _numbers(derived: list[str]) -> bool:
    """Whether a number is expected that the request does not mention: it may follow from one that
    it mentions.
    """
    return any(re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value) for value in derived)


def _free(args: dict[str, Any], *, numbers: bool) -> Iterator[Any]:
    """Values that may be another: of a list none, since its length may be said, too."""
    for name, value in args.items():
        if isinstance(value, dict):
            yield from _free(value, numbers=numbers)
        elif isinstance(value, str) or (
            numbers
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and not BOUNDED.search(name)
        ):
            yield value


def other_value(value: Any, said: str, rng: random.Random) -> str | None:
    """Another value of the same form: a date, a time, a number, an identifier or an address. None
    for words.
    """
    if not isinstance(value, str):
        return _other_number(value, rng)
    if re.fullmatch(r"1\d{3}|20\d\d", value):
        return _other_number(int(value), rng)
    if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        if re.search(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b", said, re.I):
            return None
        with contextlib.suppress(ValueError, OverflowError):  # 2026-02-30
            return str(date.fromisoformat(value) + timedelta(days=rng.randint(1, 60)))
        return None
    if time := re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", value):
        return (
            f"{(int(time[1]) + rng.randint(1, 6)) % 24:02d}:{rng.choice(('00', '15', '30', '45'))}"
        )
    if re.fullmatch(r"[^@\s]+@[^@\s]+", value):
        return f"{rng.choice(('kim', 'noor', 'sam', 'lena', 'tariq', 'mei'))}.{value[0]}{rng.randint(2, 99)}@{value.partition('@')[2]}"  # noqa: E501
    if re.fullmatch(r"[A-Za-z#_-]{0,6}\d{4,}", value):
        return re.sub(r"[1-9]", lambda _: str(rng.randint(1, 9)), value)
    return None


def _other_number(value: float, rng: random.Random) -> str | None:
    """Of the same size, with as many decimals and final zeros, and neither 1 nor 0; years move by a
    few.
    """
    if not math.isfinite(value):
        return None
    sign, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    size, reach = int("".join(map(str, digits))), 4
    if not (isinstance(value, int) and 1000 <= value <= 2100):
        reach = max(1, size * 3 // 10)
    else:
        size, exponent = value, 0
    size += rng.choice((-1, 1)) * rng.randint(1, reach)
    made = type(value)(Decimal(size).scaleb(exponent) * (-1 if sign else 1))
    return (
        None
        if not math.isfinite(made) or abs(made) in (0, 1) or (abs(made) < 1) != (abs(value) < 1)
        else str(made)
    )


def _order(values: list[Any]) -> list[tuple[bool, bool]]:
    """How each number compares with each other one: from 5 to 10 does not become from 12 to 10."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return [(one < other, one == other) for one in numbers for other in numbers]
