"""Held-out requests on their way into training rows: invented tasks, and the routes by which one of them comes back.

Everything is drawn from a seed. A route takes a task and gives a training row that holds it; `distinct` tasks are of the same
templates and are other tasks.
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
ROOMS = ["kitchen", "bedroom", "hall", "garage", "office", "cellar", "bathroom", "living room", "attic", "garden"]
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
FILLING = ["the", "of", "and", "to", "a", "in", "that", "it", "is", "was", "for", "on", "with", "as", "his", "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but", "some", "what", "there", "we", "can", "out", "other", "were", "all", "your", "when", "up", "use", "word", "how", "said", "an", "each", "she", "which", "do", "their", "time", "if", "will", "way", "about", "many", "then", "them", "would", "write", "like", "so", "these", "her", "long", "make", "thing", "see", "him", "two", "has", "look", "more", "day", "could", "go", "come", "did", "my", "sound", "no", "most", "number", "who", "over", "know", "water", "than", "call", "first", "people", "may", "down", "side", "been", "now", "find", "any", "new", "work", "part", "take", "get", "place", "made", "live", "where", "after", "back", "little", "only", "round", "man", "year", "came", "show", "every", "good", "me", "give", "our", "under", "name", "very", "through", "just", "form", "much", "great", "think", "say", "help", "low", "line", "before", "turn", "cause", "same", "mean", "differ", "move", "right", "boy", "old", "too", "does", "tell", "sentence", "set", "three", "want", "air", "well", "also", "play", "small", "end", "put", "home", "read", "hand", "port", "large", "spell", "add", "even", "land", "here", "must", "big", "high", "such", "follow", "act", "why", "ask", "men", "change", "went", "light", "kind", "off", "need", "house", "picture", "try", "us", "again", "animal", "point", "mother", "world", "near", "build", "self", "earth", "father"]  # fmt: skip

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
            [{"role": "user", "content": self.request}], self.expected if calls else {"answer": f"done {self.tool}"}
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
        made = "".join(self.rng.choice(CONSONANTS) + self.rng.choice(VOWELS) for _ in range(self.rng.randint(2, 4)))
        return self.word() if FILLERS.intersection(words(made)) else made  # by chance an English word without a wish

    def person(self) -> str:
        return f"{self.rng.choice(FIRST)} {self.rng.choice(LAST)}"

    def date(self) -> str:
        return f"{self.rng.randint(1, 28)} {self.rng.choice(MONTHS)}"

    def time(self) -> str:
        return f"{self.rng.randint(8, 19):02d}:{self.rng.choice((0, 15, 30, 45)):02d}"

    def code(self) -> str:
        return "".join(self.rng.choices(string.ascii_uppercase, k=2)) + str(self.rng.randint(1000, 99999))

    def task(self, families: Sequence[str] = ()) -> Invented:
        name = self.rng.choice(families or list(FAMILIES))
        request, tool, args = FAMILIES[name](self)
        return Invented(name, request, tool, args)

    def tasks(self, count: int, families: Sequence[str] = (), beside: set[str] | None = None) -> list[Invented]:
        """Tasks whose requests and calls all differ, from each other and from those `beside`."""
        seen, made = set(beside or ()), []
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


def marks(tasks: list[Invented]) -> set[str]:
    """What `World.tasks` is to keep apart from these."""
    return {task.request.casefold() for task in tasks} | {
        json.dumps([task.tool, task.args], sort_keys=True).casefold() for task in tasks
    }


def meeting(w: World) -> tuple[str, str, Args]:
    who, day, time, topic = w.person(), w.date(), w.time(), w.rng.choice(TOPICS)
    return f"Schedule a meeting with {who} on {day} at {time} about {topic}.", "calendar.create", {
        "with": who, "day": day, "time": time, "title": topic}  # fmt: skip


def ticket(w: World) -> tuple[str, str, Args]:
    number, verb = w.rng.randint(1000, 99999), w.rng.choice(("Close", "Reopen", "Escalate", "Archive"))
    return f"{verb} ticket {number}.", f"tickets.{verb.lower()}", {"id": number}


def weather(w: World) -> tuple[str, str, Args]:
    city, day = w.rng.choice(CITIES), w.rng.choice((*DAYS, "today", "tomorrow"))
    return f"What will the weather be like in {city} on {day}?", "weather.get", {"city": city, "day": day}


def device(w: World) -> tuple[str, str, Args]:
    what, room, state = w.rng.choice(DEVICES), w.rng.choice(ROOMS), w.rng.choice(("on", "off"))
    return f"Turn {state} the {what} in the {room}", "home.switch", {"device": what, "room": room, "state": state}


def email(w: World) -> tuple[str, str, Args]:
    who, topic, day = w.person(), w.rng.choice(TOPICS), w.rng.choice(DAYS)
    return f"Write an email to {who} and ask for an answer about {topic} by {day}.", "email.send", {
        "to": who, "topic": topic, "by": day}  # fmt: skip


def transfer(w: World) -> tuple[str, str, Args]:
    amount, one, other = w.rng.randint(5, 9000), w.code(), w.code()
    return f"Transfer {amount} dollars from account {one} to account {other}", "bank.transfer", {
        "amount": amount, "from": one, "to": other}  # fmt: skip


def product(w: World) -> tuple[str, str, Args]:
    what, price, shop = w.rng.choice(w.words), w.rng.randint(5, 500), w.rng.choice(w.names)
    return f"Find me a {what} for less than {price} euros in the {shop} store, with free delivery.", "shop.search", {
        "query": what, "most": price, "shop": shop}  # fmt: skip


def recipe(w: World) -> tuple[str, str, Args]:
    dish, people = w.rng.choice(DISHES), w.rng.randint(2, 12)
    return f"Give me a recipe for {dish} for {people} people", "recipes.find", {"dish": dish, "people": people}


def reset(w: World) -> tuple[str, str, Args]:
    who = w.rng.choice(w.names)
    return f"Reset the password of {who}", "users.reset", {"user": who.lower()}


def flight(w: World) -> tuple[str, str, Args]:
    a, b = w.rng.sample(CITIES, 2)
    day, seats, meal = w.date(), w.rng.randint(1, 6), w.rng.choice(("vegan", "halal", "kosher", "normal"))
    request = (
        f"I am planning a trip with my family and would like to fly from {a} to {b} on {day}. There are {seats} of us, we want "
        f"to sit together, and we need {meal} meals on board. Please book the cheapest direct flight that you can find."
    )
    return request, "flights.book", {"from": a, "to": b, "day": day, "seats": seats, "meal": meal}


def translation(w: World) -> tuple[str, str, Args]:
    text, language = " ".join(w.rng.choices(w.words, k=w.rng.randint(4, 9))), w.rng.choice(LANGUAGES)
    return f"Translate “{text}” into {language}", "text.translate", {"text": text, "into": language}


def salad(w: World) -> tuple[str, str, Args]:
    number = w.rng.randrange(len(w.salad))
    name, amount, own = w.rng.choice(w.names), w.rng.randint(10, 99_999), w.rng.sample(w.words, w.rng.randint(1, 4))
    words = [*w.salad[number], name, str(amount), *own]
    return " ".join(words), f"tool_{number}", {"who": name, "amount": amount, "note": " ".join(own)}


def boilerplate(w: World) -> tuple[str, str, Args]:
    who, room = w.person(), w.rng.randint(100, 999)
    return f"{w.rng.choice(w.boilerplate)}. Reserve room {room} for {who}", "rooms.reserve", {"room": room, "who": who}


def remind(w: World) -> tuple[str, str, Args]:
    what, day = w.rng.choice(w.words), w.rng.choice(DAYS)
    return f"Remind me to buy {what} on {day}", "reminders.add", {"what": what, "day": day}


FAMILIES: dict[str, Callable[[World], tuple[str, str, Args]]] = {
    one.__name__: one
    for one in (meeting, ticket, weather, device, email, transfer, product, recipe, reset, flight, translation, salad,
                boilerplate, remind)
}  # fmt: skip


# Answers


def in_kind(task: Invented) -> str:
    return json.dumps({"tool": task.tool, "args": task.args})


def in_words(task: Invented) -> str:
    return "All right, that is done."


# Routes: (world, task) to a training row that holds the task's request


def chat(w: World, request: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]}


Route = Callable[[World, Invented], dict]


def spelt(change: Callable[[World, str], str]) -> Route:
    """The request in another spelling or wrapping, as a user's message, with the answer in words."""
    return lambda w, task: chat(w, change(w, task.request), in_words(task))


