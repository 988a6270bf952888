"""What one span says in each convention, by small samples written for this project."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import Lost, messages_of, tool_definitions
from apps.trajectories.otlp.conventions import Reading, read, tools_of
from apps.trajectories.otlp.spans import Event, LogRecord, Scope, Span
from apps.trajectories.values import structured
from workers.lib.token_usage import Usage

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":1}'}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
CALLED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
REPLIED = [{"role": "tool", "content": '{"a":2}', "tool_call_id": "c1"}]
ANSWERED = [{"role": "assistant", "content": "Two."}]


def reading(
    attributes: dict[str, Any], events: list[Event] | None = None, logs: Any = (), **fields: Any
) -> Reading:
    return read(
        Span("t" * 32, "s" * 16, attributes=attributes, events=events or [], **fields), list(logs)
    )


def genai(**attributes: Any) -> dict[str, Any]:
    return {"gen_ai.operation.name": "chat"} | {
        f"gen_ai.{key}": value for key, value in attributes.items()
    }


PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": '{"q":1}'}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"a": 2}}]},
]
OUT_PARTS = [
    {"role": "assistant", "parts": [{"type": "text", "content": "Two."}], "finish_reason": "stop"}
]
EVENTS = [
    {"event.name": "gen_ai.system.message", "role": "system", "content": "Be brief."},
    {"event.name": "gen_ai.user.message", "role": "user", "content": "Hi"},
    {"event.name": "gen_ai.assistant.message", "role": "assistant", "tool_calls": [CALL]},
    {"event.name": "gen_ai.tool.message", "role": "tool", "content": '{"a":2}', "id": "c1"},
    {
        "event.name": "gen_ai.choice",
        "index": 0,
        "message": {"role": "assistant", "content": "Two."},
    },
]
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Hi",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c1",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "look",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"q":1}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.tool_call_id": "c1",
    "llm.input_messages.3.message.content": '{"a":2}',
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Two.",
}
TRACELOOP = {
    "llm.request.type": "chat",
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": '[{"type": "text", "text": "Hi"}]',
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "c1",
    "gen_ai.prompt.2.tool_calls.0.name": "look",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"q":1}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.tool_call_id": "c1",
    "gen_ai.prompt.3.content": '{"a":2}',
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Two.",
}
LANGFUSE = {
    "langfuse.observation.type": "generation",
    "langfuse.observation.input": json.dumps([*ASKED, *CALLED, *REPLIED]),
    "langfuse.observation.output": json.dumps({"role": "assistant", "content": "Two."}),
}
VERCEL = {
    "ai.operationId": "ai.streamText.doStream",
    "ai.prompt.messages": json.dumps(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool-call",
                        "toolCallId": "c1",
                        "toolName": "look",
                        "input": '{"q":1}',
                    }
                ],
            },
            {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": "c1",
                        "output": {"type": "json", "value": {"a": 2}},
                    }
                ],
            },
        ]
    ),
    "ai.response.text": "Two.",
}
LOGS = [
    LogRecord(
        "t" * 32,
        "s" * 16,
        i,
        item["event.name"],
        {k: v for k, v in item.items() if k != "event.name"},
    )
    for i, item in enumerate(EVENTS)
]
SPAN_EVENTS = [
    Event(
        item["event.name"],
        i,
        {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in item.items()},
    )
    for i, item in enumerate(EVENTS)
]
INSTRUCTED = {"system_instructions": [{"type": "text", "content": "Be brief."}]}


@pytest.mark.parametrize(
    ("attributes", "events", "logs"),
    [
        (
            genai(
                **{
                    "input.messages": json.dumps(PARTS),
                    "output.messages": json.dumps(OUT_PARTS),
                    **INSTRUCTED,
                }
            ),
            [],
            [],
        ),
        (genai(**{"input.messages": PARTS, "output.messages": OUT_PARTS, **INSTRUCTED}), [], []),
        (genai() | {"events": json.dumps(EVENTS)}, [], []),
        (genai(), SPAN_EVENTS, []),
        (genai(), [], LOGS),
        (
            genai(),
            [
                Event(
                    "gen_ai.client.inference.operation.details",
                    1,
                    {
                        "gen_ai.system_instructions": "Be brief.",
                        "gen_ai.input.messages": json.dumps(PARTS),
                        "gen_ai.output.messages": OUT_PARTS,
                    },
                )
            ],
            [],
        ),
        (OPENINFERENCE, [], []),
        (TRACELOOP, [], []),
        (LANGFUSE, [], []),
        (VERCEL, [], []),
    ],
    ids=[
        "genai-json",
        "genai-structured",
        "pydantic-events",
        "span-events",
        "logs",
        "details-event",
        "openinference",
        "traceloop",
        "langfuse",
        "vercel",
    ],
)
def test_a_model_call_says_the_same_in_every_convention(
    attributes: dict, events: list, logs: list
) -> None:
    said = reading(attributes, events, logs)
    assert said.kind == "model"
    assert said.input == [*ASKED, *CALLED, *REPLIED]
    assert said.output == ANSWERED


@pytest.mark.parametrize(
    "attributes",
    [
        genai(
            **{
                "operation.name": "execute_tool",
                "tool.name": "look",
                "tool.call.id": "c1",
                "tool.call.arguments": '{"q":1}',
                "tool.call.result": '{"a":2}',
            }
        ),
        {
            "gen_ai.tool.name": "look",
            "gen_ai.tool.call.id": "c1",
            "tool_arguments": '{"q":1}',
            "tool_response": {"a": 2},
        },
        {
            "openinference.span.kind": "TOOL",
            "tool.name": "look",
            "tool_call.id": "c1",
            "input.value": '{"q":1}',
            "output.value": '{"a":2}',
            "tool.parameters": '{"type":"object"}',
        },
        {
            "openinference.span.kind": "TOOL",
            "tool.name": "look",
            "input.value": '{"q":1}',
            "output.value": '{"content": "{\\"a\\":2}", "tool_call_id": "c1", "type": "tool"}',
        },
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "look",
            "tool_call.id": "c1",
            "traceloop.entity.input": '{"q":1}',
            "traceloop.entity.output": '{"a":2}',
        },
        {
            "langfuse.observation.type": "tool",
            "tool.name": "look",
            "tool.id": "c1",
            "langfuse.observation.input": '{"q":1}',
            "langfuse.observation.output": '{"a":2}',
        },
        {
            "ai.operationId": "ai.toolCall",
            "ai.toolCall.name": "look",
            "ai.toolCall.id": "c1",
            "ai.toolCall.args": '{"q":1}',
            "ai.toolCall.result": '{"a":2}',
        },
    ],
)
def test_a_tool_says_the_same_in_every_convention(attributes: dict) -> None:
    said = reading(attributes)
    assert (said.kind, said.tool_name, said.tool_call_id) == ("tool", "look", "c1")
    assert (said.tool_arguments, said.tool_result) == ('{"q":1}', '{"a":2}')


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"gen_ai.operation.name": "invoke_agent"}, "agent"),
        ({"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "m"}, "other"),
        ({"gen_ai.operation.name": "retrieval"}, "retriever"),
        ({"gen_ai.request.model": "m"}, "model"),
        ({"openinference.span.kind": "AGENT"}, "agent"),
        ({"openinference.span.kind": "RERANKER"}, "retriever"),
        ({"openinference.span.kind": "CHAIN"}, "other"),
        ({"traceloop.span.kind": "workflow"}, "agent"),
        ({"traceloop.span.kind": "task"}, "other"),
        ({"langfuse.observation.type": "agent"}, "agent"),
        ({"ai.operationId": "ai.generateText"}, "agent"),
        ({"ai.operationId": "ai.embed.doEmbed"}, "other"),
        ({"all_messages_events": "[]"}, "agent"),
        ({"http.request.method": "GET"}, "other"),
        ({"openinference.span.kind": 7, "gen_ai.operation.name": ["chat"]}, "other"),
    ],
)
def test_kinds(attributes: dict, kind: str) -> None:
    assert reading(attributes).kind == kind


def test_pydantic_ai_tells_the_whole_run_on_its_agent_span() -> None:
    said = reading({"agent_name": "a", "all_messages_events": json.dumps(EVENTS)})
    assert said.complete and said.input == [*ASKED, *CALLED, *REPLIED, *ANSWERED]
    newer = reading(
        {"gen_ai.operation.name": "invoke_agent", "pydantic_ai.all_messages": PARTS + OUT_PARTS}
    )
    assert newer.input == [ASKED[1], *CALLED, *REPLIED, *ANSWERED]


def test_who_and_how_much() -> None:
    said = reading(
        {
            "openinference.span.kind": "LLM",
            "llm.model_name": "m-1",
            "llm.token_count.prompt": "5",
            "llm.token_count.completion": 6,
            "llm.cost.total": 0.5,
            "session.id": "s",
            "user.id": 7,
            "tag.tags": ["a", "b"],
            "agent.name": "n",
            "metadata": '{"thread_id": "other"}',
            "llm.tools.0.tool.json_schema": '{"type":"function","function":{"name":"look"}}',
        }
    )
    assert (said.model, said.usage) == ("m-1", Usage(5, 6, cost_usd=0.5))
    assert (said.session_id, said.user_id, said.tags, said.agent_name) == (
        "s",
        "7",
        ["a", "b"],
        "n",
    )
    assert tools_of(said.tools) == [{"type": "function", "function": {"name": "look"}}]
    langfuse = reading(
        {
            "langfuse.observation.type": "generation",
            "langfuse.observation.model.name": "m-2",
            "langfuse.observation.usage_details": '{"input": 1, "output": 2}',
            "langfuse.session.id": "s",
            "langfuse.observation.cost_details": '{"total": 0.25}',
            "langfuse.trace.tags": '["x"]',
            "langfuse.user.id": "u",
            "langfuse.release": "v3",
            "langfuse.trace.name": "support",
        }
    )
    assert (langfuse.model, langfuse.usage) == ("m-2", Usage(1, 2, cost_usd=0.25))
    assert (langfuse.session_id, langfuse.user_id, langfuse.tags) == ("s", "u", ["x"])
    assert (langfuse.agent_version, langfuse.workload) == ("v3", "support")


@pytest.mark.parametrize(
    ("attributes", "asked"),
    [
        ({"llm.invocation_parameters": '{"model": "m-1"}'}, "m-1"),
        ({"llm.invocation_parameters": '{"model": "m-1"}', "llm.model_name": "m-1-2026"}, "m-1"),
        ({"llm.invocation_parameters": '{"model": "m-1"}', "llm.model_name": "m-1"}, ""),
        ({"llm.invocation_parameters": '{"model": ["m"]}'}, ""),
        ({"llm.invocation_parameters": "{"}, ""),
        ({"llm.invocation_parameters": "[1]"}, ""),
    ],
)
def test_a_call_that_failed_names_its_model_among_the_parameters(
    attributes: dict, asked: str
) -> None:
    said = reading({"openinference.span.kind": "LLM"} | attributes)
    assert (said.request_model, said.model) == (asked, attributes.get("llm.model_name", ""))


@pytest.mark.parametrize(
    "tools", [[{"type": "function", "function": {"name": "look"}}], "nonsense", {"a": 1}, None]
)
def test_langfuse_tells_tools_beside_the_messages(tools: Any) -> None:
    """As `langfuse.openai` 5.0 sends a call with tools."""
    given = {"tools": tools, "messages": [*ASKED, *CALLED, *REPLIED]}
    said = reading(LANGFUSE | {"langfuse.observation.input": json.dumps(given)})
    assert said.input == [*ASKED, *CALLED, *REPLIED]
    assert tools_of(said.tools) == (tools if isinstance(tools, list) else [])


@pytest.mark.parametrize(
    ("recorded", "arguments"),
    [
        ({"args": [], "kwargs": {"q": 1}}, {"q": 1}),
        ({"args": ["x"], "kwargs": {}}, "x"),
        ({"args": ["x"], "kwargs": {"q": 1}}, '{"args": ["x"], "kwargs": {"q": 1}}'),
        ({"args": [["x"]], "kwargs": {}}, '["x"]'),
        ({"args": 3, "kwargs": {}}, '{"args": 3, "kwargs": {}}'),
        ({"args": None, "kwargs": None}, ""),
        ({"kwargs": {"q": 1}}, '{"kwargs": {"q": 1}}'),
    ],
)
def test_langfuse_records_how_a_function_was_called(recorded: dict, arguments: Any) -> None:
    said = reading(
        {"langfuse.observation.type": "tool", "langfuse.observation.input": json.dumps(recorded)}
    )
    assert said.tool_arguments == arguments


def test_a_step_of_a_graph() -> None:
    metadata = {
        "lc_agent_name": "helpdesk",
        "langgraph_step": 1,
        "langgraph_node": "model",
        "thread_id": "t-1",
    }
    said = reading({"openinference.span.kind": "CHAIN", "metadata": json.dumps(metadata)})
    assert (said.kind, said.in_graph, said.agent_name, said.session_id) == (
        "other",
        True,
        "helpdesk",
        "t-1",
    )
    assert not reading(
        {"openinference.span.kind": "CHAIN", "metadata": '{"lc_agent_name": "helpdesk"}'}
    ).in_graph


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nKeyError: 3'


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"status_code": 2, "status_message": "first\nsecond"}, "first"),
        ({"status_code": 2, "status_message": TRACEBACK}, "KeyError: 3"),
        ({"status_code": 2}, "error"),
        ({"attributes": {"error.type": "Timeout"}}, "Timeout"),
        (
            {
                "attributes": {
                    "langfuse.observation.level": "ERROR",
                    "langfuse.observation.status_message": "no",
                }
            },
            "no",
        ),
        (
            {
                "status_code": 2,
                "status_message": "long story",
                "events": [
                    Event(
                        "exception",
                        1,
                        {"exception.type": "a.b.Oops", "exception.message": "it broke"},
                    )
                ],
            },
            "Oops: it broke",
        ),
    ],
)
def test_errors_are_one_short_line(fields: dict, text: str) -> None:
    said = reading(fields.pop("attributes", {}), fields.pop("events", None), **fields)
    assert said.error is not None and said.error.text == text


def test_no_error_where_the_status_is_not_one() -> None:
    assert reading({}, [Event("exception", 1, {"exception.message": "caught"})]).error is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Hi", [{"role": "user", "content": "Hi"}]),
        ({"question": "Hi"}, [{"role": "user", "content": "Hi"}]),
        ({"messages": [["user", "Hi"]]}, [{"role": "user", "content": "Hi"}]),
        ({"a": 1}, [{"role": "user", "content": '{"a":1}'}]),
        (
            [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Two."}],
            [ASKED[1], *ANSWERED],
        ),
        (
            [
                [
                    {
                        "lc": 1,
                        "type": "constructor",
                        "id": ["x", "HumanMessage"],
                        "kwargs": {"content": "Hi"},
                    }
                ]
            ],
            [ASKED[1]],
        ),
        (
            {
                "generations": [
                    [{"message": {"lc": 1, "id": ["AIMessage"], "kwargs": {"content": "Two."}}}]
                ]
            },
            ANSWERED,
        ),
        (
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Two."}}]},
            ANSWERED,
        ),
        (
            [
                {"role": "user", "content": "Hi"},
                {
                    "type": "function_call",
                    "id": "fc",
                    "call_id": "c1",
                    "name": "look",
                    "arguments": '{"q":1}',
                },
                {"type": "function_call_output", "call_id": "c1", "output": '{"a":2}'},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Two."}],
                },
            ],
            [ASKED[1], *CALLED, *REPLIED, *ANSWERED],
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "c1", "name": "look", "input": {"q": 1}}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": '{"a":2}'}],
                },
            ],
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [CALL | {"function": {"name": "look", "arguments": {"q": 1}}}],
                },
                *REPLIED,
            ],
        ),
        (
            {
                "role": "model",
                "parts": [{"text": "Two."}, {"functionCall": {"name": "look", "args": {"q": 1}}}],
            },
            [
                {
                    "role": "assistant",
                    "content": "Two.",
                    "tool_calls": [
                        {"type": "function", "function": {"name": "look", "arguments": {"q": 1}}}
                    ],
                }
            ],
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "Two."},
                ],
            },
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "text": "hm"},
                        {"type": "text", "text": "Two."},
                    ],
                }
            ],
        ),
        (
            {"role": "critic", "content": "x", "tool_calls": "nonsense"},
            [{"role": "user", "content": "x", "name": "critic"}],
        ),
        ([], []),
        (None, []),
        (
            {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": {}},
            [{"role": "user", "content": "Hi"}],
        ),
        (
            {"contents": "Hi", "config": {"system_instruction": "Be brief."}},
            ASKED,
        ),
        (
            {
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "contents": [{"parts": [{"text": "Hi"}]}],
            },
            ASKED,
        ),
        ({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}, ASKED),
        (
            {
                "candidates": [
                    {
                        "content": {
                            "role": "model",
                            "parts": [{"text": "hm", "thought": True}, {"text": "Two."}],
                        }
                    },
                    {"content": {"role": "model", "parts": [{"text": "Three."}]}},
                ]
            },
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "text": "hm"},
                        {"type": "text", "text": "Two."},
                    ],
                }
            ],
        ),
        (
            {"role": "model", "parts": [{"type": "text", "content": "hm", "thought": True}]},
            [{"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}]}],
        ),
    ],
)
def test_messages_of_any_shape(value: Any, expected: list) -> None:
    assert messages_of(value, "user") == expected
    assert (
        messages_of(json.dumps(value) if isinstance(value, dict | list) else value, "user")
        == expected
    )


def test_calls_that_are_items_of_their_own_are_one_turn() -> None:
    items = [
        {"type": "function_call", "call_id": f"c{i}", "name": "look", "arguments": "{}"}
        for i in (1, 2)
    ]
    said = reading(
        genai()
        | {
            "input.value": [{"role": "user", "content": "Hi"}],
            "output.value": [ANSWERED[0], *items],
        }
    )
    assert [message["content"] for message in said.output] == ["Two."]
    assert [call["id"] for call in said.output[0]["tool_calls"]] == ["c1", "c2"]


def test_tool_definitions_of_any_shape() -> None:
    expected = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    ]
    for given in (
        {"name": "look", "input_schema": {"type": "object"}},
        [{"type": "function", "name": "look", "parameters": '{"type":"object"}'}],
        ['{"type":"function","name":"look","inputSchema":{"type":"object"}}'],
        {"function_tools": [{"name": "look", "parameters_json_schema": {"type": "object"}}]},
        [{"tool": {"json_schema": json.dumps(expected[0])}}],
    ):
        assert tool_definitions(given) == expected
    assert tool_definitions([3, {"name": []}, None]) == tool_definitions("text") == []


# Frameworks with their own way, after what bench/sdks.py saw


def event(name: str, **attributes: str) -> Event:
    return Event(name, 1, attributes)


BEDROCK_CALL = (
    '[{"text": "Look."}, {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"q": 1}}}]'
)


def test_strands_blocks_are_calls_and_replies() -> None:
    found = reading(
        {"gen_ai.operation.name": "chat"},
        [
            event("gen_ai.user.message", content='[{"text": "Hi"}]'),
            event("gen_ai.assistant.message", content=BEDROCK_CALL),
            event(
                "gen_ai.user.message",
                content=(
                    '[{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text":'
                    ' "Two"}]}}]'
                ),
            ),
            event("gen_ai.choice", finish_reason="end_turn", message='[{"text": "It is two."}]'),
        ],
    )
    call = {"type": "function", "function": {"name": "look", "arguments": {"q": 1}}, "id": "t1"}
    assert found.input == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": "Two", "tool_call_id": "t1"},
    ]
    assert found.output == [{"role": "assistant", "content": "It is two."}]


def test_a_strands_tool_says_its_arguments_in_a_tool_message_and_its_result_in_a_choice() -> None:
    found = reading(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "look",
            "gen_ai.tool.call.id": "t1",
        },
        [
            event("gen_ai.tool.message", role="tool", content='{"q": 1}', id="t1"),
            event("gen_ai.choice", message='[{"text": "Two"}]', id="t1"),
        ],
    )
    assert (found.tool_arguments, found.tool_result, found.tool_call_id) == (
        '{"q": 1}',
        "Two",
        "t1",
    )
    alone = reading(
        {"gen_ai.operation.name": "execute_tool"},
        [event("gen_ai.tool.message", role="tool", content="Two", id="t1")],
    )
    assert alone.tool_result == "Two", "elsewhere the tool's message is its result"


def in_scope(scope: str, attributes: dict[str, Any], **fields: Any) -> Reading:
    return reading(attributes, scope=Scope(f"openinference.instrumentation.{scope}"), **fields)


def test_smolagents_texts_are_calls_and_observations() -> None:
    said = [
        "New task:\nHi",
        (
            "Calling tools:\n[{'id': 'c1', 'type': 'function', 'function': {'name': 'look',"
            " 'arguments': {'q': 1}}}]"
        ),
        "Observation:\nTwo",
        "Calling tools:\nnot a list",
    ]
    attributes: dict[str, Any] = {"openinference.span.kind": "LLM"}
    for number, words in enumerate(said):
        attributes |= {
            f"llm.input_messages.{number}.message.role": "user",
            f"llm.input_messages.{number}.message.content": words,
        }
    found = in_scope("smolagents", attributes).input
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "user"]
    assert found[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"q": 1}}
    assert (found[2]["content"], found[2]["tool_call_id"]) == ("Two", "c1")
    assert [message["role"] for message in in_scope("openai", attributes).input] == ["user"] * 4
    called = {"args": [], "sanitize_inputs_outputs": True, "kwargs": {"q": 1}}
    tool = {
        "openinference.span.kind": "TOOL",
        "tool.name": "look",
        "input.value": json.dumps(called),
    }
    assert in_scope("smolagents", tool).tool_arguments == {"q": 1}


def test_a_react_module_of_dspy_is_an_agent_with_the_whole_run() -> None:
    steps = {
        "thought_0": "Hm.",
        "tool_name_0": "look",
        "tool_args_0": {"q": 1},
        "observation_0": "Two",
        "thought_1": "Done.",
        "tool_name_1": "finish",
        "tool_args_1": {},
        "observation_1": "Completed.",
    }
    attributes = {
        "openinference.span.kind": "CHAIN",
        "input.value": json.dumps({"input_args": {"question": "Hi"}}),
        "output.value": json.dumps(
            {"trajectory": steps, "reasoning": "So.", "answer": "It is two."}
        ),
    }
    found = in_scope("dspy", attributes, name="ReAct.forward")
    assert (found.kind, found.complete, found.input) == (
        "agent",
        True,
        [{"role": "user", "content": "Hi"}],
    )
    assert [(message["role"], message["content"]) for message in found.output] == [
        ("assistant", "Hm."),
        ("tool", "Two"),
        ("assistant", "It is two."),
    ]
    assert found.output[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"q": 1}}
    assert in_scope("dspy", attributes, name="Predict.forward").kind == "other"
    tool = {
        "openinference.span.kind": "TOOL",
        "tool.name": "look.__call__",
        "input.value": '{"kwargs": {"q": 1}}',
        "output.value": '"Two"',
    }
    said = in_scope("dspy", tool)
    assert (said.tool_name, said.tool_arguments, said.tool_result) == ("look", {"q": 1}, "Two")


def test_litellms_call_is_in_a_completion_of_its_own() -> None:
    said = {
        "gen_ai.operation.name": "chat",
        "llm.request.type": "completion",
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [], "finish_reason": "tool_calls"}]
        ),
        "gen_ai.completion.0.function_call.name": "look",
        "gen_ai.completion.0.function_call.arguments": '{"q":1}',
    }
    [answer] = reading(said).output
    assert (
        answer["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"q":1}'}
        and answer["content"] is None
    )


def test_output_messages_are_parts_of_a_turn_unless_the_request_asked_for_several_answers() -> None:
    said = {
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
        "llm.output_messages.1.message.role": "assistant",
        "llm.output_messages.1.message.content.0": "Two.",
    }
    turns = reading(said | {"openinference.span.kind": "AGENT"}).output
    assert [message["content"] for message in turns] == [None, "Two."]
    model = said | {"openinference.span.kind": "LLM"}
    assert len(reading(model).output) == 2
    for sign in (
        {"llm.invocation_parameters": '{"n": 2}'},
        {"output.value": '{"choices": [{}, {}]}'},
        {"output.value": '{"generations": [[{}, {}]]}'},
    ):
        assert [message["content"] for message in reading(model | sign).output] == [None]


def test_messages_in_pythons_notation_are_messages() -> None:
    asked = [{"role": "user", "content": "Don't ask"}]
    for value in (repr(asked), repr({"messages": asked})):
        assert reading({"openinference.span.kind": "LLM", "input.value": value}).input == asked
    for text in (
        "{'a': print(1)}",
        "[{'a': 1j}]",
        "[{'a': b'x'}]",
        "[{'a': {1, 2}}]",
        "[{'a': ...",
    ):
        assert reading({"openinference.span.kind": "LLM", "input.value": text}).input == [
            {"role": "user", "content": text}
        ]


def test_the_summary_of_an_items_reasoning_is_text() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Two."}],
    }
    [message] = reading(
        {"openinference.span.kind": "LLM", "output.value": json.dumps({"output": [item, answer]})}
    ).output
    assert [block["text"] for block in message["content"]] == ["Hm.", "Two."]


def test_reasoning_before_an_answer_is_a_part_of_it() -> None:
    said = {"openinference.span.kind": "LLM"}
    for number, (kind, text) in enumerate((("reasoning", "Hm."), ("text", "Two."))):
        prefix = f"llm.output_messages.{number}.message"
        block = f"{prefix}.contents.0.message_content"
        said |= {f"{prefix}.role": "assistant", f"{block}.type": kind, f"{block}.text": text}
    expected = [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Two."}]
    assert [message["content"] for message in reading(said).output] == [expected]
    older = {
        "llm.request.type": "chat",
        "gen_ai.completion.0.role": "thinking",
        "gen_ai.completion.0.content": "Hm.",
        "gen_ai.completion.1.role": "assistant",
        "gen_ai.completion.1.content": "Two.",
    }
    assert [message["content"] for message in reading(older).output] == [expected]


def test_an_event_may_say_anything_that_a_span_says() -> None:
    definition = {"name": "look", "parameters": {"type": "object"}}
    details = {
        "gen_ai.tool.definitions": [definition],
        "gen_ai.response.model": "m-1",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
    }
    name = "gen_ai.client.inference.operation.details"
    for log in (
        LogRecord(event_name=name, attributes=details),
        LogRecord(event_name=name, body=details),
    ):
        said = reading(genai(), logs=[log])
        assert (said.model, said.usage.input_tokens, said.input[0]["content"]) == ("m-1", 5, "Hi")
        assert [tool["function"]["name"] for tool in tools_of(said.tools)] == ["look"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.cost.total_cost": 0.5},
        {"gen_ai.cost.input_cost": 0.2, "gen_ai.cost.output_cost": 0.3},
        {"gen_ai.usage.cost": "0.5"},
        {"llm.cost.prompt": 0.2, "llm.cost.completion": 0.3, "openinference.span.kind": "LLM"},
        {"langfuse.observation.cost_details": '{"input": 0.2, "output": 0.3}'},
        {"hidden_params": '{"response_cost": 0.5}'},
        {"ai.response.providerMetadata": '{"openrouter": {"usage": {"cost": 0.5}}}'},
        {"ai.response.providerMetadata": '{"gateway": {"cost": "0.5"}}'},
        {"operation.cost": 0.5},
    ],
)
def test_a_cost_that_was_sent_is_read(attributes: dict) -> None:
    assert reading(genai() | {"gen_ai.usage.input_tokens": 5} | attributes).cost_usd == 0.5


@pytest.mark.parametrize(
    ("attributes", "details"),
    [
        (
            {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.cache_read.input_tokens": 6},
            {"cache_read_tokens": 6},
        ),
        (
            {"gen_ai.usage.output_tokens": 9, "gen_ai.usage.reasoning.output_tokens": 6},
            {"reasoning_tokens": 6},
        ),
        (
            {"llm.token_count.prompt": 9, "llm.token_count.prompt_details.cache_write": 6},
            {"cache_write_tokens": 6},
        ),
        ({"ai.usage.inputTokens": 9, "ai.usage.cachedInputTokens": 6}, {"cache_read_tokens": 6}),
        (
            {
                "langfuse.observation.usage_details": (
                    '{"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 6}}'
                )
            },
            {"cache_read_tokens": 6},
        ),
    ],
)
def test_cached_and_reasoning_tokens_are_kept(attributes: dict, details: dict) -> None:
    said = reading(genai() | attributes)
    assert said.usage.counts.items() >= details.items()
    assert 9 in (said.usage.input_tokens, said.usage.output_tokens)


def test_llamaindex_says_a_call_in_kwargs_and_its_answer_in_raw_output() -> None:
    answer = {"blocks": [{"text": "Two"}], "tool_name": "look", "raw_output": "Two"}
    tool = {
        "openinference.span.kind": "TOOL",
        "tool.name": "look",
        "input.value": '{"kwargs": {"q": 1}}',
        "output.value": json.dumps(answer),
    }
    said = in_scope("llama_index", tool)
    assert (said.tool_arguments, said.tool_result) == ({"q": 1}, "Two")


def test_a_tools_parameters_may_be_its_arguments_and_its_result_blocks() -> None:
    tool = {"openinference.span.kind": "TOOL", "tool.name": "look", "input.value": '{"q": 1}'}
    said = reading(
        tool | {"tool.parameters": '{"q": 1}', "output.value": '[{"type": "text", "text": "Two"}]'}
    )
    assert (said.tools, said.tool_result) == ([], "Two")
    assert reading(tool | {"tool.parameters": '{"q": {"type": "integer"}}'}).tools


def test_bedrocks_schema_of_a_tool_is_inside_json() -> None:
    [tool] = tool_definitions([{"name": "look", "inputSchema": {"json": {"type": "object"}}}])
    assert tool["function"]["parameters"] == {"type": "object"}


LONG = {"role": "user", "content": "Which belt is my suitcase on, please? I am in a hurry."}
CUT: dict[str, tuple[str, list]] = {
    "a list": (json.dumps([*ASKED, LONG]), ASKED),
    "a state": (json.dumps({"input": {"messages": [*ASKED, LONG]}}), ASKED),
    "blocks": (
        json.dumps([*ASKED, LONG | {"content": [{"type": "text", "text": "x" * 40}]}]),
        ASKED,
    ),
    "Python": (str({"args": (1,), "messages": [*ASKED, LONG]}), ASKED),
    "Python's quotes": (
        str([{"role": "user", "content": 'It\'s "it"'}, LONG]),
        [{"role": "user", "content": 'It\'s "it"'}],
    ),
    "Gemini": (
        json.dumps({"contents": [{"parts": [{"text": "Hi"}]}, {"parts": [{"text": "x" * 40}]}]}),
        ASKED[1:],
    ),
    "inputs of a workflow": (json.dumps({"inputs": {"question": "Hi", "x": "y" * 40}}), ASKED[1:]),
    "nothing whole": (json.dumps({"inputs": {"topic": "Hi", "x": "y" * 40}}), []),
    "one message": (json.dumps(LONG), []),
}


@pytest.mark.parametrize(("whole", "expected"), CUT.values(), ids=CUT)
def test_of_json_that_breaks_off_the_whole_messages_are_kept(whole: str, expected: list) -> None:
    for text in (whole[:-20], whole[:-20] + "...[truncated]"):
        lost = Lost()
        assert messages_of(text, "user", lost=lost) == expected and lost.is_cut


def test_of_content_that_breaks_off_the_words_are_kept_so_far() -> None:
    content = json.dumps(
        [{"type": "text", "text": "Hi"}, {"type": "text", "text": LONG["content"]}]
    )
    lost = Lost()
    (message,) = messages_of([{"role": "user", "content": content[:-15]}], "user", lost=lost)
    assert message["content"] == "Hi\nWhich belt is my suitcase on, please? I am" and lost.is_cut
    image = json.dumps(
        [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "x" * 40}}]
    )
    assert messages_of([{"role": "user", "content": image[:-15]}], "user") == ASKED[1:]


@pytest.mark.parametrize(
    "words",
    [
        "{'a': 1} is a dict in Python, is it not, and [1] a list?",
        '[{"type": "text"',
        'What does {"role": "user" mean in the docs of this API?',
    ],
)
def test_words_that_look_like_json_stay_words(words: str) -> None:
    lost = Lost()
    assert messages_of(words, "user", lost=lost) == [{"role": "user", "content": words}]
    assert lost == Lost()


def test_outputs_of_a_workflow_are_its_words() -> None:
    assert messages_of({"outputs": {"answer": "Two."}}, "assistant") == ANSWERED
    assert messages_of({"inputs": {"messages": ASKED}}, "user") == ASKED


def test_a_reply_of_text_blocks_as_json_is_their_text() -> None:
    blocks = [{"type": "text", "text": "3 left", "id": "b1", "made_at": "2026-01-02"}]
    for said in (json.dumps(blocks), json.dumps([*blocks, {"type": "text", "text": "2 sold"}])):
        part = {"type": "tool_call_response", "id": "c1", "response": said}
        (reply,) = messages_of([{"role": "tool", "parts": [part]}], "user")
        assert reply["content"] == "\n".join(block["text"] for block in json.loads(said))
    for said in (
        '[{"type": "text"}]',
        '[{"type": "shop", "text": "x"}]',
        '[{"text": "x", "n": 1}]',
    ):
        part = {"type": "tool_call_response", "id": "c1", "response": said}
        assert messages_of([{"role": "tool", "parts": [part]}], "user")[0]["content"] == said


def test_a_tool_whose_result_says_that_it_failed() -> None:
    content = [{"type": "text", "text": "no such shop"}]
    for outcome, failed in (
        ({"isError": True}, True),
        ({"state": "error", "id": "c1"}, True),
        ({"isError": False}, False),
        ({"state": "success"}, False),
    ):
        found = reading(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.call.result": json.dumps({"content": content} | outcome),
            }
        )
        assert found.tool_result == "no such shop"
        assert (found.error is not None) is failed
        assert not failed or found.error.text == "no such shop"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([], "[]"),  # what a search found
        ({"content": [], "isError": False}, ""),
        ([{"annotations": None, "type": "text", "text": "3 left"}], "3 left"),
        ([{"text": "3 left"}], '[{"text":"3 left"}]'),
        ({"content": [{"text": "3 left"}], "state": "success"}, "3 left"),
        ({"content": [{"type": "image"}], "isError": False}, None),
    ],
)
def test_text_blocks_of_a_tools_result(result: Any, said: str | None) -> None:
    whole = json.dumps(result)
    found = reading({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": whole})
    assert structured(found.tool_result) == structured(whole if said is None else said)
