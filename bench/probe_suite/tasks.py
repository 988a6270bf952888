"""Tasks of the suite, by kind, from a seed."""

from __future__ import annotations

import random
from typing import Any

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
CITIES = [
    "Lisbon",
    "Oslo",
    "Nairobi",
    "Quito",
    "Hanoi",
    "Tallinn",
    "Porto",
    "Accra",
    "Lima",
    "Turin",
    "Ghent",
    "Leeds",
]
PEOPLE = ["Nina", "Amir", "Chloe", "Diego", "Emeka", "Farah", "Greta", "Hugo", "Ines", "Jonas"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
SUBJECTS = [
    "Budget draft",
    "Team lunch",
    "Server outage",
    "Quarterly numbers",
    "Travel plan",
    "New contract",
]
FACTS = [
    ("the release", "was delayed by two weeks because the payment tests failed"),
    ("the warehouse", "moved to the harbour to shorten the delivery routes"),
    ("the survey", "showed that customers wait too long for refunds"),
    ("the audit", "found three unpatched servers in the eastern data centre"),
    ("the vendor", "raised its prices after the exchange rate fell"),
    ("the pilot", "ended early since every goal had been reached in March"),
]


def tool(name: str, dangerous: bool = False, /, **properties: dict) -> dict:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "parameters": schema} | ({"x-dangerous": True} if dangerous else {})
    return {"type": "function", "function": function}


TOOLS = [
    tool("mail.send", to=TEXT, subject=TEXT),
    tool("ticket.close", id=INTEGER),
    tool("room.book", day=TEXT, hour=INTEGER),
    tool("mailbox.delete", True, owner=TEXT),
]
STORE_TOOLS = [
    tool("record.set", name=TEXT, field=TEXT, value=TEXT),
    tool("record.clear", name=TEXT, field=TEXT),
    tool("store.wipe", True, confirm=TEXT),
]


def task(key: str, prompt: str, expected: dict, **more: Any) -> dict:
    return {
        "id": key,
        "messages": [{"role": "user", "content": prompt}],
        "tools": [],
        "expected": expected,
    } | more


def words(rng: random.Random, n: int) -> list[dict]:
    chosen = rng.sample(CITIES, n)
    asked = [
        f"In which city is the office of {rng.choice(PEOPLE)}'s team (file {at})? Answer with its"
        " name."
        for at in range(n)
    ]
    return [task(f"word-{at}", asked[at], {"answer": [city]}) for at, city in enumerate(chosen)]


def numbers(rng: random.Random, n: int) -> list[dict]:
    made = []
    for at in range(n):
        boxes, pens, gone = rng.randint(12, 40), rng.randint(6, 30), rng.randint(2, 9)
        prompt = (
            f"{rng.choice(PEOPLE)} has {boxes} boxes with {pens} pens each and gives {gone} pens"
            " away. How many are left?"
        )
        made.append(task(f"number-{at}", prompt, {"answer": boxes * pens - gone}))
    return made


def _call(rng: random.Random) -> tuple[str, dict]:
    person, subject, day = rng.choice(PEOPLE), rng.choice(SUBJECTS), rng.choice(DAYS)
    hour, number = rng.randint(8, 18), rng.randint(100, 999)
    return rng.choice(
        [
            (
                f"Write {person} a mail about “{subject}”",
                {"tool": "mail.send", "args": {"to": person, "subject": subject}},
            ),
            (f"Close ticket {number}", {"tool": "ticket.close", "args": {"id": number}}),
            (
                f"Book a room on {day} at {hour}",
                {"tool": "room.book", "args": {"day": day, "hour": hour}},
            ),
        ]
    )


def _distinct(rng: random.Random, n: int) -> list[tuple[str, dict]]:
    found: dict[str, dict] = {}
    while len(found) < n:
        prompt, call = _call(rng)
        found[prompt] = call
    return list(found.items())


def calls(rng: random.Random, n: int) -> list[dict]:
    return [
        task(f"call-{at}", f"{ask}.", call, tools=TOOLS)
        for at, (ask, call) in enumerate(_distinct(rng, n))
    ]