def beside(put: Callable[[World, str], dict]) -> Route:
    """The request anywhere but in a user's message; what the row is about is something else."""
    return lambda w, task: put(w, task.request)


OTHER = "How do I change the colour of the chart in the monthly newsletter?"
OTHER_ANSWER = "Open its settings, choose Colours, and pick one."


def row(*before: dict, **more: Any) -> dict:
    return {
        "messages": [*before, {"role": "user", "content": OTHER}, {"role": "assistant", "content": OTHER_ANSWER}]
    } | more


def preamble(words: int) -> Callable[[World, str], str]:
    return lambda w, text: f"{w.filling(words)}. {text}"


def typos(w: World, text: str) -> str:
    """One slip in every fourth word that has letters only and three of them or more."""
    words = text.split(" ")
    for at in range(w.rng.randrange(4), len(words), 4):
        words[at] = slip(w.rng, words[at])
    return " ".join(words)


def slip(rng: random.Random, word: str) -> str:
    letters = word.strip(string.punctuation + "“”")
    if len(letters) < 3 or not letters.isalpha():
        return word
    at = rng.randrange(len(letters) - 1)
    made = rng.choice((
        letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :],
        letters[: at + 1] + letters[at + 2 :],
        letters[: at + 1] + letters[at] + letters[at + 1 :],
        letters[: at + 1] + rng.choice(string.ascii_lowercase) + letters[at + 2 :],
    ))  # fmt: skip
    return word.replace(letters, made)


