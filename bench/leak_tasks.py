"""Invented tasks of many families: few templates, many names, numbers and days. Everything is drawn
from a seed.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from apps.evals.near_duplicates.search import Held
from apps.evals.near_duplicates.text import FILLERS, words

CONSONANTS, VOWELS = "bcdfglmnprstvk", "aeiou"
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "March", "April", "May", "June", "August", "October", "December")
FIRST = [
    "Anna",
    "Bob",
    "Carla",
    "David",
    "Elena",
    "Farid",
    "Grace",
    "Hanna",
    "Ivan",
    "Julia",
    "Kenji",
    "Lena",
    "Mateo",
    "Nina",
    "Omar",
    "Petra",
    "Quentin",
    "Rosa",
    "Sven",
    "Tara",
    "Umut",
    "Vera",
    "Wes",
    "Yara",
    "Zoe",
]
LAST = [
    "Novak",
    "Berg",
    "Costa",
    "Diaz",
    "Evans",
    "Fischer",
    "Garcia",
    "Huang",
    "Ibsen",
    "Jansen",
    "Kim",
    "Lopez",
    "Meyer",
    "Nowak",
    "Okafor",
    "Patel",
    "Rossi",
    "Sato",
    "Turner",
    "Ueda",
    "Weber",
    "Young",
]
CITIES = [
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Rome",
    "Lisbon",
    "Vienna",
    "Prague",
    "Oslo",
    "Dublin",
    "Athens",
    "Warsaw",
    "Cairo",
    "Tokyo",
    "Sydney",
    "Toronto",
    "Boston",
    "Denver",
    "Chicago",
    "Lima",
]
ROOMS = [
    "kitchen",
    "bedroom",
    "hall",
    "garage",
    "office",
    "cellar",
    "bathroom",
    "living room",
    "attic",
    "garden",
]
DEVICES = ["lights", "heating", "blinds", "fan", "radio", "speaker", "television", "lamp"]
TOPICS = [
    "the budget review",
    "the new logo",
    "travel plans",
    "the quarterly report",
    "hiring",
    "the roof repair",
    "the printer contract",
    "safety training",
    "the summer party",
    "the data migration",
    "the price list",
    "the office move",
]
DISHES = [
    "lentil soup",
    "apple pie",
    "ramen",
    "goulash",
    "paella",
    "pancakes",
    "risotto",
    "fish tacos",
    "carrot cake",
    "dumplings",
]
LANGUAGES = ["French", "German", "Spanish", "Polish", "Turkish", "Japanese", "Swahili", "Greek"]
FILLING = [
    "the",
    "of",
    "and",
    "to",
    "a",
    "in",
    "that",
    "it",
    "is",
    "was",
    "for",
    "on",
    "with",
    "as",
    "his",
    "they",
    "be",
    "at",
    "one",
    "have",
    "this",
    "from",
    "or",
    "had",
    "by",
    "hot",
    "but",
    "some",
    "what",
    "there",
    "we",
    "can",
    "out",
    "other",
    "were",
    "all",
    "your",
    "when",
    "up",
    "use",
    "word",
    "how",
    "said",
    "an",
    "each",
    "she",
    "which",
    "do",
    "their",
    "time",
    "if",
    "will",
    "way",
    "about",
    "many",
    "then",
    "them",
    "would",
    "write",
    "like",
    "so",
    "these",
    "her",
    "long",
    "make",
    "thing",
    "see",
    "him",
    "two",
    "has",
    "look",
    "more",
    "day",
    "could",
    "go",
    "come",
    "did",
    "my",
    "sound",
    "no",
    "most",
    "number",
    "who",
    "over",
    "know",
    "water",
    "than",
    "call",
    "first",
    "people",
    "may",
    "down",
    "side",
    "been",
    "now",
    "find",
    "any",
    "new",
    "work",
    "part",
    "take",
    "get",
    "place",
    "made",
    "live",
    "where",
    "after",
    "back",
    "little",
    "only",
    "round",
    "man",
    "year",
    "came",
    "show",
    "every",
    "good",
    "me",
    "give",
    "our",
    "under",
    "name",
    "very",
    "through",
    "just",
    "form",
    "much",
    "great",
    "think",
    "say",
    "help",
    "low",
    "line",
    "before",
    "turn",
    "cause",
    "same",
    "mean",
    "differ",
    "move",
    "right",
    "boy",
    "old",
    "too",
    "does",
    "tell",
    "sentence",
    "set",
    "three",
    "want",
    "air",
    "well",
    "also",
    "play",
    "small",
    "end",
    "put",
    "home",
    "read",
    "hand",
    "port",
    "large",
    "spell",
    "add",
    "even",
    "land",
    "here",
    "must",
    "big",
    "high",
    "such",
    "follow",
    "act",
    "why",
    "ask",
    "men",
    "change",
    "went",
    "light",
    "kind",
    "off",
    "need",
    "house",
    "picture",
    "try",
    "us",
    "again",
    "animal",
    "point",
    "mother",
    "world",
    "near",
    "build",
    "self",
    "earth",
    "father",
]

Args = dict[str, Any]


@dataclass(frozen=True)
class Invented:
    family: str
    request: str
    tool: str
    args: Args

    @property
    def expected(self) -> dict:
        return {"tool": self.tool, "args": self.args}

    def held(self, calls: bool = True) -> Held:
        return Held(
            [{"role": "user", "content": self.request}],
            self.expected if calls else {"answer": f"done {self.tool}"},
        )

    def message(self) -> dict:
        return {"role": "user", "content": self.request}


class World:
    """Draws tasks of many families. `names` are invented, so that some are one letter apart."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = [self.word().title() for _ in range(800)]
        self.words = [self.word() for _ in range(6000)]
        self.salad = [self.rng.sample(self.words, self.rng.randint(4, 25)) for _ in range(60)]
        self.boilerplate = [" ".join(self.rng.choices(self.words, k=60)) for _ in range(3)]

    def word(self) -> str:
        made = "".join(
            self.rng.choice(CONSONANTS) + self.rng.choice(VOWELS)
            for _ in range(self.rng.randint(2, 4))
        )
        return (
            self.word() if FILLERS.intersection(words(made)) else made
        )  # by chance an English word without a wish

    def person(self) -> str:
        return f"{self.rng.choice(FIRST)} {self.rng.choice(LAST)}"

    def date(self) -> str:
        return f"{self.rng.randint(1, 28)} {self.rng.choice(MONTHS)}"

    def time(self) -> str:
        return f"{self.rng.randint(8, 19):02d}:{self.rng.choice((0, 15, 30, 45)):02d}"

    def code(self) -> str:
        return "".join(self.rng.choices(string.ascii_uppercase, k=2)) + str(
            self.rng.randint(1000, 99999)
        )

    def task(self, families: Sequence[str] = ()) -> Invented:
        name = self.rng.choice(families or list(FAMILIES))
        request, tool, args = FAMILIES[name](self)
        return Invented(name, request, tool, args)

    def tasks(self, count: int, families: Sequence[str] = ()) -> list[Invented]:
        """Tasks whose requests and calls all differ; fewer where the families have not so many."""
        seen: set[str] = set()
        made: list[Invented] = []
        for _ in range(count * 40):
            task = self.task(families)
            call = json.dumps([task.tool, task.args], sort_keys=True).casefold()
            if task.request.casefold() not in seen and call not in seen:
                seen |= {task.request.casefold(), call}
                made.append(task)
                if len(made) == count:
                    break
        return made

    def filling(self, count: int) -> str:
        return " ".join(self.rng.choice(FILLING) for _ in range(count))


