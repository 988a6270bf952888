"""Answers in pieces: the `openai` package reads the same streams, what is shown grows to the
answer, and servers that cut a stream, fail in it or cannot stream are met as other servers are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.registry.model_server import END, Cut, Sent, begun, chat, chunk, ended, event, serving
from tests.workers.test_responses_api import call as item_call
from tests.workers.test_responses_api import failure, response, text, thought
from workers.lib.chat_client import AsyncChatClient, ChatError, ChatServer
from workers.lib.messages import text_of
from workers.lib.outgoing import TooMuch
from workers.lib.posts import Posts
from workers.lib.streamed import CALL_SIZE, ChatPieces, ResponsePieces, StreamReader, Written

CHAT, RESPONSES = ("POST", "/v1/chat/completions"), ("POST", "/v1/responses")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def ask(
    sent: Sent, path: tuple[str, str] = CHAT, times: int = 1, **changes: Any
) -> tuple[list[dict], list[Written], list]:
    """The answers, what was shown of them, and the bodies that the server got."""

    async def run(base: str) -> list[dict]:
        given = {
            "protocol": "responses" if path == RESPONSES else "chat",
            "tries": 2,
            "allow_private": True,
        }
        client = AsyncChatClient(ChatServer(base, "m", **given | changes))
        client.sleep = lambda _: asyncio.sleep(0)  # type: ignore[assignment]
        try:
            return [
                (await client.ask(ASKED, lambda read: shown.append(read())))[0]
                for _ in range(times)
            ]
        finally:
            await client.aclose()

    shown: list[Written] = []
    with serving({path: sent}) as server:
        answers = asyncio.run(run(server.base))
        return answers, shown, [json.loads(body) for *_, body in server.asked]


def failed(sent: Sent, **changes: Any) -> ChatError:
    with pytest.raises(ChatError) as caught:
        ask(sent, **changes)
    return caught.value


def tool(
    index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None
) -> dict:
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    made = {"index": index, "function": function} | ({"id": id, "type": "function"} if id else {})
    return {"tool_calls": [{key: value for key, value in made.items() if value is not None}]}


STREAMS: dict[str, list[bytes]] = {
    "text": [*begun("4 “vier”", " 🧮", ""), *ended(tokens=3)],
    "reasoning": [
        *begun(),
        chunk({"reasoning_content": "2 + "}),
        chunk({"reasoning_content": "2"}),
        chunk({"content": "4"}),
        *ended(),
    ],
    "a call": [
        *begun(),
        chunk({"content": None} | tool(0, "c1", "add")),
        chunk(tool(0, arguments='{"a": ')),
        chunk(tool(0, arguments="2}")),
        *ended("tool_calls"),
    ],
    "two calls": [
        *begun("Both."),
        chunk(tool(0, "c1", "add", "{}")),
        chunk(tool(1, "c2", "sub", "{")),
        chunk(tool(1, arguments="}")),
        *ended("tool_calls"),
    ],
    "refusal": [*begun(), chunk({"refusal": "N"}), chunk({"refusal": "o."}), *ended()],
    "length": [*begun("4 and"), *ended("length")],
    "comments and an odd line": [
        b": ping\n\n",
        *begun("4"),
        b"retry: 3\n\n",
        b"event: x\nid: 1\n",
        *ended(),
    ],
}


# Of vLLM 0.32.0 with `--tool-call-parser hermes`, tool_choice “required”: the first events, one of
# the same form as the many between, the last ones.
AT = '"id":"chatcmpl-8e8db28ad10fd173","object":"chat.completion.chunk","created":1795389700,"model":"m"'  # noqa: E501
MORE = '"logprobs":null,"finish_reason":null,"token_ids":null}]'
RECORDED = [
    f"""data: \
{{{AT},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null}}\n\n""",
    f"""data: \
{{{AT},"choices":[{{"index":0,"delta":{{"content":null,"tool_calls":[{{"id":"chatcmpl-tool-afe6fa458bf994ba","type":"function","index":0,"function":{{"name":"get_weather"}}}}]}},{MORE}}}\n\n""",
    f"""data: \
{{{AT},"choices":[{{"index":0,"delta":{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":"["}}}}]}},{MORE}}}\n\n""",
    f"""data: \
{{{AT},"choices":[{{"index":0,"delta":{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":"temperature"}}}}]}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}}]}}\n\n""",
    f"""data: \
{{{AT},"choices":[],"usage":{{"prompt_tokens":16,"total_tokens":76,"completion_tokens":60}},"system_fingerprint":"vllm-0.32.0-fd149a0d"}}\n\n""",
    "data: [DONE]\n\n",
]


def fields(value: Any, path: str = "") -> set[str]:
    """All paths of a value of JSON, with the type that is there."""
    if isinstance(value, dict):
        return {found for name, item in value.items() for found in fields(item, f"{path}.{name}")}
    if isinstance(value, list):
        return {found for item in value for found in fields(item, f"{path}[]")}
    return {f"{path}: {type(value).__name__}"}


def test_the_scripted_server_sends_what_vllm_sends() -> None:
    """Every field of the scripted stream is one of the recorded stream, which is read as the
    `openai` package reads it.
    """
    recorded = [line.encode() for line in RECORDED]
    call = (
        {"content": None} | tool(0, "c1", "get_weather"),
        {"content": None} | tool(0, arguments="["),
    )
    scripted = [*begun(), *map(chunk, call), *ended("tool_calls")]
    known_fields = {found for one in chunks_in(recorded) for found in fields(one)}
    assert {found for one in chunks_in(scripted) for found in fields(one)} <= known_fields
    [answer], shown, _ = ask(lambda _: iter(recorded))
    assert known(answer) == known(theirs(recorded)) and shown[-1].calls == [
        {"name": "get_weather", "arguments": "[temperature"}
    ]


def chunks_in(stream: list[bytes]) -> list[dict]:
    lines = b"".join(stream).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def theirs(stream: list[bytes]) -> dict:
    """What the `openai` package makes of it."""
    state = ChatCompletionStreamState()
    for one in chunks_in(stream):
        state.handle_chunk(ChatCompletionChunk.model_validate(one))
    return state.current_completion_snapshot.model_dump()


def known(answer: dict) -> list:
    [choice], usage = answer["choices"], answer["usage"]
    message = choice["message"]
    calls = [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls") or ()
    ]
    said = [message.get(name) or None for name in ("content", "refusal", "reasoning_content")]
    return [
        *said,
        calls,
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        answer["id"],
    ]


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_the_openai_package_reads_the_same_stream(stream: list[bytes]) -> None:
    [answer], shown, [body] = ask(lambda _: iter(stream))
    assert known(answer) == known(theirs(stream))
    assert body == {"model": "m", "stream": True, "stream_options": {"include_usage": True}} | ASKED
    message = answer["choices"][0]["message"]
    last = shown[-1]
    assert (last.text or None, last.thought or None) == (
        message["content"],
        message.get("reasoning_content"),
    )
    assert last.calls == [
        {"name": one["function"]["name"], "arguments": one["function"]["arguments"]}
        for one in message.get("tool_calls", ())
    ]


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize(
    ("start", "end"),
    [(b"", b"\n"), (b"", b"\r\n"), (b"", b"\r"), (b"\xef\xbb\xbf", b"\n")],
    ids=["lf", "crlf", "cr", "mark"],
)
def test_it_is_the_same_wherever_it_is_cut_into_packets(
    stream: list[bytes], start: bytes, end: bytes
) -> None:
    data = start + b"".join(stream).replace(b"\n", end)
    whole, single = (StreamReader("chat", 10**6, lambda read: None) for _ in range(2))
    whole.feed(data)
    for position in range(len(data)):
        single.feed(data[position : position + 1])
    plain = StreamReader("chat", 10**6, lambda read: None)
    plain.feed(b"".join(stream))
    assert whole.whole() == single.whole() == plain.whole() and whole.ended and single.ended


def test_calls_that_a_server_does_not_number_are_told_apart() -> None:
    """By their ids: Gemini numbers none, Ollama all of them with 0; another sends the name each
    time.
    """
    for place in (None, 0):
        stream = (
            [
                *begun(),
                chunk(tool(place, "a", "add", "{}")),
                chunk(tool(place, "b", "sub", "{")),
                chunk(tool(place, "b", "sub", "}")),
                *ended("tool_calls"),
            ]
            if place is None
            else [
                *begun(),
                chunk(tool(0, "a", "add", "{}")),
                chunk(tool(0, "b", "sub", "{}")),
                *ended("tool_calls"),
            ]
        )
        [answer], *_ = ask(lambda _, stream=stream: iter(stream))
        calls = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
        assert calls == [{"name": "add", "arguments": "{}"}, {"name": "sub", "arguments": "{}"}]


CITY, DAY = '{"city": "Oslo"}', '{"day": 3}'
PIECES = {
    "an id for each piece": (
        [tool(0, "a", "look", ""), tool(0, "b", None, '{"city":'), tool(0, "c", None, ' "Oslo"}')],
        [CITY],
    ),
    "an id for each piece, without an index": (
        [tool(None, "a", "look", ""), tool(None, "b", None, CITY)],
        [CITY],
    ),
    "an id and the name in each piece": (
        [tool(0, "a", "look", '{"city"'), tool(0, "b", "look", ': "Oslo"}')],
        [CITY],
    ),
    "two calls at index 0, each in pieces": (
        [
            tool(0, "a", "look", ""),
            tool(0, "a", None, CITY),
            tool(0, "b", "look", ""),
            tool(0, "b", None, DAY),
        ],
        [CITY, DAY],
    ),
    "two calls at index 0, pieces without an id": (
        [
            tool(0, "a", "look", ""),
            tool(0, None, None, CITY),
            tool(0, "b", "look", ""),
            tool(0, None, None, DAY),
        ],
        [CITY, DAY],
    ),
    "two calls of one tool, whole": (
        [tool(0, "a", "look", CITY), tool(0, "b", "look", DAY)],
        [CITY, DAY],
    ),
    "two calls in turn": (
        [
            tool(0, "a", "look", '{"city":'),
            tool(1, "b", "look", '{"day"'),
            tool(0, "x", None, ' "Oslo"}'),
            tool(1, "y", None, ": 3}"),
        ],
        [CITY, DAY],
    ),
}


@pytest.mark.parametrize(("deltas", "arguments"), PIECES.values(), ids=PIECES)
def test_calls_in_pieces_are_whole_whatever_their_ids(
    deltas: list[dict], arguments: list[str]
) -> None:
    pieces = ChatPieces()
    for delta in deltas:
        pieces.add({"choices": [{"index": 0, "delta": delta}]})
    calls = pieces.whole(True)["choices"][0]["message"]["tool_calls"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("look", said) for said in arguments
    ]
    assert [call["id"] for call in calls] == ["a", "b"][: len(arguments)]


LOOK = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": CITY}}
WHOLE = {
    "no pieces": ([{}, {"message": {"content": None, "tool_calls": [LOOK]}}], None, [CITY]),
    "pieces of the text": (
        [{"delta": {"content": "So."}}, {"delta": {}, "message": {"tool_calls": [LOOK]}}],
        "So.",
        [CITY],
    ),
    "pieces of the call": (
        [
            {"delta": tool(0, "x", "look", '{"city"')},
            {"delta": {}, "message": {"content": "So.", "tool_calls": [LOOK]}},
        ],
        "So.",
        [CITY],
    ),
    "all of the text each time": (
        [{"message": {"content": "S"}}, {"message": {"content": "So."}}, {"message": None}],
        "So.",
        [],
    ),
    "the older name": (
        [{}, {"message": {"content": "", "function_call": LOOK["function"]}}],
        None,
        [CITY],
    ),
}


@pytest.mark.parametrize(("choices", "words", "arguments"), WHOLE.values(), ids=WHOLE)
def test_a_whole_message_in_a_chunk_is_taken_once(
    choices: list[dict], words: str | None, arguments: list[str]
) -> None:
    pieces = ChatPieces()
    for choice in choices:
        pieces.add({"choices": [{"index": 0} | choice]})
    message = pieces.whole(True)["choices"][0]["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert (message["content"], calls) == (words, arguments)
    written = pieces.written
    assert pieces.size == len(written.text) + sum(
        CALL_SIZE + len(call["name"]) + len(call["arguments"]) for call in written.calls
    )


@pytest.mark.parametrize("output", [[], None])
def test_items_that_came_whole_are_the_output_that_the_last_event_leaves_out(output: Any) -> None:
    pieces, items = ResponsePieces(), [item_call("add", '{"a": 2}'), text("Done.")]
    for place in (1, 0):
        pieces.add(
            {"type": "response.output_item.done", "output_index": place, "item": items[place]}
        )
    assert pieces.add({"type": "response.completed", "response": {"id": "r", "output": output}})
    assert pieces.whole(True) == {"id": "r", "output": items}


def test_what_is_written_is_shown_before_the_answer_is_whole() -> None:
    """The server goes on only when its first words were seen."""
    seen = threading.Event()

    def stream(_: dict) -> Iterator[bytes]:
        yield from begun("Clo")
        assert seen.wait(300)
        yield from [chunk({"content": "sed."}), *ended()]

    async def run(base: str) -> dict:
        client = AsyncChatClient(ChatServer(base, "m", allow_private=True, tries=1))
        try:
            return (await client.ask(ASKED, lambda read: read().text == "Clo" and seen.set()))[0]
        finally:
            await client.aclose()

    with serving({CHAT: stream}) as server:
        assert text_of(asyncio.run(run(server.base))["choices"][0]["message"]) == "Closed."


def test_thoughts_in_the_text_are_told_apart() -> None:
    assert Written("<think>2 + 2</think>4").apart().text == "4"
    assert Written("<think>2 +").apart() == Written("", "<think>2 +")
    assert Written("4", "2 + 2").apart() == Written("4", "2 + 2")


# Servers


def cuts(_: dict) -> Iterator[bytes]:
    yield from begun("Half an ans")
    raise Cut


def test_a_stream_that_is_cut_is_asked_again() -> None:
    left = iter([cuts, lambda _: iter([*begun("Half an answer."), *ended()])])
    [answer], shown, bodies = ask(lambda body: next(left)(body))
    assert text_of(answer["choices"][0]["message"]) == "Half an answer." and len(bodies) == 2
    assert "Half an ans" in [one.text for one in shown]


@pytest.mark.parametrize(
    "sent",
    [cuts, lambda _: begun("Half"), lambda _: iter([b"data: {}\n\n", END])],
    ids=["the connection ends", "the stream ends", "nothing said"],
)
def test_a_stream_without_its_end_is_no_answer(sent: Sent) -> None:
    error = failed(sent)
    assert "gave no answer in 2 tries (it ended " in str(error) and not error.paid


def test_a_stream_may_end_without_the_word() -> None:
    """As those of some servers do; a finish reason says that it is all."""
    [answer], *_ = ask(lambda _: iter([*begun("4"), chunk({}, "stop")]))
    assert text_of(answer["choices"][0]["message"]) == "4" and answer["usage"] is None


def test_an_answer_whose_connection_breaks_behind_its_end_is_not_asked_again() -> None:
    def stream(_: dict) -> Iterator[bytes]:
        yield from [*begun("4"), chunk({}, "stop")]
        raise Cut

    [answer], _, bodies = ask(stream)
    assert text_of(answer["choices"][0]["message"]) == "4" and len(bodies) == 1


def test_an_answer_whose_stream_never_ends_counts_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def post(self: Posts, data: bytes, reader: StreamReader) -> None:
        reader.feed(b"".join([*begun("4"), chunk({}, "stop")]))
        raise TooMuch("no end within 120 s", "time")

    monkeypatch.setattr(Posts, "post", post)
    [answer], *_ = ask(lambda _: iter([]))
    assert text_of(answer["choices"][0]["message"]) == "4"


def test_a_byte_order_mark_costs_no_event() -> None:
    [answer], *_ = ask(
        lambda _: iter([b"\xef\xbb\xbf" + chunk({"content": "4"}), chunk({}, "stop")])
    )
    assert text_of(answer["choices"][0]["message"]) == "4"


def test_nothing_is_awaited_behind_the_end() -> None:
    """Of a server that keeps the connection open."""
    over = threading.Event()

    def stream(_: dict) -> Iterator[bytes]:
        yield from [*begun("4"), *ended()]
        assert over.wait(300)

    answers, *_, bodies = ask(stream, times=2)
    over.set()
    assert len(answers) == len(bodies) == 2


def test_an_error_within_the_stream_is_said() -> None:
    """As vLLM sends it, with HTTP 200."""
    broken = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    error = failed(lambda _: iter([*begun("Half"), event(broken), END]))
    assert "answered with an error: EngineCore died." in str(error) and error.paid


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: {no json\n\n"],
        [b"data: [1]\n\n"],
        [event({"choices": 5})],
        [chunk({"content": "a", "tool_calls": 7})],
        [b"data: " + b"[" * 100_000 + b"\n\n"],
    ],
    ids=["no json", "a list", "no choices", "odd calls", "deep"],
)
def test_a_stream_of_something_else_is_said(parts: list[bytes]) -> None:
    assert "not a chat completion" in str(failed(lambda _: iter(parts)))


def test_a_stream_has_the_bounds_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncChatClient, "max_bytes", 1000)
    endless = (chunk({"content": "word " * 10}) for _ in range(10**6))
    error = failed(lambda _: endless)
    assert error.limit == "size" and "more than" in str(error)
    assert failed(lambda _: iter([b"data: " + b"x" * 2000])).limit == "size"
    assert failed(lambda _: iter([b": ping\n\n"] * 10**5)).limit == "size"
    assert len(ask(lambda _: iter([*begun(*"short"), *ended()]))[0]) == 1, "its frames do not count"


def test_a_server_that_cannot_stream_answers_whole() -> None:
    [answer], shown, _ = ask(lambda _: chat({"content": "Whole."}))
    assert text_of(answer["choices"][0]["message"]) == "Whole." and shown == []


@pytest.mark.parametrize(
    ("status", "said", "asked"),
    [
        (400, "Your organization must be verified to stream this model.", [True, False, False]),
        (422, "Streaming is not supported", [True, False, False]),
        (501, "no stream", [True, False, False]),
    ],
)
def test_a_server_that_refuses_to_stream_is_asked_for_the_whole_answer(
    status: int, said: str, asked: list
) -> None:
    """Once: from then on it is asked for that at once."""
    answers, shown, bodies = ask(
        lambda body: (
            (status, {"error": {"message": said}}) if "stream" in body else chat({"content": "4"})
        ),
        times=2,
    )
    assert len(answers) == 2 and shown == [] and ["stream" in body for body in bodies] == asked
    assert not any("stream_options" in body for body in bodies[1:])


def test_a_server_that_does_not_count_streams_streams() -> None:
    refused = (400, {"error": {"message": "Unknown parameter: stream_options"}})
    answers, shown, bodies = ask(
        lambda body: (
            refused if "stream_options" in body else iter([*begun("4"), chunk({}, "stop"), END])
        ),
        times=2,
    )
    assert (
        [body.get("stream") for body in bodies] == [True] * 3
        and len(answers) == 2
        and shown[-1].text == "4"
    )


def test_a_refusal_of_the_request_stays_one() -> None:
    assert "refused the request (HTTP 400): too long" in str(failed(lambda _: (400, b"too long")))


def test_our_key_is_not_shown_nor_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-of-a-test")
    pieces = ["Your key: sk-", "of-a-", "test", ", I think"]
    [answer], shown, _ = ask(lambda _: iter([*begun(*pieces), *ended()]), key_variable="A_KEY")
    assert text_of(answer["choices"][0]["message"]) == "Your key: [key], I think"
    texts = {one.text for one in shown}
    assert "Your key: [key], I think" in texts and not any("sk-" in text for text in texts)


# The Responses API


def of_response(*output: dict, kind: str = "completed", **more: Any) -> Iterator[bytes]:
    """Its events, as OpenAI's types have them."""
    number = iter(range(1000))
    for place, item in enumerate(output):
        yield event(
            {
                "type": "response.output_item.added",
                "item": item,
                "output_index": place,
                "sequence_number": next(number),
            }
        )
        at = {"output_index": place, "item_id": item["id"]}
        for index, part in enumerate(item.get("content", ()) if item["type"] == "message" else ()):
            for word in (part["text"][:3], part["text"][3:]):
                yield event(
                    {
                        "type": "response.output_text.delta",
                        "delta": word,
                        "content_index": index,
                        "logprobs": [],
                        "sequence_number": next(number),
                    }
                    | at
                )
        for index, part in enumerate(item.get("summary", ())):
            yield event(
                {
                    "type": "response.reasoning_summary_text.delta",
                    "delta": part["text"],
                    "summary_index": index,
                    "sequence_number": next(number),
                }
                | at
            )
        if item["type"] == "function_call":
            for word in (item["arguments"][:3], item["arguments"][3:]):
                yield event(
                    {
                        "type": "response.function_call_arguments.delta",
                        "delta": word,
                        "sequence_number": next(number),
                    }
                    | at
                )
    whole = response(*output) | more
    yield event({"type": f"response.{kind}", "response": whole, "sequence_number": next(number)})


def test_the_responses_api_streams_text_reasoning_and_calls() -> None:
    items = [thought("2 + 2"), text("Adding."), item_call("add", '{"a": 2}')]
    stream = list(of_response(*items))
    for one in chunks_in(stream):
        TypeAdapter(ResponseStreamEvent).validate_python(one)
    [answer], shown, [body] = ask(lambda _: iter(stream), RESPONSES)
    assert body["stream"] is True and "stream_options" not in body
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Adding.", "2 + 2")
    assert shown[-1] == Written("Adding.", "2 + 2", [{"name": "add", "arguments": '{"a": 2}'}])
    assert (
        "Add" in [one.text for one in shown]
        and message["tool_calls"][0]["function"] == shown[-1].calls[0]
    )


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (
            event({"type": "response.failed", "response": failure("server_error")}),
            "no answer in 2 tries (HTTP 200 with an error: server_error",
        ),
        (
            event(
                {
                    "type": "error",
                    "code": "rate_limit_exceeded",
                    "message": "Slow down.",
                    "param": None,
                    "sequence_number": 9,
                }
            ),
            "rate_limit_exceeded: Slow down.",
        ),
        (
            event({"type": "error", "error": {"code": "invalid_prompt", "message": "No."}}),
            "refused the request",
        ),
        (b"", "it ended its stream within the answer"),
    ],
    ids=["failed", "error", "refused", "cut"],
)
def test_a_response_that_fails_while_it_streams_is_no_answer(last: bytes, says: str) -> None:
    parts = [one for one in of_response(text("Half an answer")) if b"response.completed" not in one]
    assert says in str(failed(lambda _: iter([*parts, last]), path=RESPONSES))