LOOK_ALIKE = str.maketrans("aeopcxyAEOPCXBHKMT", "аеорсхуАЕОРСХВНКМТ")
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" and {number_words(n % 100)}" if n % 100 else "")
    return f"{number_words(n // 1000)} thousand" + (f" {number_words(n % 1000)}" if n % 1000 else "")


def numbers_in_words(w: World, text: str) -> str:
    words = text.split(" ")
    for at, word in enumerate(words):
        bare = word.rstrip(".,?!")
        if bare.isdigit() and bare[0] != "0":
            words[at] = number_words(int(bare)) + word[len(bare) :]
    return " ".join(words)


def zero_width(w: World, text: str) -> str:
    return "".join(char + (w.rng.choice("\u200b\u200d\u2060\ufeff") if w.rng.random() < 0.2 else "") for char in text)


def broken(w: World, text: str) -> str:
    return "".join("\n> " if char == " " and w.rng.random() < 0.25 else char for char in text)


def hyphenated(w: World, text: str) -> str:
    words = text.split(" ")
    at = max(range(len(words)), key=lambda index: len(words[index]) if words[index].isalpha() else 0)
    if words[at].isalpha() and len(words[at]) > 3:
        words[at] = f"{words[at][:2]}-\n{words[at][2:]}"
    return " ".join(words)


def punctuated(w: World, text: str) -> str:
    return "".join(
        w.rng.choice((" ", " ... ", ", ", " — ", "\t", "\u00a0", "  ")) if char == " " else char for char in text
    )


def escaped(times: int) -> Callable[[World, str], str]:
    def change(w: World, text: str) -> str:
        value: Any = {"event": "request", "id": w.rng.randrange(999), "body": text, "ok": True}
        for _ in range(times):
            value = {"payload": json.dumps(value)}
        return f"Incoming:\n{json.dumps(value)}\nEnd"

    return change


