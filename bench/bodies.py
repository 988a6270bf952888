"""What the benchmarks send: OTLP/HTTP protobuf bodies with the GenAI conventions, and rows of the
REST API.

Text is made of words that nobody speaks, spread by Zipf's law. Templates are made once; every body
or row is a template with fresh ids, so that tens of thousands are ready before a clock starts.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

BODY_BYTES, TRACES = 52_000, 3
TEMPLATES = 32
SPAN_MS = 400
RARE = "quokkaflux"
RARE_EVERY = 10_000
MODELS = ("gpt-5-mini", "claude-sonnet-5", "llama-4-70b", "qwen3-32b", "smollm2-135m")
VERSIONS = tuple(f"{1 + number // 4}.{number % 4}.0" for number in range(12))
TOOLS = tuple(
    f"{verb}_{thing}"
    for verb in ("search", "create", "update", "cancel")
    for thing in ("order", "ticket", "invoice", "customer", "booking")
)
WORKLOADS = ("helpdesk", "billing", "travel")


class Text:
    """Sentences of twelve words from a vocabulary of 20,000; `words[0]` is in nearly every row,
    `words[5000]` in few.
    """

    def __init__(self, seed: int = 0, sentences: int = 50_000) -> None:
        syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
        words = [
            "".join(parts)
            for parts in itertools.islice(itertools.product(syllables, repeat=3), 0, 300_000, 15)
        ]
        random.Random(seed).shuffle(words)
        self.words = words
        share = 1 / np.arange(1, len(words) + 1) ** 1.07
        chosen = np.random.default_rng(seed).choice(
            len(words), (sentences, 12), p=share / share.sum()
        )
        self.sentences = [
            " ".join(words[word] for word in line).capitalize() + "." for line in chosen
        ]
        self.random = random.Random(seed)

    def of(self, length: int) -> str:
        """Exactly so many characters."""
        text = " ".join(self.random.choices(self.sentences, k=max(0, length) // 60 + 1))
        while len(text) < length:
            text += " " + self.random.choice(self.sentences)
        return text[: max(0, length)]


def tool_schema(name: str) -> dict[str, Any]:
    properties = {"query": {"type": "string"}, "limit": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    described = {
        "name": name,
        "description": name.replace("_", " ").capitalize(),
        "parameters": parameters,
    }
    return {"type": "function", "function": described}


# OTLP.


@dataclass(frozen=True)
class Body:
    """A request that is ready to go; `ids` are the hex trace ids (or the row ids) in it."""

    data: bytes
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A serialised request and where its ids and times stand, so that a fresh one costs
    microseconds.
    """

    data: bytes
    traces: tuple[bytes, ...]
    spans: tuple[bytes, ...]
    times: tuple[int, ...]  # ns before the end of the request

    def fresh(self, rng: random.Random, now_ns: int) -> Body:
        traces = [rng.randbytes(16) for _ in self.traces]
        values = [
            *traces,
            *(name.hex().encode() for name in traces),
            *(rng.randbytes(8) for _ in self.spans),
        ]
        values += [struct.pack("<Q", now_ns - before) for before in self.times]
        data = bytearray(self.data)
        for at, which in self._spots:
            data[at : at + len(values[which])] = values[which]
        return Body(bytes(data), tuple(name.hex() for name in traces))

    def __post_init__(self) -> None:
        marks = [*self.traces, *(name.hex().encode() for name in self.traces), *self.spans]
        marks += [struct.pack("<Q", BASE_NS - before) for before in self.times]
        spots = [(at, which) for which, mark in enumerate(marks) for at in _places(self.data, mark)]
        object.__setattr__(self, "_spots", spots)


BASE_NS = 1_700_000_000_000_000_000


def _places(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + len(mark))


def otlp_bodies(count: int, seed: int) -> list[Body]:
    return list(itertools.islice(endless_otlp_bodies(seed, min(count, TEMPLATES)), count))


def endless_otlp_bodies(seed: int, distinct: int = TEMPLATES) -> Iterator[Body]:
    """Bodies of 52 KB: three traces of an agent's run each, with trace and span ids that no other
    body has.
    """
    rng = random.Random(seed)
    templates = [_template(Text(number, 500)) for number in range(distinct)]
    for template in itertools.cycle(templates):
        yield template.fresh(rng, time.time_ns())


