"""Spans of conventions that nobody here knows, which say in their own names what they are."""

from __future__ import annotations

import json

import pytest

from apps.trajectories.otlp import assemble, names_a_step
from apps.trajectories.otlp.conventions import are_steps, read
from tests.trajectories.test_otlp_assemble import span, texts, user

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
    assert are_steps(spans[:1]) and names_a_step(kind.encode())
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
    found = read(span(1, 0, attributes=attributes), [])
    assert [message["content"] for message in (*found.input, *found.output)] == ["Hi", "Ho"]


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
    assert not are_steps([span(1, 0, attributes=attributes)])


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
    found = read(span(1, 0, attributes=attributes), [])
    assert [message["content"] for message in found.input] == ["Hi", None, "ok"]
    assert found.input[1]["tool_calls"][0]["id"] == found.input[2]["tool_call_id"] == "call_one"
