"""The Responses API over chat completions: the `openai` package's types are the contract, and its
client talks to the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
import torch
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.workers.conftest import make_tiny_model
from workers.lib.messages import as_completion
from workers.lib.openai_requests import ApiError
from workers.lib.responses_over_chat import UNSUPPORTED, ResponseWriter, read_responses
from workers.lib.streamed import ResponsePieces
from workers.ml.models import load_policy
from workers.ml.transformers_engine import TransformersEngine
from workers.model_server import App, Served

REQUEST, EVENT = TypeAdapter(ResponseCreateParamsNonStreaming), TypeAdapter(ResponseStreamEvent)
TOOL: dict = {
    "type": "function",
    "name": "close",
    "description": "Closes.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "close", "arguments": '{"id": 12}'}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
ROW = {
    "token": "4",
    "logprob": -0.5,
    "bytes": [52],
    "top_logprobs": [{"token": "4", "logprob": -0.5, "bytes": [52]}],
}


def read(**body: Any) -> Any:
    return read_responses(json.dumps({"model": "m", "input": "Hi"} | body).encode())


# Requests

CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "close",
    "arguments": '{"id": 12}',
    "status": "completed",
}
USER = {"role": "user", "content": "Hi"}
INPUTS: dict[str, tuple[Any, list[dict]]] = {
    "text": ("Hi", [USER]),
    "messages": (
        [
            {"role": "developer", "content": "Be short."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ],
        [{"role": "system", "content": "Be short."}, USER],
    ),
    "an output sent back": (
        [
            USER,
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "4", "annotations": [], "logprobs": []}
                ],
            },
            USER,
        ],
        [USER, {"role": "assistant", "content": "4"}, USER],
    ),
    "a call and its output": (
        [
            USER,
            {"type": "reasoning", "id": "rs_1", "summary": []},
            CALLED,
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    ),
    "an output in parts": (
        [
            USER,
            CALLED,
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "ok"}],
            },
        ],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    ),
}


@pytest.mark.parametrize(("given", "messages"), INPUTS.values(), ids=INPUTS)
def test_input_becomes_the_messages_of_a_chat(given: Any, messages: list[dict]) -> None:
    REQUEST.validate_python({"model": "m", "input": given})
    assert read(input=given).chat().messages == messages
    assert read(input=given, instructions="Help.").chat().messages == [
        {"role": "system", "content": "Help."},
        *messages,
    ]


def test_tools_and_sampling_are_those_of_a_chat() -> None:
    body = {
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "temperature": 0.2,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "store": False,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}},
        "reasoning": {},
        "metadata": {"k": "v"},
        "user": "u",
    }
    REQUEST.validate_python({"model": "m", "input": "Hi"} | body)
    chat = read(**body, stream=True, seed=3).chat()
    assert chat.tools == [
        {
            "type": "function",
            "function": {
                name: TOOL[name] for name in ("name", "description", "parameters", "strict")
            },
        }
    ]
    assert (chat.temperature, chat.top_p, chat.max_tokens, chat.seed, chat.stream) == (
        0.2,
        0.9,
        7,
        3,
        True,
    )
    assert (chat.tool_choice, chat.parallel_tool_calls, chat.logprobs, chat.top_logprobs) == (
        "auto",
        False,
        True,
        2,
    )


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
REFUSED: list[tuple[dict, str | None, str]] = [
    ({"input": None}, "input", "str | array"),
    ({"input": []}, "input", "empty"),
    ({"store": True}, "store", "It stores no responses"),
    ({"background": True}, "background", "It stores no responses"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
    ({"conversation": "conv_1"}, "conversation", "It stores no responses"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "It stores no responses"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "refers to a stored item"),
    (
        {"input": [USER, {"type": "computer_call", "call_id": "c1"}]},
        "input",
        r"input\[1\] is of type 'computer_call'",
    ),
    ({"input": [{"role": "user", "content": [PICTURE]}]}, "input", "this model reads text"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c1", "output": [PICTURE]}]},
        "input",
        "this model reads text",
    ),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "call_id"),
    (
        {"input": [{"type": "function_call", "call_id": "c1", "arguments": "{}"}]},
        "input",
        "without a name",
    ),
    ({"input": [{"role": "tool", "content": "x"}]}, "input", "roles user, assistant"),
    ({"input": [{"role": "user", "content": 4}]}, "input", "must have content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input",
        "without its text",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools", "'web_search'"),
    ({"tools": [{"type": "function", "function": {"name": "close"}}]}, "tools", "must have a name"),
    ({"tool_choice": "required"}, "tool_choice", "not supported"),
    ({"tool_choice": {"type": "function", "name": "close"}}, "tool_choice", "not supported"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format", "json_object"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort", "not supported"),
    ({"max_tokens": 4}, "max_tokens", "max_output_tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    ({"temperature": -1}, "temperature", ">= 0"),
    ({"metadata": {"k": 1}}, "metadata[...]", "str"),
    ({"top_k": 5}, "top_k", "not supported"),
]


@pytest.mark.parametrize(("body", "param", "said"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_answered_is_refused_by_its_name(
    body: dict, param: str | None, said: str
) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        read(**body).chat()
    assert (refused.value.status, refused.value.param) == (400, param)


def test_every_field_of_the_openai_package_is_read_refused_or_known_to_change_nothing() -> None:
    nothing = {
        "access_programs",
        "background_options",
        "image",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
        "user",
    }
    fields = set(ResponseCreateParamsNonStreaming.__annotations__)
    fields |= {
        name
        for kind in ResponseCreateParamsNonStreaming.__orig_bases__
        for name in kind.__annotations__
    }  # type: ignore[attr-defined]
    assert "input" in fields
    assert fields - nothing - set(UNSUPPORTED) == fields & set(read().__struct_fields__) - {
        "tool_choice"
    }


# Answers


def piece(finish: str | None = None, rows: list[dict] | None = None, **delta: Any) -> dict:
    return {
        "delta": delta,
        "logprobs": {"content": rows} if rows else None,
        "finish_reason": finish,
    }


ANSWERS: dict[str, tuple[list[dict], dict, str]] = {
    "text": (
        [
            piece(role="assistant", content=""),
            piece(content="4 "),
            piece(content="“vier”"),
            piece("stop"),
        ],
        {"content": "4 “vier”"},
        "stop",
    ),
    "nothing": ([piece(role="assistant", content=""), piece("stop")], {"content": ""}, "stop"),
    "cut": ([piece(content="4 and"), piece("length")], {"content": "4 and"}, "length"),
    "calls": (
        [
            piece(role="assistant", content=""),
            piece(tool_calls=[CALL, CALL | {"id": "c2"}]),
            piece("tool_calls"),
        ],
        {"content": None, "tool_calls": [CALL, CALL | {"id": "c2"}]},
        "tool_calls",
    ),
    "text and a call": (
        [piece(content="I close it."), piece(tool_calls=[CALL]), piece("tool_calls")],
        {"content": "I close it.", "tool_calls": [CALL]},
        "tool_calls",
    ),
    "log-probabilities": (
        [piece(content="", rows=[ROW]), piece(content="44", rows=[ROW]), piece("stop")],
        {"content": "44"},
        "stop",
    ),
}


def written(pieces: list[dict], asked: Any) -> list[dict]:
    """The events, each by the openai package's types, and put together as its client does."""
    writer = ResponseWriter(asked, id="resp_1", model="m", created=1_760_000_000)
    events = [event for one in pieces for event in writer.add(one)] + writer.end(USAGE)
    check(events)
    return events


