"""A small built-in set of general capability: does a model that learnt one trade still read, count and obey? Pure.

Sixty tasks in six kinds, the same for the same seed: arithmetic, one-word and other constraints that can be checked,
copying, sorting, JSON, choice. They are easy on purpose: a drop says that something broke, not that something is hard.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from apps.evals.formats.rows import TaskRow
from workers.lib.checks import check

__all__ = ["check", "general_tasks"]
PER_KIND = 10
FRUIT = ("apple", "banana", "cherry", "fig", "grape", "kiwi", "lemon", "mango", "orange", "peach", "pear", "plum")
ANIMALS = (
    "badger",
    "camel",
    "dolphin",
    "eagle",
    "falcon",
    "gecko",
    "heron",
    "iguana",
    "jackal",
    "lynx",
    "otter",
    "zebra",
)
TOWNS = (
    "Lisbon",
    "Oslo",
    "Vienna",
    "Dublin",
    "Athens",
    "Prague",
    "Tallinn",
    "Bern",
    "Warsaw",
    "Riga",
    "Madrid",
    "Paris",
)
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kai", "Lou")
OPPOSITES = {
    "hot": "cold", "up": "down", "open": "closed", "early": "late", "full": "empty", "left": "right",
    "day": "night", "wet": "dry", "high": "low", "near": "far", "hard": "soft", "young": "old",
}  # fmt: skip
Made = tuple[str, dict]


def general_tasks(seed: int = 0) -> list[TaskRow]:
    """The set: PER_KIND tasks of each kind, no request twice."""
    return [row for kind, make in KINDS.items() for row in _of_kind(kind, make, random.Random(f"{seed} {kind}"))]


def _of_kind(kind: str, make: Callable[[random.Random, int], Made], rng: random.Random) -> Iterator[TaskRow]:
    seen: set[str] = set()
    while len(seen) < PER_KIND:
        request, expected = make(rng, len(seen))
        if request in seen:
            continue
        seen.add(request)
        key = f"general-{kind}-{len(seen):02d}"
        yield TaskRow(
            key=key, messages=[{"role": "user", "content": request}], expected=expected, group=key, split="general",
            metadata={"kind": kind, "source": "built in"},
        )  # fmt: skip


def _arithmetic(rng: random.Random, turn: int) -> Made:
    a, b, c = rng.randint(11, 89), rng.randint(2, 9), rng.randint(3, 40)
    text, value = (
        (f"What is {a} + {c}?", a + c),
        (f"What is {a + c} - {c}?", a),
        (f"What is {a} × {b}?", a * b),
        (f"What is {a * b} divided by {b}?", a),
        (f"A box holds {b} cups. How many cups are in {c} boxes?", b * c),
    )[turn % 5]
    return f"{text} Answer with the number only.", {"answer": value}


def _constraint(rng: random.Random, turn: int) -> Made:
    animal, town, fruit = rng.choice(ANIMALS), rng.choice(TOWNS), rng.choice(FRUIT)
    count = rng.randint(2, 4)
    return (
        (f"Name the animal in this sentence with exactly one word: The {animal} slept near {town}.",
         {"constraint": {"words": 1, "contains": [animal]}}),
        (f"Write one sentence about {town} of at most 12 words. It must contain the word {town}.",
         {"constraint": {"max_words": 12, "contains": [town]}}),
        (f"Write the word {fruit} in capital letters and nothing else.",
         {"constraint": {"exact": fruit.upper()}}),
        (f"Write exactly {count} lines. Each line is the word {fruit}.",
         {"constraint": {"lines": count, "words": count, "contains": [fruit]}}),
        (f"Say something about the {animal} in at most 20 words without using the letter combination “{animal}”.",
         {"constraint": {"max_words": 20, "excludes": [animal]}}),
    )[turn % 5]  # fmt: skip


def _copying(rng: random.Random, turn: int) -> Made:
    text = (
        f"{rng.choice(NAMES)}-{rng.randint(100, 999)}/{rng.choice(TOWNS)}",
        " ".join(rng.sample(FRUIT, 4)),
        f"{rng.choice(ANIMALS)}@{rng.choice(TOWNS).lower()}.example",
        "".join(rng.choice("abcdefghkmnpqrstuvwxyz23456789") for _ in range(10)),
    )[turn % 4]
    return f"Repeat exactly what stands between the arrows, and nothing else: >>{text}<<", {
        "constraint": {"exact": text}
    }


def _sorting(rng: random.Random, turn: int) -> Made:
    if turn % 2:
        numbers = rng.sample(range(10, 99), 5)
        given = ", ".join(map(str, numbers))
        return f"Sort from small to large, separated by commas, nothing else: {given}", {
            "constraint": {"list": sorted(numbers)}
        }
    words = rng.sample(ANIMALS, 4)
    given = ", ".join(words)
    return f"Put in alphabetical order, separated by commas, nothing else: {given}", {
        "constraint": {"list": sorted(words)}
    }


def _json(rng: random.Random, turn: int) -> Made:
    name, town, age = rng.choice(NAMES), rng.choice(TOWNS), rng.randint(20, 70)
    if turn % 2:
        value: dict | list = rng.sample(FRUIT, 3)
        return f"Write as a JSON list of texts and nothing else: {', '.join(value)}", {"constraint": {"json": value}}
    value = {"name": name, "age": age, "town": town}
    request = (
        f"{name} is {age} years old and lives in {town}. Answer with one JSON object with the keys name, age and town."
    )
    return request, {"constraint": {"json": value, "json_keys": list(value)}}


def _choice(rng: random.Random, turn: int) -> Made:
    if turn % 2:
        word, opposite = rng.choice(list(OPPOSITES.items()))
        others = rng.sample([other for other in OPPOSITES.values() if other != opposite], 2)
        offered = rng.sample([opposite, *others], 3)
        return f"Which is the opposite of “{word}”: {', '.join(offered)}? One word.", {
            "constraint": {"one_of": [opposite]}
        }
    names = rng.sample(NAMES, 3)
    request = (
        f"{names[0]} is older than {names[1]}, and {names[1]} is older than {names[2]}. Who is the youngest? One word."
    )
    return request, {"constraint": {"one_of": [names[2]]}}


KINDS: dict[str, Callable[[random.Random, int], Made]] = {
    "arithmetic": _arithmetic,
    "constraint": _constraint,
    "copying": _copying,
    "sorting": _sorting,
    "json": _json,
    "choice": _choice,
}


def ideal_answer(expected: dict) -> str | None:
    """An answer that is right where the expected value says it in full; None where many are."""
    constraint = expected.get("constraint", {})
    if "answer" in expected:
        return str(expected["answer"])
    for name, say in (
        ("exact", str),
        ("json", json.dumps),
        ("list", lambda v: ", ".join(map(str, v))),
        ("one_of", lambda v: v[0]),
    ):
        if name in constraint:
            return say(constraint[name])
    return None
