"""Models behind OpenAI's Responses API: the `openai` package's types are the contract of what is
sent and what is read.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.registry.model_server import Sent, chat, serving
from tests.workers.test_chat_contract import BODIES, CALL, SCHEMA, TOOL, USER, Recorder, server
from tests.workers.test_workplace_assistant import assistant
from workers.lib.chat_client import ChatClient, ChatError, ChatServer
from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import load
from workers.lib.environments.workplace_assistant import own_tasks
from workers.lib.messages import as_completion, text_of
from workers.lib.policies import PolicyError, Reply
from workers.lib.prices import Price
from workers.lib.rollouts import Finished, Limits, rollout
from workers.lib.specs.engines import Server

__all__ = ["server"]
PATH = ("POST", "/v1/responses")
REQUEST = TypeAdapter(ResponseCreateParamsNonStreaming)
ROOT = Path(__file__).resolve().parents[2]


def text(*parts: str, **more: Any) -> dict:
    content = [{"type": "output_text", "text": part, "annotations": []} for part in parts]
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": content,
    } | more


def refusal(words: str) -> dict:
    return text(content=[{"type": "refusal", "refusal": words}])


def call(name: str, arguments: Any, call_id: str = "c1") -> dict:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def thought(summary: str = "", words: str = "") -> dict:
    item: dict = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
    }
    return item | ({"content": [{"type": "reasoning_text", "text": words}]} if words else {})


def response(*output: Any, **more: Any) -> dict:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 41,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": "completed",
        "model": "m",
        "output": list(output),
        "usage": usage,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
    } | more


def incomplete(*output: Any, reason: str = "max_output_tokens") -> dict:
    return response(*output, status="incomplete", incomplete_details={"reason": reason})


def failure(code: str, message: str = "Sorry.") -> dict:
    return response(status="failed", error={"code": code, "message": message}, usage=None)


def at(base_url: str, **changes: Any) -> ChatServer:
    given = {"protocol": "responses", "allow_private": True, "tries": 3, "droppable": ()} | changes
    return ChatServer(base_url, "m", **given)


def ask(base_url: str, body: dict | None = None, **changes: Any) -> dict:
    with ChatClient(at(base_url, **changes), sleep=lambda seconds: None) as client:
        return client.ask(body or {"messages": [USER]})


# What is sent


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
FILE = {
    "type": "file",
    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
}
SENT: dict[str, dict] = {
    name: BODIES[name] for name in ("plain", "tools", "results", "reasoning", "parts", "schema")
} | {
    "sampling": {
        "messages": [USER],
        "temperature": 0.7,
        "top_p": 0.95,
        "max_tokens": 64,
        "seed": 7,
    },
    "logprobs": {"messages": [USER], "logprobs": True},
    "picture": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE, FILE]}
        ]
    },
    "thoughts": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "reasoning", "text": "Hm."}]},
            USER,
        ]
    },
    "a JSON object": {"messages": [USER], "response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("body", SENT.values(), ids=SENT)
def test_what_is_sent_is_what_the_openai_package_sends(server: Recorder, body: dict) -> None:
    server.answer = (200, json.dumps(response(text("4"))).encode())
    ask(server.url, body, key_variable="A_KEY")
    mine = server.seen[0]["body"]
    REQUEST.validate_python(mine)
    with openai.OpenAI(base_url=server.url, api_key="sk-of-a-test", max_retries=0) as client:
        client.responses.create(**mine)
    assert server.seen[0] == server.seen[1] and server.seen[0]["path"] == "/v1/responses"
    assert (
        mine["store"] is False
        and mine["model"] == "m"
        and not mine.keys() & {"messages", "seed", "max_tokens"}
    )


def test_calls_and_results_are_items_and_tools_are_flat(server: Recorder) -> None:
    server.answer = (200, json.dumps(response(text("4"))).encode())
    ask(server.url, BODIES["results"] | {"tools": [TOOL], "max_tokens": 64})
    body = server.seen[0]["body"]
    assert body["input"] == [
        {"role": "system", "content": "Be short."},
        USER,
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "add",
            "arguments": CALL["function"]["arguments"],
        },
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ]
    assert body["max_output_tokens"] == 64
    assert body["tools"] == [
        {
            "type": "function",
            "name": "add",
            "description": "Adds.",
            "parameters": SCHEMA,
            "strict": True,
        }
    ]


def test_a_default_that_the_model_refuses_is_left_out_and_no_other_value() -> None:
    refused = {"error": {"message": "Unsupported parameter: 'temperature'", "param": "temperature"}}
    answers = {True: (400, refused), False: (200, response(text("4")))}
    with serving({PATH: lambda body: answers["temperature" in body]}) as live:
        assert (
            ask(live.base, {"messages": [USER], "temperature": 1.0})["choices"][0]["message"][
                "content"
            ]
            == "4"
        )
        with pytest.raises(ChatError, match="Unsupported parameter"):
            ask(live.base, {"messages": [USER], "temperature": 0.5})


# What is read

READ: dict[str, tuple[dict, dict, str]] = {
    "text": (response(text("4 “vier” 🧮")), {"content": "4 “vier” 🧮"}, "stop"),
    "parts": (response(text("4, ", "or so")), {"content": "4, or so"}, "stop"),
    "nothing": (response(), {"content": None}, "stop"),
    "refusal": (response(refusal("No.")), {"content": None, "refusal": "No."}, "stop"),
    "reasoning": (
        response(thought("I add."), text("4")),
        {"content": "4", "reasoning_content": "I add."},
        "stop",
    ),
    "reasoning shown": (
        response(thought(words="2 + 2"), text("4")),
        {"content": "4", "reasoning_content": "2 + 2"},
        "stop",
    ),
    "call": (
        response(thought(), call("add", '{"a": 2}')),
        {"content": None, "calls": [("c1", "add", '{"a": 2}')]},
        "tool_calls",
    ),
    "text and calls": (
        response(text("Let me see."), call("add", "{}"), call("add", "{}", "c2")),
        {"content": "Let me see.", "calls": [("c1", "add", "{}"), ("c2", "add", "{}")]},
        "tool_calls",
    ),
    "bad arguments": (
        response(call("add", '{"a": ')),
        {"content": None, "calls": [("c1", "add", '{"a": ')]},
        "tool_calls",
    ),
    "commentary": (
        response(text("First I add.", phase="commentary"), text("4", phase="final_answer")),
        {"content": "4"},
        "stop",
    ),
    "only commentary": (
        response(text("I look.", phase="commentary"), call("add", "{}")),
        {"content": "I look.", "calls": [("c1", "add", "{}")]},
        "tool_calls",
    ),
    "cut": (incomplete(text("4 and")), {"content": "4 and"}, "length"),
    "cut in its thoughts": (
        incomplete(thought("I add")),
        {"content": None, "reasoning_content": "I add"},
        "length",
    ),
    "cut in a call": (
        incomplete(call("add", '{"a"')),
        {"content": None, "calls": [("c1", "add", '{"a"')]},
        "length",
    ),
    "filtered": (
        incomplete(text("4"), reason="content_filter"),
        {"content": "4"},
        "content_filter",
    ),
    "other items": (
        response(
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            },
            text("4"),
        ),
        {"content": "4"},
        "stop",
    ),
}


@pytest.mark.parametrize(("sent", "message", "finish"), READ.values(), ids=READ)
def test_an_answer_by_the_openai_packages_types_is_read(
    sent: dict, message: dict, finish: str
) -> None:
    theirs = Response.model_validate(sent, strict=True)
    found = as_completion(sent)
    choice = found["choices"][0]
    said = choice["message"]
    calls = [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in said.get("tool_calls", [])
    ]
    assert (said["content"], calls, choice["finish_reason"]) == (
        message["content"],
        message.get("calls", []),
        finish,
    )
    assert (said.get("refusal"), said.get("reasoning_content")) == (
        message.get("refusal"),
        message.get("reasoning_content"),
    )
    assert found["usage"] == {
        "prompt_tokens": theirs.usage.input_tokens,
        "completion_tokens": theirs.usage.output_tokens,
    }  # type: ignore[union-attr]
    if "commentary" not in str(sent):
        assert (said["content"] or "") == theirs.output_text
    assert calls == [
        (one.call_id, one.name, one.arguments)
        for one in theirs.output
        if one.type == "function_call"
    ]


LENIENT: dict[str, tuple[dict, str, list]] = {
    "an item of an unknown type": (
        {"output": [{"type": "hologram", "data": [1]}, text("4")]},
        "4",
        [],
    ),
    "only unknown items": ({"output": [{"type": "hologram"}]}, "", []),
    "no types": ({"output": [{"role": "assistant", "content": "4"}]}, "4", []),
    "an unknown part": (
        {"output": [text("4", content=[{"type": "smell"}, {"type": "output_text", "text": "4"}])]},
        "4",
        [],
    ),
    "arguments as an object": ({"output": [call("add", {"a": 2})]}, "", ['{"a": 2}']),
    "arguments as a list": ({"output": [call("add", [])]}, "", ["[]"]),
    "no arguments": ({"output": [call("add", None)]}, "", ["{}"]),
    "its own tool's result": (
        {"output": [{"type": "function_call_output", "call_id": "x", "output": "5"}, text("4")]},
        "4",
        [],
    ),
    "no usage": ({"output": [text("4")], "usage": "much"}, "4", []),
    "no reason": ({"output": [text("4")], "status": "incomplete"}, "4", []),
}


@pytest.mark.parametrize(("sent", "words", "arguments"), LENIENT.values(), ids=LENIENT)
def test_what_small_servers_leave_out_or_add_is_borne(
    sent: dict, words: str, arguments: list
) -> None:
    choice = as_completion(sent)["choices"][0]
    said = choice["message"]
    given = [one["function"]["arguments"] for one in said.get("tool_calls", [])]
    assert (text_of(said), given) == (words, arguments)
    assert (choice["finish_reason"] == "length") == (sent.get("status") == "incomplete")


# Servers that fail, by the policy


def cut(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (2 * len(body), body)


def answered(
    sent: Sent, *, tools: bool = True, most: int | None = None, **engine: Any
) -> tuple[Reply, list]:
    """The policy's reply to one question; what the server was asked."""
    messages = engine.pop("messages", [USER])
    with serving({PATH: sent}) as live:

        async def run() -> Reply:
            at = Server(
                base_url=live.base, model="m", allow_private=True, dialect="responses", **engine
            )
            async with ChatPolicy(at, Sampling(max_new_tokens=64)) as policy:
                policy.client.sleep = _no_wait  # type: ignore[assignment]
                return await policy.answer(messages, [TOOL] if tools else [], seed=1, most=most)

        return asyncio.run(run()), [json.loads(body) for *_, body in live.asked]


