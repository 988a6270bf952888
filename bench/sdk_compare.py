"""Whether a stored run is what the provider was asked and said: every message, call, token and
cent. What differs is `wrong`, and `not sent` where nothing of it is in the telemetry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from apps.trajectories.costs import cost_of_run
from apps.trajectories.otlp import Span
from apps.trajectories.schema import parse_row
from bench.sdk_dialects import Call, Json, Message
from bench.sdk_provider import Played
from bench.sdk_scenarios import DESCRIPTION, OUTAGE, RAISED, SCENARIOS, TOOL
from workers.lib.prices import Price, list_price

NOT_SENT = " not sent"
# USD for a million tokens of input, cached input and output, as the providers' pages say.
PRICES = {
    "gpt-5-mini": (0.25, 0.025, 2.0),
    "claude-sonnet-4-5": (3.0, 0.3, 15.0),
    "gemini-2.5-flash": (0.3, 0.03, 2.5),
}


def differences(played: Played, rows: list[Json], sent: Telemetry) -> list[str]:
    """What is not as it was, each in a word or two; "…: not sent" where the SDK leaves it out."""
    if played.problems:
        return [f"the program: {played.problems[0]}"]
    if not played.exchanges:
        return ["the program asked nothing"]
    if not rows:
        return ["no run"] if sent.size else [f"anything{NOT_SENT}"]
    if len(rows) > 1:
        joins = ["previous"] if played.name == "state" else [""]
        return [f"{len(rows)} runs{sent.verdict(joins)}"]
    truth = Truth(played)
    row = Stored(rows[0], with_threads=truth.is_of_several)
    return [f"{name}{sent.verdict(traces)}" for name, traces in _different(truth, row)]


class Truth:
    """What was asked and said."""

    def __init__(self, played: Played) -> None:
        self.scenario = SCENARIOS[played.name]
        self.answers = played.answers
        self.failed = any(exchange.answer is None for exchange in played.exchanges)
        requests = [exchange.request for exchange in played.exchanges]
        told = [message for request in requests for message in request.messages]
        begins = requests[0].messages  # another agent's prompt comes later
        self.systems = [said.text.strip() for said in begins if said.role == "system"]
        self.users = [said.text for said in takewhile(_is_no_answer, begins) if said.role == "user"]
        results = {said.call_id: said.text for said in told if said.role == "tool"}
        self.results = results if "" not in results else {}
        self.texts = [answer.text for answer in self.answers if answer.text]
        if any(answer.marked for answer in self.answers):  # DSPy's protocol is not kept as such
            self.systems, self.users = [], [self.scenario.question]
            self.texts = ["Look.", *dict.fromkeys(self.texts)]
        self.calls = [call for answer in self.answers for call in answer.calls]
        self.tools: Json = {}
        for request in requests:
            self.tools |= request.tools

    @property
    def is_of_several(self) -> bool:
        """Whether two agents speak: each has a history of its own, or they share one."""
        return len(self.scenario.turns) > 2

    @property
    def tokens(self) -> dict[str, int]:
        used = [answer.usage for answer in self.answers]
        return {
            "input": sum(usage.input for usage in used),
            "output": sum(usage.output for usage in used),
            "cached": sum(usage.cached for usage in used),
            "reasoning": sum(usage.reasoning for usage in used),
        }

    @property
    def cost(self) -> float | None:
        total = 0.0
        for answer in self.answers:
            price = next((PRICES[name] for name in PRICES if answer.model.startswith(name)), None)
            if price is None:
                return None
            usage, (fresh, cached, out) = answer.usage, price
            total += (usage.input - usage.cached) * fresh + usage.cached * cached
            total += usage.output * out
        return total / 1e6


class Stored:
    """A row as the server's assembly makes it."""

    def __init__(self, row: Json, with_threads: bool) -> None:
        self.row, self.parsed = row, parse_row(row)
        self.messages = [_message(said) for said in row["messages"]]
        beside = (row["metadata"].get("threads") or ()) if with_threads else ()
        self.messages += [  # of agents that are tools
            _message(said) for thread in beside for said in thread.get("messages") or ()
        ]
        self.tools = {
            tool["function"]["name"]: tool["function"].get("parameters") or {}
            for tool in row["tools"]
        }

    def texts(self, *roles: str) -> list[str]:
        return [said.text for said in self.messages if said.role in roles and said.text]

    @property
    def calls(self) -> list[Call]:
        return [call for said in self.messages for call in said.calls]

    @property
    def results(self) -> dict[str, str]:
        return {said.call_id: said.text for said in self.messages if said.role == "tool"}

    @property
    def tokens(self) -> dict[str, int]:
        used = self.parsed.used
        return {
            "input": used.input_tokens or 0,
            "output": used.output_tokens or 0,
            "cached": used.cache_read_tokens or 0,
            "reasoning": used.reasoning_tokens or 0,
        }