def _template(text: Text) -> Template:
    """The observation's length is chosen so that the body has BODY_BYTES (the size is linear in
    it).
    """
    sizes = [_request(text, length)[0].ByteSize() for length in (500, 1500)]
    length = 500 + round((BODY_BYTES - sizes[0]) * 1000 / (sizes[1] - sizes[0]))
    request, traces, spans, times = _request(text, length)
    return Template(
        request.SerializeToString(), tuple(traces), tuple(spans), tuple(sorted(set(times)))
    )


def _request(
    text: Text, length: int
) -> tuple[ExportTraceServiceRequest, list[bytes], list[bytes], list[int]]:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(_attribute("service.name", "bench-agent"))
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "bench", "1"
    traces = [text.random.randbytes(16) for _ in range(TRACES)]
    for number, trace in enumerate(traces):
        scope.spans.extend(_trace(trace, text, length, number))
    spans = [span.span_id for span in scope.spans]
    times = [
        BASE_NS - at
        for span in scope.spans
        for at in (span.start_time_unix_nano, span.end_time_unix_nano)
    ]
    return request, traces, spans, times


def _trace(trace: bytes, text: Text, length: int, number: int) -> Iterator[Span]:
    """Six spans: the agent, three model calls with the growing history, two tools between them."""
    conversation, tools = trace.hex(), text.random.sample(TOOLS, 2)
    model, version = text.random.choice(MODELS), text.random.choice(VERSIONS)
    common = {
        "gen_ai.conversation.id": conversation,
        "gen_ai.agent.name": "helpdesk",
        "gen_ai.agent.version": version,
    }
    ends = BASE_NS - number * 7_000_000_000
    clock = itertools.count(ends - 6 * SPAN_MS * 1_000_000, SPAN_MS * 1_000_000)
    root = text.random.randbytes(8)
    history = [
        _message("user", {"type": "text", "content": f"Case {conversation}: {text.of(200)}"})
    ]
    calls: list[Span] = []
    for step, tool in enumerate([*tools, None]):
        call = {
            "type": "tool_call",
            "id": f"call_{conversation}_{step}",
            "name": tool,
            "arguments": {"query": text.of(60)},
        }
        answer = _message("assistant", call if tool else {"type": "text", "content": text.of(300)})
        answer["finish_reason"] = "tool_call" if tool else "stop"
        calls.append(
            _span(
                trace,
                root,
                "chat " + model,
                next(clock),
                text,
                common
                | {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": "openai",
                    "gen_ai.request.model": model,
                    "gen_ai.response.model": model,
                    "gen_ai.response.id": f"resp-{conversation}-{step}",
                    "gen_ai.response.finish_reasons": [answer["finish_reason"]],
                    "gen_ai.usage.input_tokens": 900 + 400 * step,
                    "gen_ai.usage.output_tokens": 60 + 10 * step,
                    "gen_ai.system_instructions": json.dumps(
                        [{"type": "text", "content": "Help the customer. Use the tools."}]
                    ),
                    "gen_ai.tool.definitions": json.dumps([tool_schema(name) for name in tools]),
                    "gen_ai.input.messages": json.dumps(history),
                    "gen_ai.output.messages": json.dumps([answer]),
                },
            )
        )
        if tool:
            observation = json.dumps({"found": text.of(length)})
            calls.append(
                _span(
                    trace,
                    root,
                    "execute_tool " + tool,
                    next(clock),
                    text,
                    common
                    | {
                        "gen_ai.operation.name": "execute_tool",
                        "gen_ai.tool.name": tool,
                        "gen_ai.tool.type": "function",
                        "gen_ai.tool.call.id": call["id"],
                        "gen_ai.tool.call.arguments": json.dumps(call["arguments"]),
                        "gen_ai.tool.call.result": observation,
                    },
                )
            )
            reply = {"type": "tool_call_response", "id": call["id"], "response": observation}
            history += [{"role": "assistant", "parts": answer["parts"]}, _message("tool", reply)]
    agent = common | {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "openai"}
    yield Span(
        trace_id=trace,
        span_id=root,
        name="invoke_agent helpdesk",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=calls[0].start_time_unix_nano,
        end_time_unix_nano=ends,
        attributes=[_attribute(key, value) for key, value in agent.items()],
    )
    yield from calls


