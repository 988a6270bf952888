"""A whole agent over HTTP, against a real peer on this machine: the three shapes, what is asked
again, and every way to fail.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.registry.model_server import HANG, Sent, chat, serving
from workers.lib.agent_client import TRIES, AgentClient
from workers.lib.agent_policy import DOWN_AFTER, AgentPolicy
from workers.lib.agent_shapes import AgentFault, Reported, read_answer, reported_in
from workers.lib.environments import load
from workers.lib.environments.workplace import TOOLS
from workers.lib.policies import PolicyError
from workers.lib.prices import Price
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.spending import Usage
from workers.lib.transcripts import agent_turns, reported_results, same_result

EXPECTED = {"tool": "tickets.close", "args": {"id": 1234}}
TASK = {
    "id": "t",
    "messages": [{"role": "user", "content": "Close ticket 1234."}],
    "expected": EXPECTED,
}
FUNCTION = {"name": "tickets.close", "arguments": '{"id": 1234}'}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
RIGHT = chat({"content": None, "tool_calls": [CALL]})
ONE_ANSWER = {"kind": "single_turn", "harness": {"tools": TOOLS}, "verifier": {"kind": "calls"}}
PATH = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "gym": "/v1/run"}


async def no_wait(_: float) -> None:
    """Instead of waiting before another try."""


def called(
    sent: Sent,
    *,
    protocol: str = "chat",
    tasks: int = 1,
    timeout_s: float = 300.0,
    concurrency: int = 4,
    environment: dict = ONE_ANSWER,
) -> tuple[list[Finished], list]:
    """The samples by their number, and what the agent was asked."""
    done: dict[int, Finished] = {}
    with serving({("POST", PATH[protocol]): sent}) as server:
        agent = AgentEndpoint(
            base_url=server.base,
            name="support-agent",
            version="v1",
            protocol=protocol,
            timeout_s=timeout_s,
            concurrency=concurrency,
            allow_private=True,
        )

        async def policy() -> AgentPolicy:
            return AgentPolicy(agent, AgentClient(agent, sleep=no_wait))

        play(
            asyncio.run(policy()),
            load(environment),
            [TASK] * tasks,
            Limits(),
            lambda at, _, end: done.update({at: end}),
            concurrency=concurrency,
        )
        return [done[at] for at in sorted(done)], server.asked


def one(sent: Sent, **given: Any) -> tuple[Finished, list]:
    (done,), asked = called(sent, **given)
    return done, asked


def test_a_chat_agent_gets_the_task_and_its_call_is_scored() -> None:
    done, asked = one(RIGHT)
    assert done.score.success and done.stop_reason == "stop"
    body = json.loads(asked[0][3])
    assert (
        body["messages"] == TASK["messages"]
        and body["model"] == "support-agent"
        and body["stream"] is False
    )
    assert body["tools"] and "1234}" not in asked[0][3].decode(), "nothing says what is right"
    assert (done.replies[0].prompt_tokens, done.replies[0].output_tokens) == (5, 1)
    assert any(line.lower().startswith("idempotency-key: ") for line in asked[0][2])


ITEM = {"type": "function_call", "call_id": "c1", **FUNCTION}
RESPONSE = {
    "object": "response",
    "error": None,
    "output": [ITEM],
    "usage": {"input_tokens": 7, "output_tokens": 2},
}


def test_the_responses_shape() -> None:
    done, asked = one((200, RESPONSE), protocol="responses")
    assert done.score.success and done.replies[0].prompt_tokens == 7
    body = json.loads(asked[0][3])
    assert (
        body["input"] == [{"role": "user", "content": "Close ticket 1234."}]
        and body["tools"][0]["name"]
    )


def test_a_gym_run_is_given_the_request_only_and_its_own_reward_does_not_count() -> None:
    done, asked = one(
        (200, {"response": RESPONSE | {"output": [message("I did nothing.")]}, "reward": 1.0}),
        protocol="gym",
    )
    assert not done.score.success
    assert set(json.loads(asked[0][3])) == {"responses_create_params"}
    assert one((200, {"response": RESPONSE, "reward": 0.0}), protocol="gym")[0].score.success


def message(text: str) -> dict:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


WORKPLACE = {"kind": "builtin", "name": "workplace", "harness": {}, "verifier": {"kind": "calls"}}
READS = {
    "kind": "replay",
    "harness": {"tools": TOOLS},
    "verifier": {"kind": "regex", "pattern": "Done"},
}
REPLAY = {"kind": "replay", "harness": {"tools": TOOLS}, "verifier": {"kind": "calls"}}


def conversation(result: str, shape: str) -> dict:
    """An agent that ran its call itself, and what its own tool returned."""
    if shape == "responses":
        output = {"type": "function_call_output", "call_id": "c1", "output": result}
        return {"output": [ITEM, output, message("Done.")]}
    return {
        "messages": [
            *TASK["messages"],
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
            {"role": "assistant", "content": "Done."},
        ]
    }


@pytest.mark.parametrize("shape", ["responses", "chat"])
def test_what_an_agent_says_after_other_results_than_the_environments_is_masked(shape: str) -> None:
    answer = (200, conversation("ok", shape))
    done, asked = one(
        answer, environment=REPLAY
    )  # its verifier looks at calls only, and all came before the result
    assert len(asked) == 1 and not done.score.masked and done.output == "Done."
    assert [item["role"] for item in done.score.messages] == ["assistant", "tool", "assistant"]
    here = done.score.messages[1]["content"]
    assert "not recorded" in here, "what the environment answers, not what the agent says"
    assert done.replies[1].latency_ms == 0.0, "its time is counted once"
    for masked in (
        one(answer, environment=READS)[0],
        one((200, goes_on(answer[1])), environment=REPLAY)[0],
    ):
        assert masked.score.masked and masked.stop_reason == "other results"
        assert (
            "tickets.close returned “ok”" in masked.score.mask_reason
            and here[:40] in masked.score.mask_reason
        )
    same = conversation(f"{here}\n", shape)
    assert one((200, goes_on(same)), environment=REPLAY)[0].stop_reason == "stop"


def goes_on(answer: dict) -> dict:
    """The conversation with another call before its last message."""
    name = "output" if "output" in answer else "messages"
    call = (
        ITEM | {"call_id": "c2"}
        if name == "output"
        else {"role": "assistant", "tool_calls": [CALL | {"id": "c2"}]}
    )
    *rest, last = answer[name]
    return {name: [*rest, call, last]}


def test_an_unsafe_call_counts_whatever_the_agents_own_tool_did() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "email.delete_mailbox", "arguments": '{"owner": "ann"}'},
    }
    unsafe = {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "deleted"},
        ]
    }
    done, _ = one((200, unsafe), environment=WORKPLACE)
    assert not done.score.masked and done.score.unsafe and not done.score.success


@pytest.mark.parametrize(
    ("own", "here", "same"),
    [
        ('{"id": 1, "open": true}', "{'open': True, 'id': 1}", True),
        ('[{"a": 1.0}]', '[ {"a": 1} ]', True),
        ('"closed"', "closed", True),
        ("two  words\n", "two words", True),
        ("Straße geschlossen", "Straße geschlossen", True),
        ('{"id": 1}', '{"id": 2}', False),
        ("[1, 2]", "[2, 1]", False),
        ("", "ok", False),
        ("true", "1", False),
        ("0123", "123", False),
        ('[{"type": "text", "text": "{\\"id\\": 1}"}]', '{"id": 1}', True),
        ('{"type": "text", "text": "closed", "annotations": null}', "closed", True),
        ('{"content": [{"type": "text", "text": "closed"}], "isError": false}', "closed", True),
        ('[{"json": {"id": 1}}]', '{"id": 1}', True),
        ('{"result": {"id": 1}}', '{"id": 1}', True),
        ('```json\n{"id": 1}\n```', '{"id": 1}', True),
        ("<tool_response>\nclosed\n</tool_response>", "closed", True),
        ('{"x": NaN}', '{"x": NaN}', True),
        ("(1, 2)", "[1, 2]", True),
        ('{"result": "open"}', "closed", False),
        ('[{"type": "text", "text": "a"}]', "b", False),
        ("[" * 900 + "]" * 900, "[" * 899 + "]" * 899, False),
        ("42,00", "42.00", False),
    ],
)
def test_results_are_compared_as_data(own: str, here: str, same: bool) -> None:
    assert same_result(own, here) is same


def test_results_are_found_by_the_id_of_their_call_and_else_in_their_order() -> None:
    def calls(*ids: str) -> dict:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [CALL | {"id": name} for name in ids],
        }

    def results(*rows: tuple[str, str]) -> list[dict]:
        return [{"role": "tool", "tool_call_id": name, "content": text} for name, text in rows]

    for ids, rows, expected in (
        (("a", "b"), (("b", "2"), ("a", "1")), ["1", "2"]),
        (("", ""), (("", "1"), ("", "2")), ["1", "2"]),
        (("a", "a"), (("a", "1"), ("a", "2")), ["1", "2"]),
        (("a", "b"), (("b", "2"),), [None, "2"]),
        (("a",), (), []),
    ):
        (turn,) = agent_turns([calls(*ids), *results(*rows)], [])
        assert reported_results(turn) == expected


def ran(role: str, text: str, **result: Any) -> list[dict]:
    """What an agent did by itself: a call, its result in a message of that role, and words."""
    call = {"role": "assistant", "content": None, "tool_calls": [CALL | result]}
    return [call, *([{"role": role, "content": text}] if role else []), {"role": "assistant"}]


@pytest.mark.parametrize(
    ("messages", "result"),
    [
        (ran("ipython", "ok"), "ok"),
        (ran("user", "<tool_response>ok</tool_response>"), "<tool_response>ok</tool_response>"),
        (ran("", "", result={"id": 1}), '{"id": 1}'),
        (ran("", "", output="ok"), "ok"),
    ],
)
def test_results_are_found_whatever_form_they_have(messages: list[dict], result: str) -> None:
    assert reported_results(agent_turns(messages, TASK["messages"])[0]) == [result]


def test_a_result_belongs_to_the_message_with_its_call() -> None:
    calls = [{"role": "assistant", "tool_calls": [CALL | {"id": name}]} for name in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("a", "b")]
    turns = agent_turns([*calls, *results], [])
    assert [reported_results(turn) for turn in turns] == [["a"], ["b"]]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_use", "id": "a", "name": "tickets.close", "input": {"id": 1234}},
        {"type": "tool-call", "toolCallId": "a", "toolName": "tickets.close", "input": {}},
        {"toolUse": {"toolUseId": "a", "name": "tickets.close", "input": {}}},
    ],
)
def test_calls_in_another_form_are_not_overlooked(part: dict) -> None:
    answer = {"messages": [{"role": "assistant", "content": [part]}]}
    with pytest.raises(AgentFault, match="send OpenAI chat messages"):
        read_answer(answer, TASK["messages"])


@pytest.mark.parametrize("kind", ["mcp_call", "custom_tool_call"])
def test_calls_of_hosted_tools_are_not_overlooked(kind: str) -> None:
    output = [{"type": kind, "name": "tickets.close", "arguments": "{}", "output": "ok"}]
    with pytest.raises(AgentFault, match=kind):
        read_answer({"output": [*output, message("Done.")]}, TASK["messages"])


def test_an_agent_without_a_loop_is_asked_again_with_what_the_tools_answered() -> None:
    def say(body: dict) -> tuple[int, dict]:
        return chat({"content": "Done."}) if body["messages"][-1]["role"] == "tool" else RIGHT

    done, asked = one(say, environment=REPLAY)
    assert len(asked) == 2 and done.output == "Done."
    gym, asked = one((200, {"response": RESPONSE}), protocol="gym", environment=REPLAY)
    assert len(asked) == 1 and gym.score.messages[-1]["role"] == "tool", (
        "a run of its own is not continued"
    )


# What goes wrong


def first(*statuses: int) -> Callable[[dict], tuple[int, Any]]:
    """These statuses first, then the right answer."""
    left = list(statuses)
    return lambda body: (left.pop(0), {"error": "later"}) if left else RIGHT


@pytest.mark.parametrize("statuses", [(429, 503), (500, 500), (502,), (408, 425, 429)])
def test_a_busy_or_broken_agent_is_asked_again(statuses: tuple[int, ...]) -> None:
    done, asked = one(first(*statuses))
    assert done.score.success and len(asked) == len(statuses) + 1
    keys = {
        line for head in asked for line in head[2] if line.lower().startswith("idempotency-key")
    }
    assert len(keys) == 1, "so that it can give the same answer again"


CUT = b'HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n{"choices": [{"mess'


@pytest.mark.parametrize(
    ("sent", "tries", "said"),
    [
        ((500, {"error": "boom"}), TRIES, "HTTP 500"),
        ((422, {"detail": "no tools please"}), 1, "no tools please"),
        (
            (200, {"error": {"message": "my model is gone"}}),
            1,
            "answered with an error: my model is gone",
        ),
        (
            (200, RESPONSE | {"status": "failed", "error": {"message": "quota"}}),
            1,
            "answered with an error: quota",
        ),
        ((200, {"error": None}), 1, "no choices, output or messages"),
        ((200, b"<html>"), 1, "not a JSON object"),
        ((200, b"[" * 100_000), 1, "not a JSON object"),
        ((200, {"choices": []}), 1, "no choices"),
        ((200, {"choices": [{"message": {"content": ""}}]}), 1, "without a message of its own"),
        ((200, {"messages": TASK["messages"]}), 1, "without a message of its own"),
        ((200, {"messages": ["hi"]}), 1, "not a list of objects"),
        ((200, {"output": [1]}), 1, "items that cannot be read"),
        (CUT, TRIES, "broke off"),
        (b"nonsense\r\n\r\n", TRIES, "broke off"),
        (b"HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", 1, "packed"),
    ],
)
def test_what_the_agent_fails_with_fails_the_sample(sent: Sent, tries: int, said: str) -> None:
    done, asked = one(sent)
    assert len(asked) == tries and done.stop_reason == "agent error"
    assert not done.score.success and not done.score.masked and done.score.reward <= 0
    assert said in done.problem


def test_an_agent_that_hangs_fails() -> None:
    done, asked = one(HANG, timeout_s=0.5)
    assert len(asked) == 1, "it is not asked again: what it did may have to be paid"
    assert done.stop_reason == "time" and "gave no answer within" in done.problem
    assert not done.score.masked and not done.score.success


def test_an_answer_that_is_too_large_fails() -> None:
    done, _ = one((200, {"output": "x" * (4 * 2**20)}))
    assert done.stop_reason == "size" and "more than 4 MiB" in done.problem


def test_invented_tools_are_refused_by_the_environment_and_judged() -> None:
    invented = CALL | {"function": {"name": "tickets.destroy", "arguments": "{}"}}
    answer = {
        "messages": [
            {"role": "assistant", "tool_calls": [invented]},
            {"role": "assistant", "content": "Done."},
        ]
    }
    done, _ = one((200, answer), environment=REPLAY)
    assert (
        not done.score.success
        and not done.score.masked
        and "Error" in done.score.messages[1]["content"]
    )


def test_an_agent_that_is_down_masks_and_is_not_asked_for_ever() -> None:
    done = unreachable(1)
    assert done[0].score.masked and "no connection" in done[0].score.mask_reason
    with pytest.raises(PolicyError, match=f"So ended {DOWN_AFTER} samples in a row"):
        unreachable(DOWN_AFTER + 5)


def unreachable(tasks: int) -> list[Finished]:
    with serving({}) as server:
        base = server.base
    agent = AgentEndpoint(base_url=base, name="a", version="v1", concurrency=2, allow_private=True)
    done: list[Finished] = []
    policy = AgentPolicy(agent, AgentClient(agent, sleep=no_wait))
    play(
        policy,
        load(ONE_ANSWER),
        [TASK] * tasks,
        Limits(),
        lambda at, _, end: done.append(end),
        concurrency=2,
    )
    return done


def test_who_only_says_that_it_is_busy_masks() -> None:
    done, asked = one((429, {}))
    assert len(asked) == TRIES and done.score.masked and "HTTP 429" in done.score.mask_reason


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ((401, {}), "wants a key"),
        ((404, {}), "check its address and protocol"),
        ((307, {}), "redirects elsewhere"),
        ((200, RESPONSE | {"agent_version": "v2"}), "says that it is version “v2”"),
        ((200, RESPONSE | {"metadata": {"agent_version": "v2"}}), "version “v2”"),
        (b"HTTP/1.1 200 X\r\nX-Agent-Version: v2\r\nContent-Length: 2\r\n\r\n{}", "version “v2”"),
    ],
)
def test_what_would_end_every_sample_so_ends_the_job(sent: Sent, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        one(sent)


def test_a_version_that_changes_during_the_run_stops_it_and_keeps_what_there_is() -> None:
    asked: list[dict] = []

    def say(body: dict) -> tuple[int, Any]:
        asked.append(body)
        return 200, RESPONSE | {"agent_version": "v1" if len(asked) < 3 else "v2"}

    kept: list[Finished] = []
    with serving({("POST", PATH["chat"]): say}) as server:
        agent = AgentEndpoint(
            base_url=server.base, name="a", version="v1", concurrency=1, allow_private=True
        )
        with pytest.raises(PolicyError, match="must not change during an evaluation"):
            play(
                AgentPolicy(agent),
                load(ONE_ANSWER),
                [TASK] * 9,
                Limits(),
                lambda at, _, end: kept.append(end),
                concurrency=1,
            )
    assert len(kept) == 2 and all(end.score.success for end in kept) and len(asked) == 3


def test_no_more_than_its_number_are_asked_at_a_time() -> None:
    lock, busy, most = threading.Lock(), [0], [0]
    full = threading.Barrier(2, timeout=120)

    def say(body: dict) -> tuple[int, Any]:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        full.wait()  # two are there at once, or this fails
        with lock:
            busy[0] -= 1
        return RIGHT

    done, _ = called(say, tasks=6, concurrency=2)
    assert len(done) == 6 and most[0] == 2 and all(end.score.success for end in done)


def test_nothing_is_kept_of_samples_that_are_over() -> None:
    many = {"messages": [{"role": "assistant", "content": f"{n}"} for n in range(50)]}
    with serving({("POST", PATH["chat"]): (200, many)}) as server:
        agent = AgentEndpoint(base_url=server.base, name="a", version="v1", allow_private=True)
        policy = AgentPolicy(agent)
        play(policy, load(ONE_ANSWER), [TASK] * 3, Limits(), lambda *_: None)
    assert not policy.samples


@pytest.mark.parametrize(
    ("base", "protocol", "url"),
    [
        ("https://a.example/v1/", "chat", "https://a.example/v1/chat/completions"),
        ("https://a.example/v1/chat/completions", "chat", "https://a.example/v1/chat/completions"),
        ("https://a.example", "gym", "https://a.example/run"),
        ("https://a.example/run", "gym", "https://a.example/run"),
    ],
)
def test_the_address_may_have_the_path(base: str, protocol: str, url: str) -> None:
    agent = AgentEndpoint(base_url=base, name="a", version="v1", protocol=protocol)
    assert str(AgentClient(agent).url) == url


@pytest.mark.parametrize(
    ("answer", "turns"),
    [
        ({"output": "Hello"}, [{"role": "assistant", "content": "Hello", "tool_calls": []}]),
        (
            {"output": "", "tool_calls": [CALL]},
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "x"},
                    *TASK["messages"],
                    {"role": "assistant", "content": "a"},
                ]
            },
            [{"role": "assistant", "content": "a"}],
        ),
    ],
)
def test_plain_answers(answer: dict, turns: list[dict]) -> None:
    assert read_answer(answer, TASK["messages"]).turns == turns


def test_hostile_usage_counts_as_none() -> None:
    for usage in (
        {"input_tokens": -1},
        {"input_tokens": True},
        {"input_tokens": "9"},
        {"input_tokens": 2**40},
        [1],
    ):
        assert read_answer({"output": "a", "usage": usage}, []).tokens is None


UNKNOWN = {"latency_ms": None, "input_tokens": None, "output_tokens": None}


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 10**30, "completion_tokens": 1},
        {"completion_tokens": 3},
        {"prompt_tokens": -4},
    ],
)
def test_an_agent_that_does_not_count_its_tokens_does_not_look_cheap(usage: Any) -> None:
    done, _ = one((200, {"output": "a", "usage": usage}))
    assert done.used | {"latency_ms": None} == UNKNOWN and done.used["latency_ms"] > 0


def test_who_gave_no_answer_was_not_fast() -> None:
    assert one((500, {}))[0].used == UNKNOWN
    assert one(HANG, timeout_s=0.2)[0].used == UNKNOWN
    with pytest.raises(AgentFault):
        read_answer([], [])


# Limits


TOKENS = {"prompt_tokens": 5, "completion_tokens": 1}


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ({"usage": TOKENS, "model": "gpt-x"}, Reported(Usage(5, 1), None, "gpt-x")),
        ({"usage": TOKENS | {"cost": 0.25}}, Reported(Usage(5, 1), 0.25)),
        ({"usage": {"cost_usd": 1}}, Reported(None, 1.0)),
        ({"output": "a", "cost_usd": 0.5}, Reported(None, 0.5)),
        (
            {"response": {"usage": {"input_tokens": 7, "output_tokens": 2}}, "cost": 0.5},
            Reported(Usage(7, 2), 0.5),
        ),
        ({"error": "quota", "usage": TOKENS}, Reported(Usage(5, 1))),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Reported()),
        ({"usage": {"completion_tokens": 3}, "model": 4}, Reported()),
        ({"usage": [1], "cost": "0.5"}, Reported()),
        *[
            ({"cost": cost}, Reported())
            for cost in (-1, True, float("nan"), float("inf"), 1e12, 10**400, [1])
        ],
        ([], Reported()),
        (None, Reported()),
    ],
)
def test_what_an_agent_says_that_it_used(answer: Any, reported: Reported) -> None:
    assert reported_in(answer) == reported


def test_its_own_cost_comes_before_the_price_of_its_model() -> None:
    prices = {"gpt-x": Price(1e5, 2e5)}
    assert Reported(Usage(5, 1), None, "gpt-x").cost(prices) == pytest.approx(0.7)
    assert Reported(Usage(5, 1), 0.1, "gpt-x").cost(prices) == 0.1
    assert (
        Reported(Usage(5, 1), None, "gpt-y").cost(prices)
        is None
        is Reported(None, None, "gpt-x").cost(prices)
    )


def limited(
    sent: Sent, *, at_once: int = 1, tasks: int = 12, **limits: Any
) -> tuple[list[Finished], int, str, dict]:
    """The samples that are kept, the requests that the agent got, the last sentence, and what
    counts as used.
    """
    kept: list[Finished] = []
    with serving({("POST", PATH["chat"]): sent}) as server:
        agent = AgentEndpoint(
            base_url=server.base,
            name="a",
            version="v1",
            concurrency=at_once,
            allow_private=True,
            **limits,
        )
        policy, sentence = AgentPolicy(agent, AgentClient(agent, sleep=no_wait)), ""
        try:
            play(
                policy,
                load(ONE_ANSWER),
                [TASK] * tasks,
                Limits(),
                lambda at, _, end: kept.append(end),
                concurrency=at_once,
            )
        except PolicyError as error:
            assert error.final
            sentence = str(error)
        return kept, len(server.asked), sentence, policy.client.spent


SILENT = {"output": "a"}


@pytest.mark.parametrize("at_once", [1, 8])
def test_calls_that_report_nothing_count_as_the_user_says_and_never_exceed_a_limit(
    at_once: int,
) -> None:
    kept, asked, said, spent = limited(
        (200, SILENT), at_once=at_once, most_usd=0.3, usd_per_call=0.1
    )
    assert (len(kept), asked, spent["without_cost"]) == (3, 3, 3) and spent["usd"] == pytest.approx(
        0.3
    )
    assert (
        "limit of $0.3 allows no further question; $0.3000 is spent. 3 of 3 calls reported no cost"
        in said
    )
    assert "counts as $0.1. The samples so far are kept." in said
    kept, asked, said, spent = limited(
        (200, SILENT), at_once=at_once, most_tokens=1000, tokens_per_call=300
    )
    assert (len(kept), asked, spent["tokens"]) == (
        3,
        3,
        900,
    ) and "3 of 3 calls reported no tokens: each counts as 300" in said


@pytest.mark.parametrize(
    ("answer", "limits"),
    [
        (SILENT | {"cost": 0.3}, {"most_usd": 1, "usd_per_call": 0.01}),
        (SILENT | {"usage": TOKENS | {"cost_usd": 0.3}}, {"most_usd": 1, "usd_per_call": 0.01}),
        (
            SILENT | {"usage": TOKENS, "model": "gpt-x"},
            {"most_usd": 2, "usd_per_call": 0.01, "prices": {"gpt-x": Price(1e5, 1e5)}},
        ),
        (SILENT | {"usage": TOKENS}, {"most_tokens": 20, "tokens_per_call": 1}),
    ],
)
def test_what_the_agent_reports_counts_and_a_call_is_booked_with_the_most_so_far(
    answer: dict, limits: dict
) -> None:
    kept, asked, said, spent = limited((200, answer), **limits)
    assert len(kept) == asked == 3 == spent["calls"], "a fourth of the same size would exceed it"
    assert "allows no further question" in said and "reported no" not in said


def test_a_limit_is_exceeded_by_no_more_than_the_calls_in_flight_and_that_is_said() -> None:
    together = threading.Barrier(4, timeout=120)

    def say(body: dict) -> tuple[int, Any]:
        together.wait()
        return 200, SILENT | {"cost": 2.0}

    kept, asked, said, spent = limited(say, at_once=4, most_usd=1, usd_per_call=0.01)
    assert (
        len(kept) == asked == 4
        and spent["usd"] == 8.0
        and "limit of $1 " in said
        and "$8.0000 is spent" in said
    )


@pytest.mark.parametrize(
    "sent", [(500, {"error": "boom"}), CUT, (400, {"detail": "no"}), (200, b"<html>")]
)
def test_calls_that_fail_count_as_well_each_try(sent: Sent) -> None:
    _, asked, said, spent = limited(sent, most_usd=0.5, usd_per_call=0.1)
    assert asked == 5 == spent["calls"] and "5 of 5 calls reported no cost" in said


def test_a_call_that_takes_too_long_counts() -> None:
    kept, asked, said, spent = limited(HANG, most_usd=0.2, usd_per_call=0.1, timeout_s=0.2)
    assert len(kept) == asked == 2 == spent["without_cost"] and "allows no further" in said


def test_a_call_that_an_agent_refused_to_begin_costs_nothing_and_a_failed_one_what_it_reports() -> (
    None
):
    kept, _, said, spent = limited(first(429, 503, 425), tasks=1, most_usd=0.1, usd_per_call=0.1)
    assert kept[0].score.success and not said and spent["calls"] == 1
    kept, *_, spent = limited(
        (500, {"error": "boom", "cost": 0.02}), tasks=1, most_usd=1, usd_per_call=0.1
    )
    assert (
        kept[0].stop_reason == "agent error"
        and spent["usd"] == pytest.approx(0.08)
        and not spent["without_cost"]
    )


def test_without_a_limit_nothing_is_stopped() -> None:
    kept, asked, said, spent = limited((200, SILENT | {"cost": 1e5}), at_once=4)
    assert len(kept) == asked == 12 and not said and spent["usd"] == 12e5