async def _no_wait(seconds: float) -> None:
    pass


WHOLE = json.dumps(response(text("4"))).encode()
BAD: dict[
    str, tuple[Sent, str, int, str]
] = {  # what is sent, what is said, how often it is asked, the limit it hit
    "cut body": (cut(WHOLE), "within its answer", 6, ""),
    "cut JSON": ((200, WHOLE[:-9]), "not an answer of the Responses API", 1, ""),
    "a web page": ((200, b"<html>"), "not an answer of the Responses API", 1, ""),
    "a list": ((200, []), "not an answer of the Responses API", 1, ""),
    "a chat completion": (
        (200, {"choices": [{"message": {"content": "4"}}]}),
        "not an answer of the Responses API",
        1,
        "",
    ),
    "output that is no list": (
        (200, {"output": "4"}),
        "not an answer of the Responses API",
        1,
        "",
    ),
    "items that are no objects": ((200, {"output": [4]}), "must be a list of objects", 1, ""),
    "in the background": ((200, response(status="queued")), "its status is “queued”", 1, ""),
    "cancelled": ((200, response(status="cancelled")), "its status is “cancelled”", 1, ""),
    "a failure of its own": (
        (200, failure("server_error", "Boom.")),
        "HTTP 200 with an error: server_error: Boom.",
        6,
        "",
    ),
    "busy": ((200, failure("rate_limit_exceeded")), "rate_limit_exceeded", 6, ""),
    "failed without a word": ((200, response(status="failed")), "it failed", 6, ""),
    "an error as text": ((200, {"error": "overloaded"}), "overloaded", 6, ""),
    "a refused prompt": (
        (200, failure("invalid_prompt", "Not this.")),
        "refused the request",
        1,
        "refused",
    ),
    "too long": (
        (200, failure("context_length_exceeded")),
        "context_length_exceeded",
        1,
        "context",
    ),
    "HTTP 400": ((400, {"error": {"message": "bad tool"}}), "bad tool", 1, "refused"),
    "no such API": ((404, {}), "no Responses API", 1, ""),
    "HTTP 503": ((503, {}), "HTTP 503", 6, ""),
}


