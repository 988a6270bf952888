"""Invented tasks of ten families that the hold-out's own table (`bench.leak_tasks`) has none of:
mails, SQL, calendars, sums, code review, other languages, operations, documents, forms, short
orders. Everything is drawn from a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES = [
    "Adaeze",
    "Bruno",
    "Chiara",
    "Dmitri",
    "Esra",
    "Fleur",
    "Goran",
    "Hyejin",
    "Imogen",
    "Jorge",
    "Katya",
    "Leif",
    "Marisol",
    "Noor",
    "Oisín",
    "Priya",
    "Quinn",
    "Rafael",
    "Saoirse",
    "Tomasz",
    "Ulla",
    "Viktor",
    "Wanjiru",
    "Xenia",
    "Yusuf",
    "Zuzana",
]
SURNAMES = [
    "Abernathy",
    "Bianchi",
    "Castellanos",
    "Dubois",
    "Eriksen",
    "Farouk",
    "Goldberg",
    "Halvorsen",
    "Ishikawa",
    "Jovanović",
    "Kowalczyk",
    "Lindqvist",
    "Mbeki",
    "Nakamura",
    "O'Leary",
    "Papadakis",
    "Quispe",
    "Rahman",
    "Szabó",
    "Tanaka",
    "Ueno",
    "Vasquez",
    "Whitaker",
    "Yilmaz",
    "Zieliński",
]
PRODUCTS = [
    "espresso grinder",
    "standing desk",
    "noise-cancelling headset",
    "road bike",
    "smart thermostat",
    "rice cooker",
    "trail backpack",
    "mechanical keyboard",
    "garden hose",
    "air purifier",
    "rowing machine",
    "projector",
]
FAULTS = [
    "does not switch on",
    "arrived with a cracked lid",
    "makes a grinding noise",
    "smells of burnt plastic",
    "stopped after two days",
    "has the wrong plug",
    "leaks at the valve",
    "shows error E42",
]
WISHES = [
    "a full refund to my card",
    "a replacement before the weekend",
    "a technician to call me back",
    "the missing screws by letter post",
    "a label for the return",
]
TABLES = {
    "orders": ["total", "status", "placed_at", "customer_id"],
    "employees": ["salary", "department", "hired_on", "manager_id"],
    "flights": ["departure", "gate", "delay_minutes", "carrier"],
    "invoices": ["amount", "due_date", "paid", "vendor"],
    "patients": ["age", "ward", "admitted_at", "physician"],
    "listings": ["price", "bedrooms", "city", "agent"],
}
TOPICS = [
    "pricing workshop",
    "kiln safety briefing",
    "thesis defence rehearsal",
    "quarterly forecast",
    "onboarding of interns",
    "vendor negotiation",
    "choir committee",
    "incident postmortem",
    "floor plan walkthrough",
    "grant proposal",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
FUNCTIONS = [
    "parse_header",
    "merge_intervals",
    "retry_request",
    "load_config",
    "sum_digits",
    "flatten_tree",
    "debounce",
    "hash_password",
    "chunk_list",
    "trim_margins",
]
BUGS = [
    "mutates the default argument",
    "swallows every exception",
    "compares floats with ==",
    "leaks the file handle",
    "is quadratic in the input",
    "ignores the time zone",
    "never releases the lock",
]
SERVICES = [
    "billing-api",
    "search-indexer",
    "mail-relay",
    "image-resizer",
    "auth-proxy",
    "report-builder",
    "feature-store",
    "edge-cache",
]
REGIONS = ["eu-west-1", "us-east-2", "ap-south-1", "sa-east-1", "eu-north-1", "ca-central-1"]
FRUIT = ["lemons", "apricots", "pumpkins", "figs", "cabbages", "walnuts", "plums", "leeks"]
PLACES = [
    "Ljubljana",
    "Tromsø",
    "Valparaíso",
    "Nagoya",
    "Kampala",
    "Tbilisi",
    "Galway",
    "Porto",
    "Izmir",
    "Gdańsk",
]


@dataclass(frozen=True)
class Invented:
    """A task: what is asked, and `expected` in one of the product's forms."""

    family: str
    key: str
    request: str
    expected: dict
    tools: list[dict] = field(default_factory=list)

    @property
    def calls(self) -> bool:
        return "tool" in self.expected

    def row(self, **changes: Any) -> dict:
        given = {
            "key": self.key,
            "messages": [{"role": "user", "content": self.request}],
            "expected": self.expected,
        }
        return given | ({"tools": self.tools} if self.tools else {}) | changes


def tool(name: str, args: Sequence[str]) -> dict:
    properties = {arg: {"type": "string"} for arg in args}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


Draw = random.Random


def person(draw: Draw) -> str:
    return f"{draw.choice(NAMES)} {draw.choice(SURNAMES)}"