def _is_no_answer(said: Message) -> bool:
    return said.role != "assistant"


def _message(said: Json) -> Message:
    content = said.get("content")
    if isinstance(content, list):
        texts = (part for part in content if part.get("type", "text") == "text")
        content = "".join(str(part.get("text") or "") for part in texts)
    calls = [
        Call(call.get("id") or "", call["function"]["name"], _loaded(call["function"]["arguments"]))
        for call in said.get("tool_calls") or ()
    ]
    return Message(said["role"], content or "", calls, said.get("tool_call_id") or "")


def _loaded(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _price_of(
    names: tuple[str, ...], provider: str, at: datetime | None, tier: str
) -> Price | None:
    prices = (list_price(name, provider=provider, at=at, service_tier=tier) for name in names)
    return next((price for price in prices if price is not None), None)


def _words(result: str) -> str:
    """A result that a provider wants as an object is one, or its only member."""
    found = _loaded(result)
    if isinstance(found, dict) and len(found) == 1:
        found = next(iter(found.values()))
    return found.strip() if isinstance(found, str) else json.dumps(found)


def _sorted(calls: list) -> list[str]:
    return sorted(map(repr, calls))


class Together(NamedTuple):
    """Words that say something only where one value has both."""

    one: str
    other: str


class AnyOf(NamedTuple):
    """Words of which each says it."""

    words: tuple[str, ...]


Trace = str | Together | AnyOf
Difference = tuple[str, list[Trace]]  # what differs, and what would be in telemetry that says it
# How a part of an answer is marked as reasoning.
MARKED = AnyOf(('"type":"reasoning"', '"type":"thinking"', '"thought":true', "reasoning_content"))


def _different(truth: Truth, row: Stored) -> list[Difference]:
    return [
        *_messages(truth, row),
        *_calls(truth, row),
        *_counts(truth, row),
        *_ending(truth, row),
    ]


def _messages(truth: Truth, row: Stored) -> list[Difference]:
    found: list[Difference] = []
    systems = "\n".join(row.texts("system", "developer"))
    if lacking := [text for text in truth.systems if text not in systems]:
        found.append(("system prompt", lacking))
    users = row.texts("user")
    if truth.is_of_several:
        if truth.scenario.question not in users:
            found.append(("question", truth.users))
    elif [text.strip() for text in users] != [text.strip() for text in truth.users]:
        name = "question" if len(users) == len(truth.users) else f"{len(users)} user messages"
        found.append((name, truth.users))
    said = row.texts("assistant")
    thoughts = [answer.thought for answer in truth.answers if answer.thought]
    if truth.is_of_several:
        if set(truth.texts).difference(said):
            found.append(("answer", truth.texts))
    elif [text.strip() for text in said] != [text.strip() for text in truth.texts]:
        is_more = len(said) > len(truth.texts)
        rest = [without(text, thoughts) for text in said]
        if [text for text in rest if text] == truth.texts:
            found.append(("what is reasoning", [MARKED]))
        else:
            found.append(("an answer twice", [""]) if is_more else ("answer", truth.texts))
    whole = json.dumps(row.row["messages"], ensure_ascii=False)
    if lacking := [thought for thought in thoughts if thought not in whole]:
        found.append(("reasoning text", lacking))
    return found


def without(text: str, parts: list[str]) -> str:
    for part in parts:
        text = text.replace(part, "")
    return text.strip()


def _calls(truth: Truth, row: Stored) -> list[Difference]:
    """Calls in order, with their arguments and ids, and a reply to each after it."""
    found: list[Difference] = []
    said = [(call.name, call.arguments) for call in truth.calls]
    stored = [(call.name, call.arguments) for call in row.calls]
    if stored != said and not (truth.is_of_several and _sorted(stored) == _sorted(said)):
        lacking = [str(value) for call in truth.calls for value in call.arguments.values()]
        found.append((f"{len(stored)} of {len(said)} calls" if stored else "calls", lacking))
        return found
    ids = [call.id for call in truth.calls]
    if all(ids) and {call.id for call in row.calls} != set(ids):
        found.append(("ids of calls", ids))
    results, wanted = row.results, truth.results
    pairs = zip(truth.calls, row.calls, strict=True)
    named = (
        results
        if results.keys() >= wanted.keys()
        else {real.id: results.get(kept.id, "") for real, kept in pairs}
    )
    if lacking := [
        _words(text)
        for name, text in wanted.items()
        if name in named and _words(named[name]) != _words(text)
    ]:
        found.append(("results", lacking))
    called: set[str] = set()
    for message in row.messages:
        if message.role == "tool" and message.call_id not in called:
            found.append(("a reply before its call", [""]))
        called |= {call.id for call in message.calls}
    if lacking := [
        name
        for name, schema in truth.tools.items()
        if name not in row.tools
        or (
            schema
            and set((row.tools.get(name) or {}).get("properties") or ())
            != set(schema.get("properties") or ())
        )
    ]:
        is_ours = TOOL in lacking[0]
        said_of_it = DESCRIPTION if is_ours else lacking[0]
        found.append(("tool definitions", [Together(said_of_it, "properties")]))
    return found


def _counts(truth: Truth, row: Stored) -> list[Difference]:
    stored, wanted = row.tokens, truth.tokens
    if differing := [name for name, count in wanted.items() if stored[name] != count]:
        parts = [str(getattr(answer.usage, name)) for answer in truth.answers for name in differing]
        names = ", ".join(f"{name} tokens" for name in differing)
        return [(names, [part for part in parts if part != "0"])]
    found: list[Difference] = []
    cost = cost_of_run(row.parsed, _price_of).usd
    if truth.cost and (cost is None or abs(cost - truth.cost) > 5e-7):
        found.append((f"cost {cost} for {truth.cost:.6f}", [""]))
    asked = {answer.model for answer in truth.answers}
    if asked and row.row["model"] not in asked:
        found.append(("model", sorted(asked)))
    return found


def _ending(truth: Truth, row: Stored) -> list[Difference]:
    outcome = row.row["outcome"]
    is_failure = outcome["status"] == "failure"
    if truth.failed:
        if not is_failure:
            return [("failure", [OUTAGE])]
        said = json.dumps(outcome) + json.dumps(row.row["metadata"].get("errors") or "")
        return [] if OUTAGE in said else [("reason of the failure", [OUTAGE])]
    raised = truth.scenario.city == "Atlantis"
    if is_failure and not raised:
        return [("failed, it is said", [""])]
    if raised and RAISED not in json.dumps([row.row["messages"], outcome, row.row["metadata"]]):
        return [("the tool's error", [RAISED])]
    return []


class Telemetry:
    """What an SDK sent of a scenario, as text in which words can be looked for."""

    def __init__(self, spans: list, logs: list) -> None:
        self.size = len(spans)
        values = [value for span in spans for value in _values(span)]
        values += [value for log in logs for value in (log.event_name, log.body, log.attributes)]
        texts = [_without_objects(str(value)) for value in values]
        self.numbers = {number for text in texts for number in re.findall(r"\d+", text)}
        self.texts = list(map(_plain, texts))
        self.text = "".join(self.texts)

    def verdict(self, traces: list[Trace]) -> str:
        """Nothing where each trace is there: then what was made of it is wrong."""
        return "" if all(map(self._has, traces)) else NOT_SENT

    def _has(self, trace: Trace) -> bool:
        if isinstance(trace, Together):
            words = [_plain(word) for word in trace]
            return any(all(word in text for word in words) for text in self.texts)
        if isinstance(trace, AnyOf):
            return any(map(self._has, trace.words))
        return trace in self.numbers if trace.isdigit() else _plain(trace) in self.text


OBJECT = re.compile(r"\b[A-Z]\w+\([a-z_]+=")  # Python's representation of one


def _values(span: Span) -> Iterator[object]:
    yield from (span.name, span.status_message, *span.attributes, *span.attributes.values())
    for event in span.events:
        yield from (event.name, event.attributes)


def _without_objects(text: str) -> str:
    """What is only in a representation that no program reads counts as not sent."""
    found = OBJECT.search(text)
    return text[: found.start()] if found else text


def _plain(text: str) -> str:
    """Letters and digits alone, for words may be JSON in JSON."""
    for escaped, letter in (("\\u00b0", "°"), ("\\n", " ")):
        text = text.replace(escaped, letter)
    return "".join(filter(str.isalnum, text))