@pytest.mark.parametrize(("sent", "says", "tries", "limit"), BAD.values(), ids=BAD)
def test_a_bad_server_is_said_and_asked_again_only_where_that_may_help(
    sent: Sent, says: str, tries: int, limit: str
) -> None:
    asked: list[dict] = []

    def counted(body: dict) -> Any:
        asked.append(body)
        return sent

    later = [USER, {"role": "assistant", "content": "Hm."}, USER]
    for messages in (
        [USER],
        later,
    ):  # what a first request's refusal counts for is the rollout's to say
        asked.clear()
        with pytest.raises(PolicyError, match=says) as error:
            answered(counted, messages=messages)
        assert (error.value.limit, len(asked)) == (limit, tries)


def test_a_reply_has_calls_tokens_and_no_thoughts() -> None:
    reply, asked = answered((200, incomplete(thought("Secret."), text("Hm."), call("add", '{"a"'))))
    assert reply.message["content"] == "Hm." and "Secret" not in json.dumps(reply.message)
    assert reply.message["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"a"',
    }, "as it was written"
    assert (reply.prompt_tokens, reply.output_tokens, reply.truncated) == (11, 30, True)
    assert (
        asked[0]["max_output_tokens"] == 64
        and asked[0]["temperature"] == 1.0
        and asked[0]["top_p"] == 1.0
    )
    assert answered((200, response(refusal("No."))))[0].text == "No."