def _message(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": [part]}


def _span(
    trace: bytes, parent: bytes, name: str, start_ns: int, text: Text, attributes: dict[str, Any]
) -> Span:
    return Span(
        trace_id=trace,
        span_id=text.random.randbytes(8),
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + SPAN_MS * 1_000_000 - 1_000_000,
        attributes=[_attribute(key, value) for key, value in attributes.items()],
    )


def _attribute(key: str, value: Any) -> KeyValue:
    return KeyValue(key=key, value=_any(value))


def _any(value: Any) -> AnyValue:
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_any(item) for item in value]))
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)


# Rows.


def row(name: str, index: int, at: datetime, size: int, text: Text) -> dict[str, Any]:
    """A run of six steps that is `size` bytes as JSON. Every RARE_EVERY-th has the rare word."""
    rng = text.random
    tools, failed = rng.sample(TOOLS, 2), rng.random() < 0.2
    asked = text.of(160) + (f" {RARE}" if index % RARE_EVERY == 0 else "")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Help the customer. Use the tools."},
        {"role": "user", "content": asked},
    ]
    replies = []
    for step, tool in enumerate(tools):
        function = {"name": tool, "arguments": json.dumps({"query": text.of(50), "limit": 5})}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        replies.append({"role": "tool", "tool_call_id": f"call_{step}", "content": ""})
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, replies[-1]]
    messages.append({"role": "assistant", "content": text.of(240)})
    latency = round(rng.lognormvariate(8, 0.8), 1)
    made = {
        "id": name,
        "agent": {"name": "helpdesk", "version": rng.choice(VERSIONS)},
        "model": rng.choice(MODELS),
        "workload": rng.choice(WORKLOADS),
        "session_id": f"session-{index // 4}",
        "user_id": f"user-{index % 5000}",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(milliseconds=latency)).isoformat(),
        "messages": messages,
        "tools": [tool_schema(tool) for tool in tools],
        "outcome": {
            "status": "failure" if failed else rng.choice(("success", "success", "unknown")),
            "reason": "tool error" if failed else "",
        },
        "usage": {
            "input_tokens": rng.randint(500, 8000),
            "output_tokens": rng.randint(30, 900),
            "cost_usd": round(rng.random() / 50, 6),
        },
        "latency_ms": latency,
        "tags": rng.sample(("beta", "eu", "us", "night", "vip"), 2),
        "metadata": {"region": rng.choice(("eu-1", "us-1"))},
    }
    spare = size - len(msgspec.json.encode(made))
    replies[0]["content"], replies[1]["content"] = text.of(spare // 2), text.of(spare - spare // 2)
    return made


class Rows:
    """Encoded rows with an id of their own each. `distinct` of them differ in more than the id."""

    ID = "row-000000000000"

    def __init__(self, size: int, distinct: int, seed: int = 0) -> None:
        text, now = Text(seed), datetime.now(UTC)
        encoded = [
            msgspec.json.encode(
                row(
                    self.ID,
                    index,
                    now - timedelta(seconds=text.random.uniform(0, 3600)),
                    size,
                    text,
                )
            )
            for index in range(distinct)
        ]
        self.parts = [line.split(self.ID.encode(), 1) for line in encoded]
        self.next = itertools.count(seed * 10**10)

    def take(self, count: int) -> tuple[list[bytes], tuple[str, ...]]:
        """So many JSON objects, and their ids."""
        names = [f"row-{next(self.next):012d}" for _ in range(count)]
        lines = []
        for name in names:
            before, after = self.parts[int(name[4:]) % len(self.parts)]
            lines.append(before + name.encode() + after)
        return lines, tuple(names)

    def one(self) -> Body:
        lines, names = self.take(1)
        return Body(lines[0], names)

    def array(self, count: int) -> Body:
        lines, names = self.take(count)
        return Body(b"[" + b",".join(lines) + b"]", names)

    def ndjson(self, count: int) -> Body:
        lines, names = self.take(count)
        return Body(b"\n".join(lines) + b"\n", names)


def long_run(name: str, messages: int, text: Text) -> dict[str, Any]:
    """One run of so many messages (an even number and two more): calls of tools and their
    replies.
    """
    made = row(name, 1, datetime.now(UTC) - timedelta(hours=1), 3000, text)
    turns: list[dict[str, Any]] = made["messages"][:2]
    while len(turns) < messages:
        step = len(turns)
        function = {
            "name": text.random.choice(TOOLS),
            "arguments": json.dumps({"query": text.of(40)}),
        }
        turns += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{step}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"call_{step}", "content": text.of(200)},
        ]
    return made | {"messages": turns}