def mail(draw: Draw) -> tuple[str, dict]:
    order = f"{draw.choice('KXRT')}{draw.randint(100000, 999999)}"
    product, fault, wish = draw.choice(PRODUCTS), draw.choice(FAULTS), draw.choice(WISHES)
    return (
        (
            f"Dear team, the {product} from my order {order} {fault}. I bought it on"
            f" {draw.randint(1, 28)} {draw.choice(MONTHS)} and wrote to you twice without an"
            f" answer. I would like {wish}. Kind regards, {person(draw)}"
        ),
        {
            "answer": (
                f"We are sorry about the {product}; ticket {order} is open and {wish} is arranged."
            )
        },
    )


def sql(draw: Draw) -> tuple[str, dict]:
    table = draw.choice(list(TABLES))
    one, two, three = draw.sample(TABLES[table], 3)
    top = draw.randint(3, 90)
    return (
        (
            f"Write a PostgreSQL query on the table {table} that lists the {top} rows with the"
            f" highest {one} where {two} is not null, grouped by {three}, leaving out everything"
            f" older than {draw.randint(2, 99)} days."
        ),
        {
            "answer": (
                f"SELECT {three}, max({one}) FROM {table} WHERE {two} IS NOT NULL GROUP BY {three}"
                f" ORDER BY 2 DESC LIMIT {top}"
            )
        },
    )


def calendar(draw: Draw) -> tuple[str, dict]:
    month, day, hour, name = (
        draw.randint(1, 12),
        draw.randint(1, 28),
        draw.randint(8, 18),
        draw.choice(NAMES),
    )
    minutes, topic = draw.choice((15, 30, 45, 60, 90)), draw.choice(TOPICS)
    args = {
        "title": topic.capitalize(),
        "start": f"2027-{month:02}-{day:02}T{hour:02}:00",
        "minutes": minutes,
        "attendee": f"{name.lower()}@example.org",
    }
    said = f"{(hour - 1) % 12 + 1} {'am' if hour < 12 else 'pm'}"
    return (
        (
            f"Put a {topic} with {name} into my calendar on {MONTHS[month - 1]} {day}, 2027 at"
            f" {said} for {minutes} minutes"
        ),
        {"tool": "calendar.create_event", "args": args},
    )


def maths(draw: Draw) -> tuple[str, dict]:
    crates, each, spoiled, price = (
        draw.randint(12, 98),
        draw.randint(11, 60),
        draw.randint(5, 90),
        draw.randint(2, 9),
    )
    fruit = draw.choice(FRUIT)
    return (
        (
            f"{draw.choice(NAMES)} receives {crates} crates with {each} {fruit} in each of them,"
            f" throws away {spoiled} that are spoiled and sells the rest at the market for ${price}"
            " a piece. How many dollars does that bring in altogether?"
        ),
        {"answer": (crates * each - spoiled) * price},
    )


def review(draw: Draw) -> tuple[str, dict]:
    name, bug, line = draw.choice(FUNCTIONS), draw.choice(BUGS), draw.randint(4, 240)
    body = (
        f"def {name}(items, limit={draw.randint(2, 64)}):\n    seen = {{}}\n    for at, item in"
        f" enumerate(items):\n        seen[item] = at % {draw.randint(3, 97)}\n    return seen"
    )
    return (
        (
            "Please review this function before I merge branch"
            f" {draw.choice(SERVICES)}-{draw.randint(10, 999)}; I suspect that line {line}"
            f" {bug}.\n\n```python\n{body}\n```\nName the worst problem and show a corrected"
            " version."
        ),
        {"answer": f"The worst problem of {name} is that it {bug}."},
    )


LANGUAGES: dict[str, Callable[[Draw], str]] = {
    "de": lambda d: (
        f"Bitte buche für {person(d)} einen Tisch für {d.randint(2, 14)} Personen im Gasthaus zum"
        f" {d.choice(SURNAMES)} am {d.randint(1, 28)}. März und vergiss den Kinderstuhl nicht"
    ),
    "es": lambda d: (
        f"Necesito que envíes la factura número {d.randint(1000, 99999)} a {person(d)} antes del"
        f" {d.randint(1, 28)} de agosto, con copia a la oficina de {d.choice(PLACES)}"
    ),
    "fr": lambda d: (
        f"Peux-tu réserver {d.randint(2, 9)} places dans le train de {d.choice(PLACES)} à"
        f" {d.choice(PLACES)} pour {person(d)} le {d.randint(1, 28)} juillet au matin"
    ),
    "pl": lambda d: (
        f"Proszę przełożyć wizytę pacjenta {person(d)} z godziny {d.randint(8, 12)} na godzinę"
        f" {d.randint(13, 18)} i powiadomić oddział numer {d.randint(2, 99)}"
    ),
    "ru": lambda d: (
        f"Пожалуйста, отмени заказ номер {d.randint(1000, 99999)} на имя {d.choice(NAMES)} и верни"
        f" {d.randint(100, 9000)} рублей на карту до пятницы"
    ),
    "ja": lambda d: (
        f"{d.choice(PLACES)}行きの新幹線を{d.randint(2, 9)}名分、{d.randint(1, 12)}月{d.randint(1, 28)}日の午後に予約して、"  # noqa: E501
        f"領収書を{d.choice(NAMES)}さんに送ってください"
    ),
    "zh": lambda d: (
        f"请帮我把编号{d.randint(1000, 99999)}的合同发给{d.choice(NAMES)},并在{d.randint(1, 12)}月{d.randint(1, 28)}日之前提醒财务部付款{d.randint(100, 9000)}元"  # noqa: E501
    ),
    "tr": lambda d: (
        f"Lütfen {person(d)} adına {d.choice(PLACES)} otelinde {d.randint(2, 20)} gecelik bir oda"
        f" ayırt ve kahvaltıyı da {d.randint(2, 8)} kişi için ekle"
    ),
}