@pytest.mark.parametrize(("left", "asked"), [(None, 64), (3, 16), (40, 40), (90, 64)])
def test_no_fewer_tokens_are_asked_for_than_the_api_takes(left: int | None, asked: int) -> None:
    assert answered((200, response(text("4"))), most=left)[1][0]["max_output_tokens"] == asked


def test_limits_on_tokens_and_money_hold() -> None:
    price = {"price": Price(0.0, 1_000_000.0), "most_usd": 200.0}
    with serving({PATH: (200, response(text("4")))}) as live:

        async def run(**limits: Any) -> list:
            engine = Server(
                base_url=live.base,
                model="m",
                allow_private=True,
                dialect="responses",
                concurrency=1,
                **limits,
            )  # type: ignore[arg-type]
            async with ChatPolicy(engine, Sampling(max_new_tokens=64)) as policy:
                asked = [policy.answer([USER], [], seed=seed) for seed in range(60)]
                done = await asyncio.gather(*asked, return_exceptions=True)
                assert (
                    0
                    < policy.meter.account.used.tokens
                    == 41 * sum(isinstance(one, Reply) for one in done)
                )
                return [str(one) for one in done if not isinstance(one, Reply)]

        assert (
            "limit of 300 tokens allows no further question" in asyncio.run(run(most_tokens=300))[0]
        )
        assert "limit of $200 allows no further question" in asyncio.run(run(**price))[0]


def test_a_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-of-a-test")
    with serving({PATH: (200, failure("invalid_prompt", "sk-of-a-test is odd"))}) as live:
        with pytest.raises(ChatError) as error:
            ask(live.base, key_variable="A_KEY")
        assert (
            "[key] is odd" in str(error.value)
            and "sk-of" not in str(error.value)
            and error.value.paid
        )
        assert "Authorization: Bearer sk-of-a-test" in live.asked[0][2]
        with pytest.raises(ChatError, match="FLYWHEEL_ALLOW_PRIVATE_URLS"):
            ask(live.base, allow_private=False)


# Whole episodes