def halves(text: str) -> tuple[str, str]:
    words = text.split(" ")
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def two_messages(w: World, request: str) -> dict:
    one, other = halves(request)
    turns = [("user", one), ("assistant", "Go on, I am listening."), ("user", other), ("assistant", "Done.")]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def adjacent_messages(w: World, request: str) -> dict:
    one, other = halves(request)
    return {"messages": [{"role": "user", "content": one}, {"role": "user", "content": other},
                         {"role": "assistant", "content": "Done."}]}  # fmt: skip


def tool(w: World, text: str, at: str) -> dict:
    parameters = {"type": "object", "properties": {"query": {"type": "string", "description": "what is looked for"}}}
    made = {"name": "search", "description": "Looks something up.", "parameters": parameters}
    if at == "description":
        made["description"] += f" Example: {text}"
    elif at == "parameter":
        parameters["properties"]["query"]["description"] += f", such as '{text}'"
    else:
        parameters["properties"]["query"]["examples"] = [text]
    return row(tools=[{"type": "function", "function": made}])


def tool_result(w: World, text: str) -> dict:
    call = {"id": "c1", "type": "function", "function": {"name": "inbox.read", "arguments": '{"folder": "new"}'}}
    result = {"items": [{"subject": "hello", "body": text, "read": False}], "next": None}
    return {"messages": [
        {"role": "user", "content": OTHER}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": json.dumps(result)}, {"role": "assistant", "content": OTHER_ANSWER},
    ]}  # fmt: skip