def meeting(w: World) -> tuple[str, str, Args]:
    who, day, time, topic = w.person(), w.date(), w.time(), w.rng.choice(TOPICS)
    return (
        f"Schedule a meeting with {who} on {day} at {time} about {topic}.",
        "calendar.create",
        {"with": who, "day": day, "time": time, "title": topic},
    )


def ticket(w: World) -> tuple[str, str, Args]:
    number, verb = (
        w.rng.randint(1000, 99999),
        w.rng.choice(("Close", "Reopen", "Escalate", "Archive")),
    )
    return f"{verb} ticket {number}.", f"tickets.{verb.lower()}", {"id": number}


def weather(w: World) -> tuple[str, str, Args]:
    city, day = w.rng.choice(CITIES), w.rng.choice((*DAYS, "today", "tomorrow"))
    return (
        f"What will the weather be like in {city} on {day}?",
        "weather.get",
        {"city": city, "day": day},
    )


def device(w: World) -> tuple[str, str, Args]:
    what, room, state = w.rng.choice(DEVICES), w.rng.choice(ROOMS), w.rng.choice(("on", "off"))
    return (
        f"Turn {state} the {what} in the {room}",
        "home.switch",
        {"device": what, "room": room, "state": state},
    )


def email(w: World) -> tuple[str, str, Args]:
    who, topic, day = w.person(), w.rng.choice(TOPICS), w.rng.choice(DAYS)
    return (
        f"Write an email to {who} and ask for an answer about {topic} by {day}.",
        "email.send",
        {"to": who, "topic": topic, "by": day},
    )