def several(rng: random.Random, n: int) -> list[dict]:
    asked = _distinct(rng, 2 * n)
    return [
        task(
            f"several-{at}",
            f"{first[0]}, then {second[0]}.",
            {"calls": [first[1], second[1]], "ordered": True},
            tools=TOOLS,
        )
        for at, (first, second) in enumerate(zip(asked[::2], asked[1::2], strict=True))
    ]


def states(rng: random.Random, n: int) -> list[dict]:
    """A store of records; what is wanted is an end state, and the calls that lead there."""
    made = []
    for at in range(n):
        first, second = rng.sample(PEOPLE, 2)
        start = {
            first: {"city": rng.choice(CITIES[:6]), "desk": "A1"},
            second: {"city": "Leeds", "desk": "B7"},
        }
        value = rng.choice(CITIES[6:])
        call = {"tool": "record.set", "args": {"name": first, "field": "city", "value": value}}
        end = start | {first: start[first] | {"city": value}}
        expected = {"calls": [call], "state": end}
        made.append(
            task(
                f"state-{at}",
                f"{first} has moved to {value}. Update the record.",
                expected,
                tools=STORE_TOOLS,
                metadata={"start": start},
            )
        )
    return made


def run_store(given: dict, messages: list[dict], made: list[dict]) -> dict:
    """The store after these calls."""
    store = {name: dict(row) for name, row in given["metadata"]["start"].items()}
    for call in made:
        args = call["args"]
        if call["tool"] == "record.set":
            store.setdefault(str(args.get("name")), {})[str(args.get("field"))] = args.get("value")
        elif call["tool"] == "record.clear":
            store.get(str(args.get("name")), {}).pop(str(args.get("field")), None)
        elif call["tool"] == "store.wipe":
            store.clear()
    return store


def code(rng: random.Random, n: int) -> list[dict]:
    made = []
    for at in range(n):
        add, times = rng.randint(3, 20), rng.randint(2, 9)
        name = rng.choice(["scale", "convert", "adjust"])
        gold = f"def {name}(x):\n    return x * {times} + {add}"
        inputs = rng.sample(range(2, 60), 2)
        prompt = (
            f"Write a Python function {name}(x) that multiplies by {times} and adds {add}. Example:"
            f" {name}(1) == {times + add}."
        )
        calls_ = [{"call": f"{name}({x})", "expected": x * times + add} for x in inputs]
        statements = [f"assert {name}({x}) == {x * times + add}" for x in inputs]
        made.append(
            task(
                f"code-{at}",
                prompt,
                {"tests": calls_},
                demonstration=f"```python\n{gold}\n```",
                metadata={"statements": statements, "name": name},
            )
        )
    return made


def summaries(rng: random.Random, n: int) -> list[dict]:
    made = []
    for at, (what, fact) in enumerate(rng.sample(FACTS, n)):
        reporter = rng.choice(PEOPLE)
        prompt = (
            f"Summarise in one sentence: {reporter} wrote on {rng.choice(DAYS)} that, after long"
            f" talks with everybody who was there, {what} {fact}; the rest of the letter is about"
            " the weather."
        )
        rubric = (
            "Clear structure, complete coverage, concise wording, correct facts, professional tone"
        )
        made.append(
            task(
                f"summary-{at}",
                prompt,
                {},
                demonstration=f"{what.capitalize()} {fact}.",
                metadata={"rubric": rubric},
            )
        )
    return made


def styles(rng: random.Random, n: int) -> list[dict]:
    """Where the form itself is the task."""
    topics = rng.sample(SUBJECTS, min(n, len(SUBJECTS)))
    return [
        task(
            f"style-{at}",
            f"Write a reply about {topic} that contains the words “{topic}” and “regards”.",
            {"constraint": {"contains": [topic, "regards"]}},
        )
        for at, topic in enumerate(topics)
    ]


KINDS = {
    "words": words,
    "numbers": numbers,
    "calls": calls,
    "several": several,
    "states": states,
    "code": code,
    "summaries": summaries,
    "styles": styles,
}
SIZES = {"code": 2, "states": 4, "several": 4, "summaries": 4, "styles": 4}


def tasks_of(kind: str, seed: int) -> list[dict]:
    return KINDS[kind](random.Random(f"{kind}/{seed}"), SIZES.get(kind, 5))