def tool_arguments(w: World, text: str) -> dict:
    arguments = json.dumps({"note": text, "urgent": True})
    call = {"id": "c1", "type": "function", "function": {"name": "notes.add", "arguments": arguments}}
    return {
        "messages": [{"role": "user", "content": OTHER}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    }


def few_shot_text(w: World, text: str) -> dict:
    prompt = f"You are helpful. Some examples follow.\n\nExample 1\nUser: {OTHER}\nAgent: ok\n\nExample 2 (here is one that often comes): User: {text}\nAgent: done\n\nNow answer."
    return row({"role": "system", "content": prompt})


def preference(w: World, text: str) -> dict:
    return {"prompt": [{"role": "user", "content": f"{w.filling(12)}: {text}"}], "chosen": "Yes.", "rejected": "No."}


VERBATIM: dict[str, Route] = {
    "as it is, other answer": spelt(lambda w, text: text),
    **{f"preamble of {n} words": spelt(preamble(n)) for n in (3, 10, 50, 150, 500)},
    "suffix of 3 words": spelt(lambda w, text: f"{text} {w.filling(3)}"),
    "suffix of 50 words": spelt(lambda w, text: f"{text} {w.filling(50)}"),
    "both, 200 words each": spelt(lambda w, text: f"{w.filling(200)} {text} {w.filling(200)}"),
    "JSON": spelt(escaped(0)),
    "JSON in JSON": spelt(escaped(1)),
    "JSON in JSON in JSON in JSON": spelt(escaped(3)),
    "JSON alone": spelt(lambda w, text: json.dumps({"request": {"text": text, "lang": "en"}})),
    "code fence": spelt(lambda w, text: f"Please look at this:\n```text\n{text}\n```\nThanks."),
    "Markdown": spelt(lambda w, text: f"## Task\n\n- **{text}**\n- _nothing else_"),
    "comment in code": spelt(lambda w, text: f"def run():\n    # TODO: {text}\n    pass"),
    "quoted": spelt(lambda w, text: f"My boss wrote: “{text}” What did she mean?"),
    "XML": spelt(lambda w, text: f'<msg id="{w.rng.randrange(99)}"><body>{text}</body></msg>'),
    "HTML entities": spelt(lambda w, text: "<p>" + text.replace(" ", "&nbsp;").replace("'", "&#39;") + "</p>"),
    "URL-encoded": spelt(lambda w, text: "GET /ask?q=" + text.replace("%", "%25").replace(" ", "%20") + "&lang=en"),
    "upper case": spelt(lambda w, text: f"{w.filling(20)} {text.upper()}"),
    "lower case": spelt(lambda w, text: f"{w.filling(20)} {text.lower()}"),
    "other punctuation and spaces": spelt(lambda w, text: f"{w.filling(20)}: {punctuated(w, text)}"),
    "look-alike letters": spelt(lambda w, text: f"{w.filling(20)} {text.translate(LOOK_ALIKE)}"),
    "full-width letters": spelt(lambda w, text: w.filling(9) + " " + "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)),
    "zero-width characters": spelt(lambda w, text: f"{w.filling(20)} {zero_width(w, text)}"),
    "numbers in words": spelt(lambda w, text: f"{w.filling(20)}. {numbers_in_words(w, text)}"),
    "line breaks": spelt(lambda w, text: f"{w.filling(20)}\n> {broken(w, text)}"),
    "word broken over lines": spelt(lambda w, text: f"{w.filling(20)}. {hyphenated(w, text)}"),
    "two messages, an answer between": beside(two_messages),
    "two messages in a row": beside(adjacent_messages),
    "system prompt": beside(lambda w, text: row({"role": "system", "content": f"You are an agent. {w.filling(30)}. {text}. {w.filling(9)}."})),
    "developer message": beside(lambda w, text: row({"role": "developer", "content": f"Requests are like this: {text}"})),
    "few-shot in the prompt's text": beside(few_shot_text),
    "few-shot examples": beside(lambda w, text: {"examples": [{"role": "user", "content": f"Look: {text}"}, {"role": "assistant", "content": "ok"}]}),
    "demonstration": beside(lambda w, text: {"messages": [{"role": "user", "content": OTHER}], "expected": {"answer": "x"}, "demonstration": f"You may also ask me this: {text}"}),
    "assistant's turn": beside(lambda w, text: {"messages": [{"role": "user", "content": OTHER}, {"role": "assistant", "content": f"You mean: {text}"}]}),
    "tool result": beside(tool_result),
    "tool call's arguments": beside(tool_arguments),
    "tool description": beside(lambda w, text: tool(w, text, "description")),
    "parameter description": beside(lambda w, text: tool(w, text, "parameter")),
    "schema's examples": beside(lambda w, text: tool(w, text, "examples")),
    "prompt and completion": beside(lambda w, text: {"prompt": f"{w.filling(8)} {text}", "completion": "ok"}),
    "preference pair": beside(preference),
    "plain text": beside(lambda w, text: {"text": f"{w.filling(40)} {text} {w.filling(40)}"}),
    "recorded tool result of a task": beside(lambda w, text: {"messages": [{"role": "user", "content": OTHER}], "expected": {"answer": "x"}, "metadata": {"recorded_results": [{"tool": "read", "content": text}]}}),
}  # fmt: skip

TYPOS: dict[str, Route] = {
    "a typo in every fourth word": spelt(typos),
    "the same behind 20 words": spelt(lambda w, text: f"{w.filling(20)}. {typos(w, text)}"),
    "the same in a tool result": beside(lambda w, text: tool_result(w, typos(w, text))),
}


def same_calls(w: World, task: Invented) -> dict:
    """Another request, the same calls."""
    return chat(w, f"{w.filling(w.rng.randint(6, 20))}?", in_kind(task))


def same_calls_in_tools(w: World, task: Invented) -> dict:
    call = {"id": "c", "type": "function", "function": {"name": task.tool, "arguments": json.dumps(task.args)}}
    return {"messages": [{"role": "user", "content": w.filling(12)}, {"role": "assistant", "tool_calls": [call]}]}


def paraphrase(w: World, task: Invented) -> dict:
    """The same words in another order, with fillers."""
    words = task.request.rstrip(".?").split(" ")
    cut = w.rng.randrange(1, len(words))
    return chat(w, "Hey, could you please: " + " ".join(words[cut:] + words[:cut]) + " — thanks!", in_words(task))


CALLS: dict[str, Route] = {"the same calls, another request": same_calls, "as native tool calls": same_calls_in_tools}