def transfer(w: World) -> tuple[str, str, Args]:
    amount, one, other = w.rng.randint(5, 9000), w.code(), w.code()
    return (
        f"Transfer {amount} dollars from account {one} to account {other}",
        "bank.transfer",
        {"amount": amount, "from": one, "to": other},
    )


def product(w: World) -> tuple[str, str, Args]:
    what, price, shop = w.rng.choice(w.words), w.rng.randint(5, 500), w.rng.choice(w.names)
    return (
        f"Find me a {what} for less than {price} euros in the {shop} store, with free delivery.",
        "shop.search",
        {"query": what, "most": price, "shop": shop},
    )


def recipe(w: World) -> tuple[str, str, Args]:
    dish, people = w.rng.choice(DISHES), w.rng.randint(2, 12)
    return (
        f"Give me a recipe for {dish} for {people} people",
        "recipes.find",
        {"dish": dish, "people": people},
    )


def reset(w: World) -> tuple[str, str, Args]:
    who = w.rng.choice(w.names)
    return f"Reset the password of {who}", "users.reset", {"user": who.lower()}


def flight(w: World) -> tuple[str, str, Args]:
    a, b = w.rng.sample(CITIES, 2)
    day, seats, meal = (
        w.date(),
        w.rng.randint(1, 6),
        w.rng.choice(("vegan", "halal", "kosher", "normal")),
    )
    request = (
        f"I am planning a trip with my family and would like to fly from {a} to {b} on {day}. There"
        f" are {seats} of us, we want to sit together, and we need {meal} meals on board. Please"
        " book the cheapest direct flight that you can find."
    )
    return request, "flights.book", {"from": a, "to": b, "day": day, "seats": seats, "meal": meal}


def translation(w: World) -> tuple[str, str, Args]:
    text, language = (
        " ".join(w.rng.choices(w.words, k=w.rng.randint(4, 9))),
        w.rng.choice(LANGUAGES),
    )
    return f"Translate “{text}” into {language}", "text.translate", {"text": text, "into": language}


def salad(w: World) -> tuple[str, str, Args]:
    number = w.rng.randrange(len(w.salad))
    name, amount, own = (
        w.rng.choice(w.names),
        w.rng.randint(10, 99_999),
        w.rng.sample(w.words, w.rng.randint(1, 4)),
    )
    words = [*w.salad[number], name, str(amount), *own]
    return " ".join(words), f"tool_{number}", {"who": name, "amount": amount, "note": " ".join(own)}


def boilerplate(w: World) -> tuple[str, str, Args]:
    who, room = w.person(), w.rng.randint(100, 999)
    return (
        f"{w.rng.choice(w.boilerplate)}. Reserve room {room} for {who}",
        "rooms.reserve",
        {"room": room, "who": who},
    )


def remind(w: World) -> tuple[str, str, Args]:
    what, day = w.rng.choice(w.words), w.rng.choice(DAYS)
    return f"Remind me to buy {what} on {day}", "reminders.add", {"what": what, "day": day}


FAMILIES: dict[str, Callable[[World], tuple[str, str, Args]]] = {
    one.__name__: one
    for one in (
        meeting,
        ticket,
        weather,
        device,
        email,
        transfer,
        product,
        recipe,
        reset,
        flight,
        translation,
        salad,
        boilerplate,
        remind,
    )
}
