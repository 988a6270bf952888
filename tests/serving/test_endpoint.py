"""The endpoint as OpenAI's client sees it, before servers that answer as vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from apps.core.models import AuditEvent, key_digest
from apps.serving.answers import Refusal
from apps.serving.callers import count_refused
from apps.serving.pieces import Pieces
from apps.serving.recording import span_of
from apps.serving.turns import Bounds
from tests.flywheel.machine import eventually
from tests.serving.conftest import SECRET, Running
from tests.serving.scripted import Scripted
from workers.lib.prices import Price

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def ask(text: str) -> dict[str, Any]:
    return {"model": "production", "messages": [{"role": "user", "content": text}]}


Make = Callable[[str], Scripted]


def test_a_channel_answers_with_its_version(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"))
    answer = running.client().chat.completions.create(**ask("Hi"))
    assert answer.choices[0].message.content == "alpha" and answer.usage.total_tokens == 14
    assert alpha.asked == [ask("Hi") | {"model": "alpha-adapter"}]
    (noted,) = running.records(1)
    assert (noted.version, noted.status, noted.ended, noted.channel) == (
        "v1",
        200,
        "whole",
        "production",
    )


def test_a_stream_comes_piece_by_piece_and_is_noted_whole(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    chunks = list(running.client().chat.completions.create(**ask("stream 7"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "alpha " * 7
    assert all(
        chunk.choices for chunk in chunks
    )  # the count of tokens was ours to ask for, cannot be deleted with us
    attributes = span_of(running.records(1)[0]).attributes
    assert json.loads(attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "content": "alpha " * 7}
    ]
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (
        11,
        7,
    )
    assert attributes["flywheel.time_to_first_token_ms"] > 0


def test_a_client_that_wants_tokens_counted_gets_them(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(running.client().chat.completions.create(**ask("stream 3"), **wanted))
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 3 and not chunks[-1].choices


def test_tools_travel_both_ways(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"))
    answer = running.client().chat.completions.create(**ask("tool"), tools=[TOOL])
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
    with running.client().chat.completions.stream(**ask("tool"), tools=[TOOL]) as stream:
        stream.until_done()
        made = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert (made.function.name, made.function.arguments) == ("weather", '{"city": "Oslo"}')
    assert all(asked["tools"] == [TOOL] for asked in alpha.asked)
    for noted in running.records(2):
        attributes = span_of(noted).attributes
        said = json.loads(attributes["gen_ai.output.messages"])[0]["tool_calls"][0]["function"]
        assert said == {"name": "weather", "arguments": '{"city": "Oslo"}'}
        assert json.loads(attributes["gen_ai.tool.definitions"]) == [TOOL]


def test_the_responses_api(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    client = running.client()
    answer = client.responses.create(
        model="production",
        input="stream 3",
        instructions="Be short.",
        metadata={"session_id": "s9"},
    )
    assert answer.output_text == "alpha " * 3
    events = list(client.responses.create(model="production", input="stream 4", stream=True))
    assert (
        events[-1].type == "response.completed" and events[-1].response.output_text == "alpha " * 4
    )
    first, second = sorted(running.records(2), key=lambda noted: noted.started_ns)
    attributes = span_of(first).attributes
    assert attributes["session.id"] == "s9" and attributes["gen_ai.usage.output_tokens"] == 3
    assert json.loads(attributes["gen_ai.input.messages"])[0] == {
        "role": "system",
        "content": "Be short.",
    }
    assert (
        json.loads(span_of(second).attributes["gen_ai.output.messages"])[0]["content"]
        == "alpha " * 4
    )


def test_the_async_client(running: Running, server: Make) -> None:
    running.serve(server("alpha"))

    async def both() -> tuple[str, str]:
        async with AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key=SECRET, max_retries=0
        ) as client:
            whole = await client.chat.completions.create(**ask("Hi"))
            stream = await client.chat.completions.create(**ask("stream 3"), stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            called = await client.chat.completions.create(**ask("tool"), tools=[TOOL])
            assert called.choices[0].message.tool_calls[0].function.name == "weather"
            events = [
                event
                async for event in await client.responses.create(
                    model="production", input="a 2", stream=True
                )
            ]
            assert events[-1].response.output_text == "alpha " * 2
            return whole.choices[0].message.content or "", text

    assert asyncio.run(both()) == ("alpha", "alpha " * 3)


def test_a_model_that_takes_tools_as_text_streams_text(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"), dialect="text", speaks_both=False)
    chunks = list(
        running.client().chat.completions.create(**ask("stream 3"), tools=[TOOL], stream=True)
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "alpha " * 3
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    (asked,) = alpha.asked
    assert "tools" not in asked and "weather" in asked["messages"][0]["content"] and asked["stream"]
    attributes = span_of(running.records(1)[0]).attributes
    assert (
        attributes["gen_ai.usage.output_tokens"] == 3
        and "weather" in attributes["gen_ai.input.messages"]
    )
    refused = running.post({"model": "production", "input": "Hi"}, "/v1/responses")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "unsupported_api"


def test_a_template_without_system_messages_gets_the_tools_in_the_users(
    running: Running, server: Make
) -> None:
    refuses = "{{ raise_exception('System role not supported') }}"
    running.serve(alpha := server("alpha"), dialect="text", speaks_both=False, template=refuses)
    running.client().chat.completions.create(**ask("Hi"), tools=[TOOL])
    (asked,) = alpha.asked
    assert [message["role"] for message in asked["messages"]] == ["user"]
    assert "weather" in asked["messages"][0]["content"] and "Hi" in asked["messages"][0]["content"]


def test_metadata_is_stored_and_sent_on_where_it_is_not_refused(
    running: Running, server: Make
) -> None:
    alpha, beta, sent = (
        server("alpha"),
        server("beta"),
        {"metadata": {"session_id": "s7", "plan": "pro"}},
    )
    running.serve(alpha)
    running.post(ask("Hi") | sent)
    running.serve(beta, takes_metadata=False)
    for more in ({}, {"store": True}, {"store": False}):
        running.post(ask("Hi") | sent | more)
    running.post({"model": "production", "input": "Hi"} | sent, "/v1/responses")
    assert alpha.asked[0]["metadata"] == sent["metadata"]
    assert ["metadata" in asked for asked in beta.asked] == [False, True, False, True]
    assert all(
        noted.metadata == sent["metadata"] and noted.session == "s7" for noted in running.records(5)
    )


def test_requests_without_a_session_go_where_least_is_open(running: Running, server: Make) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.serve(alpha, beta)
    streams = []
    for number in range(4):
        stream = running.client().chat.completions.create(**ask("hang after 2"), stream=True)
        next(stream)
        streams.append(stream)
        assert abs(len(alpha.asked) - len(beta.asked)) == (number + 1) % 2
    for stream in streams:
        stream.close()
    eventually(lambda: set(running.endpoint.servers.open_at.values()) == {0})


def test_models_are_the_channels_of_the_project(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    running.serve(server("beta"), channel="staging")
    client = running.client()
    assert [model.id for model in client.models.list()] == ["production", "staging"]
    assert client.models.retrieve("staging").object == "model"
    with pytest.raises(
        openai.NotFoundError, match="The channels of this project are: production, staging"
    ):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ask("Hi") | {"model": "gpt-4o"})
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_an_error_of_the_server_passes_through_unchanged(
    running: Running, server: Make, status: int
) -> None:
    running.serve(server("alpha"))
    for stream in (False, True):
        answer = running.post(ask(f"status {status}") | {"stream": stream})
        assert answer.status_code == status
        assert answer.json() == {
            "error": {
                "message": "alpha refuses",
                "type": "BadRequestError",
                "param": None,
                "code": status,
            }
        }
        assert answer.headers["x-request-id"] == "from-the-server"
        assert answer.headers.get("retry-after") == ("7" if status in (429, 503) else None)
    said = (
        "" if status in (400, 422) else f"HTTP {status}: alpha refuses"
    )  # a request that is refused is no failure of the agent
    assert [span_of(noted).status_message for noted in running.records(2)] == [said] * 2


def test_a_server_that_has_not_loaded_the_version_is_passed_over_and_said(
    running: Running, server: Make
) -> None:
    """It has just started again: its “no such model” is no fault of the client's."""
    alpha, beta = server("alpha"), server("beta")
    alpha.lacks = True
    running.serve(alpha, beta)
    for _ in range(4):
        assert running.post(ask("Hi")).json()["choices"][0]["message"]["content"] == "beta"
    beta.lacks = True
    refused = running.post(ask("Hi"))
    assert refused.status_code == 503 and refused.headers["retry-after"] == "2"
    assert (
        refused.json()["error"]["code"] == "not_loaded"
        and "does not have the version loaded yet" in refused.text
    )
    beta.lacks = False
    assert running.post(ask("Hi")).status_code == 200
    assert not any(running.endpoint.servers.open_at.values())