TASK = own_tasks()[0]
SPEC: dict = {
    "kind": "builtin",
    "name": "workplace_assistant",
    "harness": {"temperature": 0.0},
    "verifier": {},
}


def desk(body: dict) -> tuple[int, dict]:
    """Does what the first task asks for: a call with broken arguments, the right call, then words.
    Knows its turn from the items.
    """
    REQUEST.validate_python(body)
    results = [item for item in body["input"] if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in results] == [
        item["call_id"] for item in body["input"] if item.get("type") == "function_call"
    ]
    (gold,) = TASK["expected"]["calls"]
    said: list[list[dict]] = [
        [thought("I answer."), call(gold["tool"], '{"email_id": ')],
        [text("Again."), call(gold["tool"], json.dumps(gold["args"]), "c2")],
        [text("Done.")],
    ]
    return 200, response(*said[len(results)])


def played(sent: Sent) -> Finished:
    with serving({PATH: sent}) as live:

        async def run() -> Finished:
            engine = Server(base_url=live.base, model="m", allow_private=True, dialect="responses")
            async with ChatPolicy(engine, Sampling(max_new_tokens=64)) as policy:
                return await rollout(policy, load(SPEC).open(TASK), Limits())

        return asyncio.run(run())


def test_an_episode_of_several_turns_with_tools_is_played() -> None:
    done = played(desk)
    assert (done.score.reward, done.stop_reason, done.output) == (1, "stop", "Done."), done.score
    assert [message["role"] for message in done.rollout.messages] == ["assistant", "tool"] * 2 + [
        "assistant"
    ]
    broken = done.rollout.messages[0]
    assert broken["tool_calls"][0]["function"]["arguments"] == '{"email_id": ', (
        "as in a chat completion"
    )
    assert "not a JSON object" in done.rollout.messages[1]["content"]
    assert (
        done.rollout.stats["input_tokens"] == 33 and done.rollout.messages[2]["content"] == "Again."
    )


def test_the_same_episode_by_chat_completions_has_the_same_messages() -> None:
    """Only the wire differs: what is kept of the two is the same."""
    (gold,) = TASK["expected"]["calls"]
    turns = [
        assistant((gold["tool"], '{"email_id": ')),
        assistant((gold["tool"], gold["args"]), text="Again."),
        assistant(text="Done."),
    ]
    for number, turn in enumerate(turns[:2], 1):
        turn["tool_calls"][0]["id"] = f"c{number}"

    def by_chat(body: dict) -> tuple[int, dict]:
        return chat(turns[sum(message["role"] == "tool" for message in body["messages"])])

    with serving({("POST", "/v1/chat/completions"): by_chat}) as live:

        async def run() -> Finished:
            async with ChatPolicy(
                Server(base_url=live.base, model="m", allow_private=True), Sampling()
            ) as policy:
                return await rollout(policy, load(SPEC).open(TASK), Limits())

        assert asyncio.run(run()).rollout.messages == played(desk).rollout.messages


def test_an_evaluations_child_asks_a_responses_server(tmp_path: Path) -> None:
    """The program itself, from its spec to its last line."""
    with serving({PATH: desk}) as live:
        spec = {
            "kind": "evaluate",
            "seed": 1,
            "samples_per_task": 2,
            "out_dir": str(tmp_path),
            "model": {"base": "m"},
            "engine": {
                "kind": "openai",
                "base_url": live.base,
                "model": "m",
                "dialect": "responses",
                "allow_private": True,
            },
            "environment": SPEC | {"slug": "office", "version": 1, "hash": "x"},
            "tasks": [TASK],
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "workers.evaluate", str(tmp_path / "spec.json")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        asked = [path for _, path, *_ in live.asked]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    samples = [row for row in rows if row["type"] == "sample"]
    assert done.returncode == 0 and rows[-1]["type"] == "result", (
        done.stdout[-2000:] + done.stderr[-2000:]
    )
    assert [
        (row["reward"], row["turns"], row["input_tokens"], row["output_tokens"]) for row in samples
    ] == [(1, 3, 33, 90)] * 2
    assert asked == ["/v1/responses"] * 6