def check(events: list[dict]) -> None:
    for event in events:
        EVENT.validate_json(json.dumps(event), strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    client = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    shown = [
        one
        for event in events
        for one in client.handle_event(EVENT.validate_json(json.dumps(event)))
    ]
    assert [one.type for one in shown] == [event["type"] for event in events]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(("pieces", "message", "finish"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_whole_and_streamed_is_one_response(
    pieces: list[dict], message: dict, finish: str
) -> None:
    asked = read(tools=[TOOL], instructions="Help.", max_output_tokens=20, metadata={"k": "v"})
    events = written(pieces, asked)
    rows = [row for one in pieces for row in (one["logprobs"] or {}).get("content", ())]
    choice = {"message": message, "finish_reason": finish, "logprobs": {"content": rows}}
    whole = ResponseWriter(asked, id="resp_1", model="m", created=1_760_000_000).whole(
        choice, USAGE
    )
    assert events[-1]["response"] == whole
    assert events[-1]["type"] == (
        "response.incomplete" if finish == "length" else "response.completed"
    )
    theirs = Response.model_validate_json(json.dumps(whole), strict=True)
    assert theirs.output_text == (message["content"] or "")
    reason = theirs.incomplete_details.reason if theirs.incomplete_details else None
    assert reason == ("max_output_tokens" if finish == "length" else None)
    deltas = [
        event["logprobs"] for event in events if event["type"] == "response.output_text.delta"
    ]
    assert [row for some in deltas for row in some] == rows
    assert (theirs.usage.input_tokens, theirs.usage.output_tokens, theirs.usage.total_tokens) == (
        5,
        3,
        8,
    )  # type: ignore[union-attr]
    assert [
        event["item"] for event in events if event["type"] == "response.output_item.done"
    ] == whole["output"]
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])
    back = as_completion(whole)["choices"][0]
    assert (back["message"]["content"] or "") == (message["content"] or "") and back[
        "finish_reason"
    ] == finish
    assert back["message"].get("tool_calls", []) == message.get("tool_calls", [])
    assert back.get("logprobs", {}).get("content", []) == rows
    reader = ResponsePieces()
    assert [reader.add(event) for event in events] == [False] * (len(events) - 1) + [True]
    assert reader.written.text == theirs.output_text and len(reader.written.calls) == len(
        message.get("tool_calls", [])
    )


def test_an_answer_that_fails_in_its_middle_says_so() -> None:
    writer = ResponseWriter(read(), id="resp_1", model="m", created=1)
    events = writer.add(piece(content="4")) + writer.fail("Out of memory.")
    check(events)
    assert (
        events[-1]["type"] == "response.failed"
        and events[-1]["response"]["error"]["message"] == "Out of memory."
    )


# The server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    engine = TransformersEngine(
        *load_policy(make_tiny_model(tmp_path_factory.mktemp("model")), None)
    )
    return Served(engine, "base", context=2048, slots=0, most_rank=8)