def languages(draw: Draw) -> tuple[str, dict]:
    which = draw.choice(list(LANGUAGES))
    return LANGUAGES[which](draw), {"answer": f"{which}-{draw.randint(1, 10**6)}"}


def operations(draw: Draw) -> tuple[str, dict]:
    service, region, copies, version = (
        draw.choice(SERVICES),
        draw.choice(REGIONS),
        draw.randint(2, 40),
        f"{draw.randint(1, 9)}.{draw.randint(0, 30)}.{draw.randint(0, 9)}",
    )
    return (
        (
            f"Roll {service} in {region} forward to {version} with {copies} replicas, and keep the"
            " old pods until the health checks are green"
        ),
        {
            "tool": "deploy",
            "args": {"service": service, "region": region, "version": version, "replicas": copies},
        },
    )


def document(draw: Draw) -> tuple[str, dict]:
    place, year, people = draw.choice(PLACES), draw.randint(1801, 1999), draw.randint(1000, 900000)
    who, what = person(draw), draw.choice(TOPICS)
    text = (
        f"The tramway of {place} was opened in {year} by the engineer {who}. At that time the town"
        f" counted {people:,} inhabitants, most of whom worked in the {draw.choice(FRUIT)} trade. A"
        f" second line followed after {draw.randint(2, 30)} years; its depot burned down during a"
        f" {what}, and the ruins were sold for {draw.randint(100, 9000)} crowns. Since then the"
        f" cars have been painted {draw.choice(('green', 'ochre', 'navy blue', 'crimson'))}."
    )
    return (
        (
            f"Answer from the passage only.\n\nPassage:\n{text}\n\nQuestion: Who opened the tramway"
            f" of {place}, and in which year?"
        ),
        {"answer": f"{who} in {year}"},
    )


def form(draw: Draw) -> tuple[str, dict]:
    who, street, number = person(draw), draw.choice(SURNAMES), draw.randint(1, 320)
    born = f"{draw.randint(1, 28)}.{draw.randint(1, 12)}.{draw.randint(1940, 2005)}"
    text = (
        f"Extract name, birthday, street and policy as JSON: “Insured is {who}, born {born}, of"
        f" {number} {street} Road; policy"
        f" {draw.choice('ABC')}-{draw.randint(10000, 99999)}-{draw.randint(10, 99)}.”"
    )
    return text, {"answer": {"name": who, "birthday": born, "street": f"{number} {street} Road"}}


def order(draw: Draw) -> tuple[str, dict]:
    name, count, drink = (
        draw.choice(NAMES),
        draw.randint(2, 60),
        draw.choice(["oat flat whites", "iced matchas", "ginger shots", "cold brews"]),
    )
    return f"Get {name} {count} {drink} for {draw.choice(PLACES)}", {
        "tool": "order",
        "args": {"guest": name, "count": count, "drink": drink},
    }


FAMILIES: dict[str, Callable[[Draw], tuple[str, dict]]] = {
    "mail": mail,
    "sql": sql,
    "calendar": calendar,
    "maths": maths,
    "review": review,
    "languages": languages,
    "operations": operations,
    "document": document,
    "form": form,
    "order": order,
}


def invent(seed: int, each: int, families: Sequence[str] = tuple(FAMILIES)) -> list[Invented]:
    """`each` tasks of every family, no request twice."""
    made: list[Invented] = []
    for family in families:
        draw, seen = random.Random(f"{seed}-{family}"), set()
        while len(seen) < each:
            request, expected = FAMILIES[family](draw)
            if request in seen or str(expected) in seen:
                continue
            seen.add(request)
            tools = [tool(expected["tool"], list(expected["args"]))] if "tool" in expected else []
            made.append(Invented(family, f"{family}-{len(seen)}", request, expected, tools))
    return made


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