def test_only_what_concerns_the_server_is_sent_on(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"), secret="sk-ours")
    sent = {"Cookie": "session=1", "X-Request-Id": "mine", "X-Forwarded-For": "10.0.0.1"}
    sent |= {"User-Agent": "agent/中".encode(), "traceparent": f"00-{'0' * 32}-{'0' * 16}-00"}
    answer = running.post(ask("Hi"), headers=sent)
    (got,) = alpha.headers
    assert got["authorization"] == "Bearer sk-ours" and got["x-request-id"] == "mine"
    assert got["user-agent"] == "agent/中" and answer.headers["x-flywheel-trace-id"].strip("0")
    assert not {"cookie", "x-forwarded-for"} & got.keys()
    assert not {"keep-alive", "set-cookie"} & answer.headers.keys()
    assert answer.headers["x-flywheel-version"] == "v1"


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"messages": []}', "the name of a channel"),
        (b'{"model": 7, "messages": []}', "“model” has the wrong type"),
        (b'{"model": "production"}', "“messages” is missing"),
        (
            b'{"model": "production", "messages": [], "stream": "yes"}',
            "“stream” has the wrong type",
        ),
        (b'{"model": "production", "messages": ' + b"[" * 100_000, "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
        (b"", "not a JSON object"),
        (b'{"model": "production", "messages": [], "conversation": "\xff"}', "not a JSON object"),
    ],
)
def test_a_bad_body_is_answered_as_openai_does(
    running: Running, server: Make, body: bytes, said: str
) -> None:
    running.serve(alpha := server("alpha"))
    answer = running.post(body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error" and not alpha.asked


@pytest.mark.parametrize("value", [b"1e400", b'[{"role": "user", "content": 1e400}]', b"7", b"{}"])
def test_what_a_prompt_cannot_stand_before_is_answered_with_400(
    running: Running, server: Make, value: bytes
) -> None:
    examples = {
        "examples": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    }
    running.serve(alpha := server("alpha"), prompt=examples)
    answer = running.post(b'{"model": "production", "input": ' + value + b"}", "/v1/responses")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input"
    for more in ({"prompt": examples}, {"dialect": "text"}):
        running.serve(alpha, **more)
        answer = running.post(b'{"model": "production", "messages": ' + value + b"}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
    assert not alpha.asked


@pytest.mark.parametrize("bounds", [Bounds(body=10_000)])
def test_a_large_body_is_refused(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    assert running.post(ask("x" * 20_000)).status_code == 413

    def parts() -> Any:
        yield b'{"model": "production", "messages": ['
        yield from [b" " * 5_000] * 4

    assert running.post(parts()).status_code == 413


def test_keys(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    for headers in ({}, {"Authorization": "Bearer fw_other"}, {"Authorization": "Basic abc"}):
        answer = running.post(ask("Hi"), headers={"Authorization": ""} | headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    running.keys(None)
    assert running.post(ask("Hi")).status_code == 403


def test_refused_keys_are_counted_by_where_they_come_from(
    running: Running, server: Make, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    running.serve(server("alpha"))
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        running.endpoint.callers, "count_refused", lambda *given: seen.append(given)
    )
    settings.FLYWHEEL_PROXIES = 1
    sent = [("Authorization", "Bearer fw_other"), ("X-Forwarded-For", "6.6.6.6")]
    behind = {"headers": [*sent, ("X-Forwarded-For", "192.0.2.7")]}
    httpx2.get(f"{running.url}/v1/models", trust_env=False, **behind)
    assert running.post(ask("Hi")).status_code == 200
    assert seen == [(key_digest("fw_other"), "192.0.2.7")]


@pytest.mark.django_db
def test_a_network_that_tries_keys_is_told_to_wait() -> None:
    for at in range(100):
        count_refused(key_digest(f"fw_{at}"), "192.0.2.7")
    with pytest.raises(Refusal) as refused:
        count_refused(key_digest("fw_100"), "192.0.2.7")
    assert refused.value.status == 429 and dict(refused.value.headers)[b"retry-after"]
    assert AuditEvent.objects.filter(action="api_key.refused").count() == 2


def test_limits_answer_429_with_retry_after(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    running.limit(requests=2)
    assert [running.post(ask("Hi")).status_code for _ in range(3)] == [200, 200, 429]
    refused = running.post(ask("Hi"))
    assert (
        1 <= int(refused.headers["retry-after"]) <= 30
        and refused.headers["x-ratelimit-limit-requests"] == "2"
    )
    with pytest.raises(openai.RateLimitError):
        running.client().chat.completions.create(**ask("Hi"))


def test_tokens_are_counted_when_they_are_known(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    running.limit(tokens=20)
    assert [running.post(ask("Hi")).status_code for _ in range(3)] == [
        200,
        200,
        429,
    ]  # 14 tokens each


@pytest.mark.parametrize("counts", ["on request", "never", "refuses"])
def test_the_limit_of_tokens_holds_for_streams_of_any_server(
    running: Running, server: Make, counts: str
) -> None:
    running.serve(alpha := server("alpha"))
    alpha.counts = counts
    running.limit(tokens=300)
    asked = ask("stream 200") | {"stream": True}
    assert running.post(asked).status_code == 200
    assert 429 in [running.post(asked).status_code for _ in range(3)]


def chunk(delta: Any, at: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": at, "delta": delta}]} | more


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
WORDS = [chunk({"content": "word "})] * 300
UNCOUNTED: dict[str, list[dict[str, Any]]] = {
    "0 at the end": [*WORDS, {"choices": [], "usage": NOTHING}],
    "0 in each chunk": [chunk({"content": "word "}, usage=NOTHING)] * 300,
    "no output": [*WORDS, {"choices": [], "usage": NOTHING | {"prompt_tokens": 11}}],
    "only at its beginning": [{"choices": [], "usage": {"completion_tokens": 1}}, *WORDS],
    "broken off by an error": [*WORDS, {"error": {"message": "out of memory", "code": 500}}],
    "several choices": [chunk({"content": "word "}, at % 3) for at in range(300)],
    "a field of another API": [{"choices": [{"index": 0, "text": "word "}]}] * 300,
    "speech": [chunk({"audio": {"transcript": "word ", "data": "A" * 9}})] * 300,
}


@pytest.mark.more(rows=4)
@pytest.mark.parametrize("name", UNCOUNTED)
@pytest.mark.parametrize("stream", [True, False])
def test_whatever_a_model_wrote_counts_if_its_server_does_not_count_it(
    running: Running, server: Make, name: str, stream: bool
) -> None:
    running.serve(alpha := server("alpha"), price=Price(1.0, 2.0))
    events = UNCOUNTED[name]
    if stream:
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    else:  # the last chunk has the usage, the others each a choice
        choices = [choice for event in events for choice in event.get("choices", ())]
        body = json.dumps({"choices": choices, "usage": events[-1].get("usage")}).encode()
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    alpha.raw = head % (kind, len(body)) + body
    running.limit(tokens=300)
    asked = ask("Hi") | {"stream": stream}
    assert [running.post(asked).status_code for _ in range(2)] == [200, 429]
    attributes = span_of(running.records(1)[0]).attributes
    assert "gen_ai.usage.output_tokens" not in attributes, "nobody counted them"
    assert "gen_ai.usage.cost" not in attributes
    assert "tokens-unknown" in attributes["langfuse.trace.tags"]


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_to_be_asked_for_usage_is_asked_without(
    running: Running, server: Make, status: int
) -> None:
    running.serve(alpha := server("alpha"), price=Price(1.0, 2.0))
    alpha.counts, alpha.refuses_with = "refuses", status
    for _ in range(2):
        chunks = list(running.client().chat.completions.create(**ask("stream 40"), stream=True))
        assert len(chunks) == 42 and all(chunk.choices for chunk in chunks)
    assert ["stream_options" in body for body in alpha.asked] == [True, False, False]
    first, second = (span_of(record).attributes for record in running.records(2))
    for attributes in (first, second):
        assert not [name for name in attributes if name.startswith("gen_ai.usage")]
        assert attributes["langfuse.trace.tags"] == ["tokens-unknown"]


def test_a_request_that_is_wrong_itself_gets_the_answer_to_what_was_sent(
    running: Running, server: Make
) -> None:
    running.serve(alpha := server("alpha"))
    refused = running.post(ask("status 400") | {"stream": True})
    assert refused.status_code == 400 and refused.json()["error"]["message"] == "alpha refuses"
    assert ["stream_options" in body for body in alpha.asked] == [True, False]
    assert running.post(ask("stream 3") | {"stream": True}).status_code == 200
    assert running.post(ask("status 400") | {"stream": True}).status_code == 400
    assert ["stream_options" in body for body in alpha.asked[2:]] == [
        True,
        True,
    ], "it is known to count"


def test_what_a_client_got_before_it_left_is_counted(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    running.limit(tokens=100)
    stream = running.client().chat.completions.create(**ask("hang after 60"), stream=True)
    for _ in range(60):
        next(stream)
    stream.close()
    eventually(lambda: running.post(ask("Hi")).status_code == 429)


def test_answers_at_a_time(running: Running, server: Make) -> None:
    running.serve(server("alpha"))
    running.limit(at_once=1)
    stream = running.client().chat.completions.create(**ask("hang after 2"), stream=True)
    next(stream)
    assert running.post(ask("Hi")).status_code == 429
    stream.close()
    eventually(lambda: running.post(ask("Hi")).status_code == 200)
    assert len(list(running.client().chat.completions.create(**ask("stream 20"), stream=True))) > 20
    eventually(lambda: running.post(ask("Hi")).status_code == 200)


def test_a_client_that_leaves_stops_the_server(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"))
    alpha.gap_s = 0.02
    stream = running.client().chat.completions.create(**ask("stream 5000"), stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    eventually(lambda: alpha.left == 1 and not alpha.open)
    (noted,) = running.records(1)
    span = span_of(noted)
    assert (
        noted.ended == "left"
        and span.status_code == 0
        and "alpha" in span.attributes["gen_ai.output.messages"]
    )
    eventually(lambda: running.post(ask("Hi")).status_code == 200)


def test_a_session_stays_with_one_server(running: Running, server: Make) -> None:
    running.serve(server("alpha"), server("beta"), server("gamma"))

    def who(session: str) -> str:
        return running.post(ask("Hi"), headers={"X-Session-Id": session}).json()["choices"][0][
            "message"
        ]["content"]

    found = {session: {who(session) for _ in range(3)} for session in map(str, range(12))}
    assert all(len(names) == 1 for names in found.values())
    assert len(set.union(*found.values())) > 1


def test_another_server_answers_where_one_is_gone(running: Running, server: Make) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.serve(alpha, beta)
    alpha.kill()
    for stream in (False, True):
        answers = [running.post(ask("stream 2") | {"stream": stream}) for _ in range(4)]
        assert all(answer.status_code == 200 and "beta" in answer.text for answer in answers)
    beta.kill()
    answer = running.post(ask("Hi"))
    assert answer.status_code == 502 and answer.json()["error"]["code"] == "upstream_unreachable"
    assert span_of(running.records(9)[-1]).status_code == 2


def test_another_server_answers_where_one_is_busy(running: Running, server: Make) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.serve(alpha, beta)
    alpha.busy = True
    assert all("beta" in running.post(ask("Hi")).text for _ in range(4)) and alpha.asked
    beta.busy = True
    assert running.post(ask("Hi")).status_code == 503  # the last one's answer, as it is


def test_nothing_is_asked_twice_once_the_client_has_heard_something(
    running: Running, server: Make
) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.serve(alpha, beta)
    with pytest.raises(openai.APIError, match="broke its answer off"):
        list(running.client().chat.completions.create(**ask("die after 3"), stream=True))
    assert len(alpha.asked) + len(beta.asked) == 1
    (noted,) = running.records(1)
    span = span_of(noted)
    assert (
        noted.ended == "broken"
        and span.status_code == 2
        and span.attributes["gen_ai.output.messages"].count("a ") == 3
    )


def test_a_stream_that_ends_before_its_answer_does_is_broken(
    running: Running, server: Make
) -> None:
    running.serve(server("alpha"))
    with pytest.raises(openai.APIError, match="ended before the answer was complete"):
        list(running.client().chat.completions.create(**ask("half 3"), stream=True))
    assert running.records(1)[0].ended == "broken"


def raw(text: str, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}content-length:"
        f" {len(text)}\r\n\r\n{text}".encode()
    )


@pytest.mark.parametrize(
    "sent",
    [
        raw("", "302 Found", more="location: http://127.0.0.1:1/\r\n"),
        raw("", kind="text/event-stream"),
    ],
    ids=["a redirect", "an empty stream"],
)
def test_what_is_no_answer_is_followed_by_another_server(
    running: Running, server: Make, sent: bytes
) -> None:
    alpha, beta = server("alpha"), server("beta")
    alpha.raw = sent
    running.serve(alpha)
    refused = running.post(ask("Hi"))
    assert refused.status_code == 502 and "location" not in refused.headers
    running.serve(alpha, beta)
    assert all("beta" in running.post(ask("Hi")).text for _ in range(4))


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    "sent",
    [
        raw(""),
        raw("<html>", kind="text/html"),
        raw("{}"),
        raw('{"choices": []}'),
        raw('{"error": {"message": "no memory"}}'),
        raw(
            '{"error": {"message": "no memory"}, "choices": [{"message": {"role": "assistant",'
            ' "content": "x"}}]}'
        ),
        raw(
            'data: {"error": {"message": "no memory"}}\n\ndata: [DONE]\n\n',
            kind="text/event-stream",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_200_without_an_answer_is_a_failure_and_no_user_gets_a_candidates(
    running: Running, server: Make, sent: bytes, stream: bool
) -> None:
    """It passes through unchanged, and the version's run has failed; where a candidate sends it,
    the current version answers.
    """
    alpha, beta = server("alpha"), server("beta")
    beta.raw = sent
    running.serve(beta)
    assert running.post(ask("Hi") | {"stream": stream}).content == sent.partition(b"\r\n\r\n")[2]
    assert span_of(running.records(1)[0]).status_message.startswith("HTTP 200")
    running.try_out(alpha, beta)
    answer = running.post(ask("stream 1") | {"stream": stream})
    assert answer.headers["x-flywheel-version"] == "v1" and "alpha" in answer.text
    (tried,) = [one for one in running.records(3) if one.lane]
    assert not tried.served and span_of(tried).status_message.startswith("HTTP 200")


@pytest.mark.parametrize("bounds", [Bounds(first_s=0.3, whole_s=0.3, idle_s=0.3)])
def test_a_server_that_hangs_is_given_up(running: Running, server: Make) -> None:
    running.serve(alpha := server("alpha"))
    assert running.post(ask("hang")).status_code == 504
    assert running.post(ask("hang") | {"stream": True}).status_code == 504
    running.bound(first_s=300)
    with pytest.raises(openai.APIError, match="nothing more came"):
        list(running.client().chat.completions.create(**ask("hang after 2"), stream=True))
    assert [noted.ended for noted in running.records(3)] == ["late"] * 3
    eventually(lambda: alpha.left == 3)


def test_an_error_in_the_stream_passes_through_and_is_a_failure(
    running: Running, server: Make
) -> None:
    running.serve(server("alpha"))
    with pytest.raises(openai.APIError, match="out of memory"):
        list(running.client().chat.completions.create(**ask("error 2"), stream=True))
    assert "out of memory" in span_of(running.records(1)[0]).status_message


def test_a_prompt_version_stands_in_front(running: Running, server: Make) -> None:
    shown = {
        "type": "function",
        "function": {"name": "weather", "description": "Better words", "parameters": {}},
    }
    examples = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    prompt = {
        "system_prompt": "New.",
        "examples": examples,
        "tools": [shown],
        "temperature": 0.1,
        "max_new_tokens": 9,
    }
    running.serve(alpha := server("alpha"), prompt=prompt)
    body = ask("Hi") | {"tools": [TOOL], "temperature": 1}
    body["messages"].insert(0, {"role": "system", "content": "Old."})
    running.post(body)
    (asked,) = alpha.asked
    assert asked["messages"] == [
        {"role": "system", "content": "New."},
        *examples,
        {"role": "user", "content": "Hi"},
    ]
    assert asked["tools"] == [shown] and asked["temperature"] == 0.1 and asked["max_tokens"] == 9
    running.post({"model": "production", "input": "Hi", "instructions": "Old."}, "/v1/responses")
    assert alpha.asked[1]["instructions"] == "New." and alpha.asked[1]["max_output_tokens"] == 9
    assert [item["content"] for item in alpha.asked[1]["input"]] == ["1", "2", "Hi"]


def test_a_channel_that_nothing_serves_says_why(running: Running, server: Make) -> None:
    running.serve(version="v3")
    answer = running.post(ask("Hi"))
    assert (
        answer.status_code == 503
        and answer.headers["retry-after"]
        and answer.json()["error"]["code"] == "not_served"
    )


@pytest.mark.parametrize(
    "only_usage",
    [
        b'data: {"choices":[],"usage":{"x":1}}\n\n',
        b'data: {"id": "1", "usage": {"x": 1, "d": {}}, "choices": [ ]}\n\n',
        b': note\nid: 7\ndata:{"choices": [],\ndata:  "usage": {"x": 1}}\r\n\r\n',
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_out_whole_wherever_they_were_cut(size: int, only_usage: bytes) -> None:
    events = [
        b'data: {"choices":[{"a":"\\"choices\\":[]"}],"usage":null}\n\n',
        only_usage,
        b'data: {"choices":[],"prompt_filter_results":[],"usage":null}\n\ndata: [DONE]\n\n',
    ]
    text = b"".join(events)
    for strips, wanted in ((False, text), (True, events[0] + events[2])):
        pieces = Pieces(strips)
        out = [pieces.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(out) == wanted and pieces.rest == b"" and pieces.ended
        assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in out if piece)
