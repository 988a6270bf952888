"""Spans of conventions that nobody here knows are read by their shape: by the words in the names of
their attributes and by what these hold. Spans of a service without a model are no runs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.otlp import Event, Span, assemble, silence_of
from tests.trajectories.test_otlp_assemble import FAILED, agent, bot, model, span, texts, user

CALL = {"id": "call_one", "function": {"name": "look", "arguments": '{"q": 1}'}}
WANTS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
REPLIED = {"role": "tool", "tool_call_id": "call_one", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"q": {}}}}}
KINDS = (
    ("acme.spanType", '"CHAT_MODEL"', '"TOOL"', '"AGENT"'),
    ("acme.span.type", "LLM", "TOOL", "AGENT"),
    ("acme:metadata:subtype", "model", "tool", "agent"),
    ("acme.span_attributes", '{"type": "llm"}', '{"type": "tool"}', '{"type": "agent"}'),
)
VALUES = (("acme.spanInputs", "acme.spanOutputs"), ("acme:input", "acme:output"))


@pytest.mark.parametrize(("kind", "model", "tool", "agent"), KINDS)
@pytest.mark.parametrize(("given", "answer"), VALUES)
def test_a_run(kind: str, model: str, tool: str, agent: str, given: str, answer: str) -> None:
    def asked(*messages: dict) -> str:
        return json.dumps({"model": "m", "messages": [*messages], "tools": [TOOL]})

    def said(message: dict, number: int) -> str:
        used = {"prompt_tokens": 10, "completion_tokens": 1}
        head = {"id": f"r{number}", "model": "m-2026-07-18", "usage": used}
        return json.dumps(head | {"choices": [{"index": 0, "message": message}]})

    talk = [user("Hi"), WANTS, REPLIED]
    done = {"role": "assistant", "content": "Done."}
    steps = [
        (1, 0, 0, 9, {kind: agent, given: '"Hi"', answer: '"Done."'}),
        (2, 1, 1, 1, {kind: model, given: asked(*talk[:1]), answer: said(WANTS, 1)}),
        (3, 2, 1, 1, {kind: tool, given: '{"q": 1}', answer: '"ok"'}),
        (4, 3, 1, 1, {kind: model, given: asked(*talk), answer: said(done, 2)}),
    ]
    spans = [
        span(number, at, parent, seconds=seconds, attributes=attributes, name=f"step {number}")
        for number, at, parent, seconds, attributes in steps
    ]
    spans[2].name = "look"
    assert not silence_of(spans).silent and silence_of(spans[2:3]).silent
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done."]
    assert (run.row["model"], run.row["usage"]["input_tokens"]) == ("m-2026-07-18", 20)
    assert run.row["tools"][0]["function"]["name"] == "look"
    kinds = [step["kind"] for step in run.row["metadata"]["steps"]]
    assert kinds == ["agent", "model", "tool", "model"]


def test_model_and_tokens_beside_the_values() -> None:
    attributes = {
        "acme.span_attributes": '{"type": "llm"}',
        "acme.input_json": json.dumps([user("Hi")]),
        "acme.output_json": json.dumps([{"message": {"role": "assistant", "content": "Ho"}}]),
        "acme.metadata": '{"model": "m"}',
        "acme.metrics": '{"start": 1.5, "prompt_tokens": 10, "completion_tokens": 1}',
    }
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    used = run.row["usage"]
    assert (texts(run.row), run.row["model"]) == (["Hi", "Ho"], "m")
    assert (used["input_tokens"], used["output_tokens"]) == (10, 1)


def test_a_known_kind_with_messages_under_unknown_names() -> None:
    attributes = {
        "gen_ai.request.model": "m",
        "acme.span.input": json.dumps([user("Hi")]),
        "acme.span.output": json.dumps([{"role": "assistant", "content": "Ho"}]),
    }
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert texts(run.row) == ["Hi", "Ho"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"db.operation.type": "model"},
        {"acme.span.type": "http"},
        {"acme.event.type": "TOOLBOX", "acme.input": "x"},
        {"acme.type": "llm"},
    ],
)
def test_other_spans_are_no_steps(attributes: dict) -> None:
    assert silence_of([span(1, 0, attributes=attributes)]).is_whole


def test_calls_and_replies_in_parts_that_name_each_other_by_a_reference() -> None:
    asked = {"toolRequest": {"name": "look", "ref": "call_one", "input": {"q": 1}}}
    answered = {"toolResponse": {"name": "look", "ref": "call_one", "output": "ok"}}
    messages = [
        {"role": "user", "content": [{"text": "Hi"}]},
        {"role": "model", "content": [asked]},
        {"role": "tool", "content": [answered]},
    ]
    attributes = {
        "acme:metadata:subtype": "model",
        "acme:input": json.dumps({"messages": messages}),
    }
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert texts(run.row) == ["Hi", None, "ok"]
    _, asked_for, reply = run.row["messages"]
    assert asked_for["tool_calls"][0]["id"] == reply["tool_call_id"] == "call_one"


# Services that call no model

TICKET = [{"role": "user", "content": "My car rattles."}, {"role": "agent", "content": "Which?"}]
ORDINARY = {
    "HTTP server": {
        "http.request.method": "POST",
        "http.route": "/messages",
        "url.query": "prompt=hello&model=Corolla",
        "http.request.body": json.dumps({"messages": TICKET}),
        "http.response.body": json.dumps({"messages": TICKET, "model": "messenger-2"}),
        "http.response.status_code": 200,
    },
    "database": {
        "db.system": "postgresql",
        "db.operation.name": "SELECT",
        "db.operation.type": "completion",
        "db.query.text": "select role, content from messages",
        "db.query.parameters": "[1, 2]",
        "db.response.returned_rows": 3,
    },
    "message queue": {
        "messaging.system": "kafka",
        "messaging.operation.type": "receive",
        "messaging.message.body": json.dumps({"role": "user", "content": "a row of a table"}),
        "messaging.consumer.group.name": "agents",
    },
    "cloud SDK": {
        "rpc.system": "aws-api",
        "rpc.service": "Lambda",
        "rpc.method": "Invoke",
        "aws.request_id": "r1",
        "faas.invoked_name": "agent",
        "function.name": "resize",
        "function.input": '{"width": 10}',
        "function.output": '{"ok": true}',
    },
    "cron job": {
        "job.type": "batch",
        "run.type": "scheduled task",
        "input": '{"from": "2026-11-01"}',
        "output": '{"rows": 12}',
    },
    "workflow engine": {
        "workflow.type": "workflow",
        "span.type": "workflow",
        "workflow.input": json.dumps([{"type": "tool", "content": "saw"}]),
        "workflow.output": "done",
    },
    "feature flag": {
        "feature_flag.key": "new-model",
        "feature_flag.variant": "model",
        "feature_flag.context.kind": "user",
    },
    "car": {"vehicle.model": "Corolla", "vehicle.type": "model", "input": "2019", "output": "ok"},
    "help desk": {
        "entity.type": "agent",
        "agent.name": "Anna",
        "type": "chat",
        "vehicle.model": "Corolla",
        "ticket.messages": json.dumps(TICKET),
        "ticket.response": json.dumps({"role": "user", "content": "A Corolla."}),
    },
    "tool shop": {
        "tool.name": "hammer",
        "tool.input": '{"amount": 2}',
        "tool.output": "reserved",
        "tool.call.id": "order-17",
        "span.type": "tool",
    },
    "a tool's name alone": {"tool.name": "hammer", "tool.description": "A hammer."},
    "rate limit": {"tokens.input": 100, "tokens.output": 40, "limiter.tokens.total": 140},
    "lexer": {
        "parser.model": "grammar-v1",
        "parser.input_tokens": 320,
        "parser.output_tokens": 310,
        "input": "let x = 1",
        "output": "(let x 1)",
    },
    "login": {"auth.token.type": "Bearer", "auth.prompt": "consent", "session.id": "s1"},
    "autocomplete": {
        "search.type": "completion",
        "search.query": "corol",
        "search.results": '["Corolla"]',
    },
    "vision model": {
        "span.type": "inference",
        "model.name": "resnet50",
        "inference.input": "[[0.1, 0.2]]",
        "inference.output": '{"label": "cat"}',
    },
    "translation memory": {"operation": "generate", "input": "Hallo", "output": "Hello"},
    "mail": {
        "mail.type": "chat",
        "mail.messages": json.dumps([{"role": "user", "content": "Hi"}]),
        "mail.result": "sent",
        "mail.model": "template-3",
    },
    "GraphQL": {"graphql.operation.type": "query", "graphql.document": "{ agent { name } }"},
    "CI": {
        "cicd.pipeline.task.type": "test",
        "step.type": "run",
        "step.input": "make test",
        "step.output": "ok",
    },
    "an embedding": {"span.type": "embedding", "model": "e5", "usage.prompt_tokens": 12},
}


@pytest.mark.parametrize("name", ORDINARY)
def test_a_service_without_a_model_gives_no_run(name: str) -> None:
    alone = span(1, 0, attributes=ORDINARY[name])
    assert assemble([alone], []) == [] and silence_of([alone]).is_whole


def ordinary(parent: int = 0, first: int = 100) -> list[Span]:
    return [
        span(number, number / 100, parent, attributes=attributes, name=name)
        for number, (name, attributes) in enumerate(ORDINARY.items(), start=first)
    ]


def test_nor_do_all_of_them_together() -> None:
    root = span(1, 0, attributes=ORDINARY["HTTP server"], seconds=9)
    assert assemble([root, *ordinary(1)], []) == [] and silence_of([root, *ordinary(1)]).is_whole


def test_beside_a_call_of_a_known_convention_they_change_nothing() -> None:
    frame = agent(1, 0, 9)
    call = model(2, 1, [user("Hi")], [bot("Ho")], parent=1)
    others = [item for item in ordinary(1) if "span.type" not in item.attributes]
    (run,) = assemble([frame, call, *others], [])
    assert texts(run.row) == ["Hi", "Ho"]
    assert {step["kind"] for step in run.row["metadata"]["steps"][2:]} == {"other"}
    assert run.row["usage"]["input_tokens"] == 10 and run.row["tags"] == []


# What they say


SAID = {"role": "assistant", "content": "Ho"}
MESSAGES = {
    "JSON in an attribute": {"x.prompt": json.dumps([user("Hi")]), "x.completion": "Ho"},
    "deep in a request": {
        "x.request": json.dumps({"body": {"kwargs": {"messages": [user("Hi")]}}}),
        "x.response": json.dumps({"choices": [{"message": SAID}]}),
    },
    "JSON in JSON": {
        "x.inputs": json.dumps(json.dumps({"messages": [user("Hi")]})),
        "x.result": json.dumps(json.dumps(SAID)),
    },
    "structured": {"x.messages": [user("Hi")], "x.answer": [SAID]},
    "a name for each member": {
        "x.prompts.0.role": "user",
        "x.prompts.0.content": "Hi",
        "x.completions.0.role": "assistant",
        "x.completions.0.content": "Ho",
    },
    "contents of parts": {
        "x.request.contents": json.dumps([{"role": "user", "parts": [{"text": "Hi"}]}]),
        "x.output": json.dumps(
            {
                "candidates": [
                    {"content": {"role": "model", "parts": [{"text": "H"}, {"text": "o"}]}}
                ]
            }
        ),
    },
    "serialised": {
        "x.input": json.dumps(
            [{"lc": 1, "id": ["core", "HumanMessage"], "kwargs": {"content": "Hi"}}]
        ),
        "x.output": json.dumps({"messages": [user("Hi"), SAID]}),
    },
    "the answer among the messages": {"x.messages": json.dumps([user("Hi"), SAID])},
    "blocks as text": {
        "x.input": json.dumps([user(json.dumps([{"type": "text", "text": "Hi"}]))]),
        "x.output": json.dumps({"role": "assistant", "content": [{"type": "text", "text": "Ho"}]}),
    },
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    attributes = {"x.span.kind": "llm", "x.model": "m"} | MESSAGES[name]
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert texts(run.row) == ["Hi", "Ho"] and run.row["model"] == "m"
    metadata = run.row["metadata"]
    assert metadata["format"] == "by shape" and run.row["tags"] == ["by-shape"]
    assert "x.span.kind" in metadata["attributes"] or metadata["read_by_shape"]


def test_text_that_goes_into_a_model_and_comes_out() -> None:
    attributes = {"x.span.kind": "llm", "x.model": "m", "x.prompt": "Hi", "x.completion": "Ho"}
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert texts(run.row) == ["Hi", "Ho"]
    assert not assemble([span(1, 0, attributes=attributes | {"x.prompt": "[[0.1, 0.2]]"})], [])


def test_an_agent_whose_calls_are_not_recorded() -> None:
    said = {"x.span.type": "agent", "x.input": json.dumps([user("Hi")]), "x.output": "Ho"}
    spans = [
        span(1, 0, attributes=said, seconds=9),
        span(2, 1, 1, attributes={"x.span.type": "retriever", "x.query": "q"}),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", "Ho"] and not silence_of(spans).silent
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["agent", "retriever"]
    assert not assemble([span(1, 0, attributes=said | {"x.input": "Hi"})], [])


def test_the_kind_in_the_name_of_what_was_given() -> None:
    said = {"x.step.llm.input": json.dumps([user("Hi")]), "x.step.llm.output": "Ho"}
    (run,) = assemble([span(1, 0, attributes=said)], [])
    assert texts(run.row) == ["Hi", "Ho"]


def test_what_says_that_it_is_something_else_is_nothing_else() -> None:
    store = {"x.span.type": "store", "tool.name": "look", "x.input": "a", "x.output": "b"}
    spans = [*loop({"output": "ok"})[:2], span(4, 3, 1, attributes=store)]
    (run,) = assemble(spans, [])
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["agent", "model", "other"]


def test_messages_in_events() -> None:
    events = [
        Event("x.prompt", attributes={"content": json.dumps([user("Hi")])}),
        Event("x.completion", attributes={"content": "Ho"}),
    ]
    (run,) = assemble([span(1, 0, attributes={"x.span.kind": "llm"}, events=events)], [])
    assert texts(run.row) == ["Hi", "Ho"]


COUNTS = {
    "flat": {"x.usage.prompt_tokens": 100, "x.usage.completion_tokens": 20},
    "by words": {"x.tokens.input": 100, "x.tokens.output": 20},
    "camel case": {"x.promptTokens": 100, "x.completionTokens": 20},
    "apart": {
        "x.usage.input_tokens": 30,
        "x.usage.cache_read_input_tokens": 70,
        "x.usage.output_tokens": 20,
    },
    "an object": {"x.token_usage": json.dumps({"input_tokens": 100, "output_tokens": 20})},
    "in the answer": {
        "x.output": json.dumps(
            {"message": SAID, "meta": {"usage": {"prompt_tokens": 100, "completion_tokens": 20}}}
        )
    },
    "other counts beside": {
        "x.usage.prompt_tokens": 100,
        "x.usage.completion_tokens": 20,
        "x.usage.context.system_tokens_estimated": 7,
        "x.max_tokens": 512,
    },
}


@pytest.mark.parametrize("name", COUNTS)
def test_tokens(name: str) -> None:
    attributes = {"x.span.kind": "llm", "x.input": json.dumps([user("Hi")])} | COUNTS[name]
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    used = run.row["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (100, 20)


def call(number: int, at: float, parent: int, **said: Any) -> Span:
    attributes = {"x.input": json.dumps([user("Hi")]), "x.model": "gpt-4.1-mini"}
    seconds = said.pop("seconds", 1)
    return span(number, at, parent, seconds=seconds, attributes=attributes | said)


def test_a_span_that_does_not_say_its_kind_needs_more_signs() -> None:
    answered = json.dumps(SAID)
    (run,) = assemble([call(1, 0, 0, x__output=answered)], [])  # a model that has a price
    assert texts(run.row) == ["Hi", "Ho"]
    assert assemble(
        [
            call(1, 0, 0, x__output=answered),
        ],
        [],
    ) and not assemble([call(1, 0, 0, x__output=answered, x__model="corolla")], [])
    counted = {"x.usage.input_tokens": 1, "x.usage.output_tokens": 1}
    assert assemble([call(1, 0, 0, x__model="corolla", x__output=answered, **counted)], [])


def test_what_repeats_the_calls_below_it_is_no_call() -> None:
    counted = {"x.usage.input_tokens": 10, "x.usage.output_tokens": 1, "x.output": "Ho"}
    spans = [call(1, 0, 0, seconds=9, **counted), call(2, 1, 1, **counted)]
    (run,) = assemble(spans, [])
    assert run.row["usage"]["input_tokens"] == 10 and texts(run.row) == ["Hi", "Ho"]
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["agent", "model"]


def loop(result: dict, **more: Any) -> list[Span]:
    """An agent whose span stands for two calls of a model, with its tool beside the span."""
    outer = {
        "x.entity.type": "agent",
        "x.entity.name": "Ann",
        "x.input": "Hi",
        "x.output": "Done.",
        "x.usage.prompt_tokens": 30,
        "x.usage.completion_tokens": 5,
        "x.session.id": "s1",
    }
    inner = {
        "x.span.type": "llm",
        "x.messages": json.dumps([{"role": "system", "content": "Be brief."}, user("Hi")]),
        "x.usage.prompt_tokens": 20,
        "x.usage.completion_tokens": 3,
    }
    used = {
        "x.span.type": "tool",
        "x.entity.type": "agent",
        "tool.name": "look",
        "tool.call.id": "call_one",
        "tool.parameters": '{"type": "object", "properties": {"q": {}}}',
        "input": '{"q": 1}',
    }
    return [
        span(1, 0, attributes=outer, seconds=9, **more),
        span(2, 1, 1, attributes=inner, seconds=5),
        span(3, 2, 1, attributes=used | result, **({} if "output" in result else FAILED)),
    ]


def test_an_agents_loop_is_counted_by_the_agent() -> None:
    (run,) = assemble(loop({"output": "ok"}), [])
    assert texts(run.row) == ["Be brief.", "Hi", None, "ok", "Done."]
    called = run.row["messages"][2]["tool_calls"][0]
    assert (called["id"], called["function"]["arguments"]) == ("call_one", {"q": 1})
    assert run.row["tools"][0]["function"]["parameters"]["properties"] == {"q": {}}
    assert (run.row["usage"]["input_tokens"], run.row["usage"]["output_tokens"]) == (30, 5)
    assert (run.row["agent"]["name"], run.row["session_id"]) == ("Ann", "s1")


def test_a_tool_that_failed_ends_a_run_only_with_its_agent() -> None:
    (run,) = assemble(loop({}), [])
    assert run.row["outcome"]["status"] == "unknown"
    (run,) = assemble(loop({}, **FAILED), [])
    assert run.row["outcome"]["status"] == "failure"
    used = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
    spans = [
        span(1, 0, attributes={"x.y": "z"}, seconds=9),
        span(2, 1, 1, attributes=used, **FAILED),
    ]
    (run,) = assemble(spans, [])  # below a span that nobody knows
    assert run.row["outcome"]["status"] == "unknown"
    spans[0] = span(1, 0, attributes={"x.y": "z"}, seconds=9, **FAILED)
    (run,) = assemble(spans, [])
    assert run.row["outcome"]["status"] == "failure"


def test_the_order_of_arrival_changes_nothing() -> None:
    spans = loop({"output": "ok"})
    (one,), (other,) = assemble(spans, []), assemble(spans[::-1], [])
    assert one.row == other.row
