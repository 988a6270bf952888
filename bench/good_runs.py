"""Good runs in which a careless rule sees a failure. `python -m bench.good_runs`

Made from structure: what happened (a retry that ends well, errors as data, searches that find
nothing, waiting, a handover that was right, a farewell) × how the protocol writes it (tool calls, a
shell, labelled lines, tags) × a language. Prints what the rules say of them with the outcome
unknown; goal: nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product
from typing import Any

from apps.failures.classify import classify
from apps.failures.rules.reading import read
from apps.failures.rules.reply_forms import Counted, Forms, forms_in

# greeting, request, done, found nothing, still waiting, hands over, farewell, thanks, note
LANGUAGES = {
    "en": "Hello|Please see to order 17.|It is done.|There is nothing.|Not ready yet; you will get"
    " a message.|I will connect you with a colleague.|Bye!|You're welcome.|[A. Roe joined]",
    "de": "Guten Tag|Bitte Auftrag 17 erledigen.|Es ist erledigt.|Dazu gibt es nichts.|Es dauert"
    " noch, Sie bekommen Bescheid.|Ich verbinde Sie mit einer Kollegin.|Tschüss!|Gern"
    " geschehen.|[A. Roe ist beigetreten]",
    "es": "Hola|Atienda el pedido 17, por favor.|Está hecho.|No hay nada.|Aún no está; le"
    " avisaremos.|Le paso con una compañera.|¡Adiós!|De nada.|[A. Roe se ha unido]",
    "ja": "こんにちは|注文17をお願いします。|完了しました。|該当はありません。|まだです。"
    "|担当者におつなぎします。|さようなら|どういたしまして。|[A. Roe が参加しました]",
    "ar": "مرحبا|الرجاء معالجة الطلب 17.|تم ذلك.|لا يوجد شيء.|لم يجهز بعد، سنبلغك."
    "|سأحولك إلى زميلة.|مع السلامة|على الرحب.|[انضمت A. Roe]",
    "hi": "नमस्ते|कृपया ऑर्डर 17 देखें।|हो गया।|कुछ नहीं मिला।|अभी तैयार नहीं है, सूचना मिलेगी।"
    "|मैं आपको सहकर्मी से जोड़ता हूँ।|अलविदा|स्वागत है।|[A. Roe जुड़ीं]",
}
HELLO, ASK, DONE, NOTHING, WAIT, CONNECT, BYE, WELCOME, JOINED = range(9)
ERROR = {"error": {"code": 503, "message": "upstream unavailable"}}
Event = tuple  # ("user" | "agent" | "notice" | "person", word) or ("call", tool, args, reply)


def call(tool: str, reply: Any, **args: Any) -> Event:
    return ("call", tool, args, reply)


def user(word: int) -> Event:
    return ("user", word)


def agent(word: int) -> Event:
    return ("agent", word)


BEGIN = [user(ASK)]
PENDING, READY = {"state": "pending"}, {"state": "ready"}
DETAILS = {"name": "nightly export of all orders", "owner": "A. Roe", "queue": 4}
LOG = "ERROR disk full\nFATAL worker 3 died\nTraceback (most recent call last):"

STORIES: dict[str, list[Event]] = {
    "a retry that ends well": [
        *(call("change", reply, id=17) for reply in (ERROR, ERROR, {"ok": True})),
        agent(DONE),
    ],
    "arguments put right": [
        call("change", {"error": "date must be ISO 8601"}, id=17, date="1.2."),
        call("change", {"ok": True}, id=17, date="2026-02-01"),
        agent(DONE),
    ],
    "another tool did it": [
        call("change", ERROR, id=17),
        call("change", ERROR, id=17),
        call("change_by_mail", {"sent": True}, id=17),
        agent(DONE),
    ],
    "what is asked for does not exist": [
        call("look", {"error": {"code": 404, "message": "not found"}}, id=17),
        agent(NOTHING),
    ],
    "neither of two exists": [
        call("look", {"error": "not found"}, id=17),
        call("look", {"error": "not found"}, id=71),
        agent(NOTHING),
    ],
    "a refusal that is right": [
        call("refund", {"error": {"code": 403, "message": "window closed"}}, id=17),
        agent(NOTHING),
        user(BYE),
    ],
    "errors are the answer": [
        call("errors_of", {"errors": [{"code": 500, "at": "12:01"}], "status": "failed"}, id=17),
        agent(DONE),
    ],
    "a log of errors, twice": [
        call("read_log", {"lines": LOG.splitlines()}, id=17),
        call("read_log", {"lines": LOG.splitlines()[:2]}, id=17, last=2),
        agent(DONE),
    ],
    "searches that find nothing": [
        *(call("search", [], query=f"order {at}") for at in range(4)),
        agent(NOTHING),
    ],
    "the same search on three pages": [
        *(call("search", [], query="order", page=at) for at in range(3)),
        agent(NOTHING),
    ],
    "waiting that ends": [
        *(call("state", PENDING, id=17) for _ in range(5)),
        call("state", READY, id=17),
        agent(DONE),
    ],
    "waiting that does not end": [*(call("state", PENDING, id=17) for _ in range(4)), agent(WAIT)],
    "waiting long, to no end": [*(call("state", PENDING, id=17) for _ in range(12)), agent(WAIT)],
    "waiting long for a job that says much": [
        *(call("job", DETAILS | {"state": "running"}, id=17) for _ in range(8)),
        agent(WAIT),
    ],
    "scrolling far": [
        *(call("next_page", "ok") for _ in range(8)),
        call("save", "saved", name="x"),
        agent(DONE),
    ],
    "a check every hour": [*(call("state", READY, id=17) for _ in range(3)), agent(DONE)],
    "two checks in turn": [
        *(call(name, READY, id=17) for name in ("state", "stock") * 2),
        agent(DONE),
    ],
    "next, next, next": [
        *(call("next_page", "ok") for _ in range(4)),
        call("save", "saved", name="x"),
        agent(DONE),
    ],
    "a handover that is right": [
        agent(CONNECT),
        ("notice", JOINED),
        ("person", HELLO),
        user(BYE),
        ("person", WELCOME),
    ],
    "a handover by a tool": [
        call("hand_over", {"ok": True}, to="billing"),
        ("notice", JOINED),
        ("person", DONE),
    ],
    "a handover ends the run": [call("look", {"id": 17}, id=17), call("hand_over", "ok", to="a")],
    "the user leaves": [agent(HELLO), user(BYE)],
    "nothing more to say": [call("look", {"id": 17}, id=17), agent(DONE), user(BYE), ("silent",)],
    "the same answer to each of three": [
        event for _ in range(3) for event in (agent(NOTHING), user(ASK))
    ]
    + [agent(NOTHING)],
    "a tool that ends the run": [
        call("look", {"id": 17}, id=17),
        call("finish", "ok", summary="done"),
    ],
    "a tool of the provider, which is not in the list": [
        call("provider_search", ["a", "b"], query="17"),
        agent(DONE),
    ],
    "a name of several agents, from one to the other": [
        agent(HELLO),
        user(ASK),
        call("hand_over", {"ok": True}, to="billing"),
        ("person", DONE),
    ],
    "no arguments": [call("list_all", [1, 2]), agent(DONE)],
    "not fit, but taken": [call("change", {"ok": True}, id="17"), agent(DONE)],
}


# The same project on other days: what its tools answer when nobody waits for anything.
DAYS = 18
USUAL: dict[str, Callable[[int], list[Event]]] = {
    "a look": lambda day: [call("find", [{"id": day}] if day % 2 else [], query=f"a{day}")],
    "stock": lambda day: [call("stock_of", "none" if day % 3 else f"{day} left", item=f"b{day}")],
    "ready at once": lambda day: [call("state", READY | {"size": day}, id=day)],
    "done at once": lambda day: [call("job", DETAILS | {"state": "done", "size": day}, id=day)],
    "one page": lambda day: [call("next_page", "ok"), call("save", "saved", name=f"c{day}")],
}
# Calls that are made again and again for nothing, and the run goes on after them.
LOOPS: dict[str, list[Event]] = {
    "an empty list, again and again": [
        *(call("find", [], query="a0") for _ in range(7)),
        agent(DONE),
    ],
    "a word, again and again": [
        *(call("stock_of", "none", item="b1") for _ in range(7)),
        call("save", "saved", name="x"),
        agent(DONE),
    ],
    "two in turn": [
        *(
            event
            for _ in range(5)
            for event in (call("find", [], query="a0"), call("stock_of", "none", item="b1"))
        ),
        agent(NOTHING),
    ],
}


@dataclass(frozen=True)
class Project:
    """Good runs, and others with a loop, of which the forms of replies are known."""

    name: str
    good: list[dict]
    loops: dict[str, dict]

    @cached_property
    def forms(self) -> Forms:
        return forms_of([*self.good, *self.loops.values()])

    def rule(self, run: dict) -> str:
        """What decided on a run; empty if nothing was found."""
        found = classify(run | {"forms": self.forms})
        return found.evidence[0].rule if found else ""

    def blamed(self) -> list[str]:
        return [self.rule(run) for run in self.good]

    def loops_found(self) -> dict[str, str]:
        return {name: self.rule(run) for name, run in self.loops.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def native(event: Event, ids: Iterator[int]) -> list[dict]:
    _, tool, args, reply = event
    name = f"call_{next(ids)}"
    function = {"name": tool, "arguments": json.dumps(args) if args else ""}
    made = [{"id": name, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": made},
        {"role": "tool", "tool_call_id": name, "content": _text(reply)},
    ]


def written(form: str) -> Callable[[Event, Iterator[int]], list[dict]]:
    def messages(event: Event, _: Iterator[int]) -> list[dict]:
        _, tool, args, reply = event
        text = form.format(
            tool=tool, args=json.dumps(args), words=" ".join(map(str, args.values()))
        )
        return [
            {"role": "assistant", "content": text},
            {"role": "user", "content": RESULT.get(form, "") + _text(reply)},
        ]

    return messages


LABELS, SHELL = "Action: {tool}\nInput: {args}", "```sh\n{tool} {words}\n```"
TAGS = '<run>{{"tool": "{tool}", "args": {args}}}</run>'
RESULT = {LABELS: "Observation: "}
PROTOCOLS = {
    "tool calls": ("You help customers.", native),
    "shell": ("Reply with one block, then words:\n```sh\n…\n```", written(SHELL)),
    "labels": ("Use:\nAction: …\nInput: …\nObservation: …", written(LABELS)),
    "tags": ("Act by <run>…</run>. Its result follows.", written(TAGS)),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": tool,
            "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}},
        },
    }
    for tool in sorted(
        {
            event[1]
            for events in (
                *STORIES.values(),
                *LOOPS.values(),
                *(usual(0) for usual in USUAL.values()),
            )
            for event in events
            if event[0] == "call" and not event[1].startswith("provider_")
        }
    )
]


def good_runs() -> Iterator[tuple[str, dict]]:
    """(what it is, the run) of each story in each protocol and language."""
    for language, words in LANGUAGES.items():
        said = words.split("|")
        for protocol, (told, write) in PROTOCOLS.items():
            for story, events in STORIES.items():
                messages, tools = _told([*BEGIN, *events], told, write, said)
                yield f"{story}, {protocol}, {language}", {"messages": messages, "tools": tools}
        yield from _without_a_protocol(language, said)


def _without_a_protocol(language: str, said: list[str]) -> Iterator[tuple[str, dict]]:
    told, write = PROTOCOLS["tool calls"]
    queue = [call("route", "ok", id=at, to="a") for at in range(4)]
    yield (
        f"a queue that nobody waits for, , {language}",
        dict(zip(("messages", "tools"), _told(queue, told, write, said), strict=True)),
    )
    same = [native(call("look", [], id=17), count(at)) for at in range(3)]
    together = [turn for _, turn in same]
    first = same[0][0] | {"tool_calls": [turn["tool_calls"][0] for turn, _ in same]}
    end = {"role": "assistant", "content": said[DONE]}
    messages = [{"role": "user", "content": said[ASK]}, first, *together, end]
    yield f"equal calls at once, , {language}", {"messages": messages, "tools": TOOLS}
    crew = {"role": "system", "content": "writer and critic share this history; eva asks."}
    asks = {"role": "user", "name": "eva", "content": said[ASK]}
    drafts = [
        {"role": "user", "name": name, "content": text}
        for at in range(3)
        for name, text in (("writer", f"{said[DONE]} {at}"), ("critic", said[NOTHING]))
    ]
    yield f"agents that review, , {language}", {"messages": [crew, asks, *drafts], "tools": []}


def _told(
    events: list[Event], told: str, write: Callable, said: list[str]
) -> tuple[list[dict], list[dict]]:
    """The messages of a story, and the tools that are recorded with it."""
    ids = count()
    messages = [{"role": "system", "content": told}]
    for event in events:
        messages += _messages(event, write, ids, said)
    return messages, TOOLS if write is native else []


def _messages(event: Event, write: Callable, ids: Iterator[int], said: list[str]) -> list[dict]:
    kind = event[0]
    if kind == "call":
        return write(event, ids)
    if kind == "silent":
        return [{"role": "assistant", "content": ""}]
    role = {"user": "user", "notice": "system"}.get(kind, "assistant")
    named = {"name": "A_Roe"} if kind == "person" else {}
    return [{"role": role, "content": said[event[1]]} | named]


def projects(languages: Iterable[str] = LANGUAGES) -> Iterator[Project]:
    """In each protocol and language, projects with usual days and one of the stories; loops are in
    all of them.
    """
    for language, protocol in product(languages, PROTOCOLS):
        said, (told, write) = LANGUAGES[language].split("|"), PROTOCOLS[protocol]

        def run(events: list[Event], told: str = told, write: Any = write, said: Any = said):
            messages, tools = _told([*BEGIN, *events], told, write, said)
            return {"messages": messages, "tools": tools}

        usual = [run([*of(day), agent(DONE)]) for of in USUAL.values() for day in range(DAYS)]
        loops = {name: run(events) for name, events in LOOPS.items()}
        for story, events in STORIES.items():
            name = f"{story}, {protocol}, {language}"
            yield Project(name, [*usual, run(events)], loops)


def counted_of(runs: Iterable[dict]) -> list[Counted]:
    return forms_in(each for at, run in enumerate(runs) for each in read(run).heard(at))


def forms_of(runs: Iterable[dict]) -> Forms:
    """What a project knows of its tools' replies before anybody has decided anything."""
    return Forms(counted_of(runs))


def main() -> int:
    runs, said = list(good_runs()), Counter()
    for name, run in runs:
        if found := classify(run):
            said[name.rpartition(", ")[0], found.evidence[0].rule] += 1
    good, loops = len(runs), Counter()
    for project in projects():
        good += len(project.good)
        said.update((project.name, rule) for rule in filter(None, project.blamed()))
        loops.update(rule == "looped" for rule in project.loops_found().values())
    for (name, rule), times in said.most_common():
        print(f"{times} × {name}: {rule}")
    print(f"{said.total()} of {good} good runs blamed")
    print(f"{loops[True]} of {loops.total()} loops found that do not end the run")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