@pytest.fixture
def client(served: Served) -> Iterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(App(served))
    yield openai.AsyncOpenAI(
        base_url="http://server/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )


def answers_with(served: Served, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the model write these texts, one for each request."""
    tokens = [
        id
        for text in texts
        for id in [
            *served.engine.tokenizer(text, add_special_tokens=False)["input_ids"],
            served.engine.stop_ids[0],
        ]
    ]

    def scripted(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([tokens.pop(0)]), torch.tensor([-0.5])

    monkeypatch.setattr("workers.ml.batches.sample", scripted)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_calls_a_tool_and_answers_with_its_result(
    served: Served, client: openai.AsyncOpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_with(served, ['{"tool": "close", "args": {"id": 12}}', "Closed."], monkeypatch)
    given: dict[str, Any] = {
        "model": "base",
        "instructions": "Help.",
        "tools": [TOOL],
        "max_output_tokens": 60,
    }

    async def ask(items: list) -> Response:
        if not stream:
            return await client.responses.create(**given, input=items)
        async with client.responses.stream(**given, input=items) as events:
            return await events.get_final_response()

    async def talk() -> tuple[Response, Response]:
        items: list = [{"role": "user", "content": "Close 12."}]
        first = await ask(items)
        (call,) = first.output
        items += [
            call.model_dump(exclude_unset=True, exclude={"parsed_arguments"}),
            {"type": "function_call_output", "call_id": call.call_id, "output": "ok"},
        ]  # type: ignore[union-attr]
        return first, await ask(items)

    first, second = asyncio.run(talk())
    assert (first.output[0].type, first.output[0].name, json.loads(first.output[0].arguments)) == (
        "function_call",
        "close",
        {"id": 12},
    )  # type: ignore[union-attr]
    assert (
        second.output_text == "Closed." and second.status == "completed" and second.id != first.id
    )
