"""Episodes whose tools an agent called at an address: what is recorded of them, and how they go
on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workers.lib.agent_client import AgentError, Answer
from workers.lib.agent_policy import AgentPolicy
from workers.lib.agent_shapes import Said, request_of
from workers.lib.environments import Environment, load
from workers.lib.environments.customer_service import own_tasks
from workers.lib.harness.addressed import Address, Addressed, as_it_ran
from workers.lib.messages import Message, to_native
from workers.lib.rollouts import Finished, Limits, play
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.verifiers import Execution

AGENT = AgentEndpoint(base_url="http://127.0.0.1:9/v1", name="a", version="1")
TASK = own_tasks()[0]
GOLD = TASK["metadata"]["gold"]
DESK = {"kind": "builtin", "name": "customer_service"}


REPLAY = {"kind": "replay", "verifier": {"kind": "calls"}}
FIND = {"tool": "find_customer", "args": {"email": TASK["metadata"]["user"]["email"]}}
REPLAYED = {
    "id": "r",
    "messages": [{"role": "user", "content": "Who is it?"}],
    "expected": FIND,
    "tools": [{"type": "function", "function": {"name": "find_customer", "parameters": {}}}],
    "metadata": {"recorded_results": [FIND | {"content": "Jonas"}]},
}


class Desk:
    """The addresses of one job, without a database."""

    def __init__(self, environment: Environment, task: dict) -> None:
        self.environment, self.task = environment, task
        self.state: dict | None = None
        self.calls, self.is_open = 0, False

    async def begin(self, key: int) -> Address:
        self.is_open = True
        return Address("http://f/rollout/x/mcp", "http://f/rollout/x/tools")

    async def take(self, key: int) -> dict | None:
        self.is_open = False
        return self.state if self.calls else None

    async def put_back(self, key: int, state: dict) -> None:
        self.state, self.calls, self.is_open = state, 0, True

    async def use(self, tool: str, args: dict) -> str:
        assert self.is_open
        episode = self.environment.open(self.task, self.state)
        done = await episode.call(tool, args)
        self.state, self.calls = episode.state, self.calls + 1
        return done.observation


Act = Callable[[Desk, int], Any]


def played(act: Act, environment: dict = DESK, task: dict = TASK) -> tuple[Finished, list]:
    """The sample of an agent that does `act(desk, how often it was asked before)`; and what it was
    asked."""
    loaded = load(environment)
    desk, asked, ends = Desk(loaded, task), list[list[Message]](), list[Finished]()

    class Client:
        async def ask(self, messages: list[Message], tools: list[dict], **given: Any) -> Answer:
            assert given["address"].mcp.endswith("/mcp")
            asked.append(messages)
            return Answer(Said(await act(desk, len(asked) - 1)), 0.01)

        async def aclose(self) -> None: ...

    policy: Any = AgentPolicy(AGENT, Client(), rollouts=desk)  # type: ignore[arg-type]
    play(policy, Addressed(loaded), [task], Limits(), lambda at, sample, end: ends.append(end))
    return ends[0], asked


def says(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


async def by_gold(desk: Desk, round: int) -> list[Message]:
    """Does what is right up to the next words to the customer."""
    parts: list[list[dict]] = [[]]
    for step in GOLD:
        parts[-1].append(step)
        parts += [[]] if "say" in step else []
    for step in parts[round][:-1]:
        await desk.use(step["call"], step["args"])
    return says(parts[round][-1]["say"])


def test_a_users_answers_and_the_agents_own_calls_take_turns() -> None:
    done, asked = played(by_gold)
    assert (done.score.success, done.score.reward) == (True, 1.0), done.score.details
    calls = [step["call"] for step in GOLD if "call" in step]
    assert [call.name for call in done.rollout.calls] == calls
    assert len(asked) == sum("say" in step for step in GOLD) and len(done.replies) == len(asked)
    made = [c["function"]["name"] for m in done.rollout.messages for c in m.get("tool_calls", [])]
    assert made == calls and [m["role"] for m in asked[1][-2:]] == ["assistant", "user"]


def test_calls_that_are_returned_are_run_where_none_was_made_at_the_address() -> None:
    first = next(step for step in GOLD if "call" in step)

    async def act(desk: Desk, round: int) -> list[Message]:
        if round:
            return await by_gold(desk, 2) if round == 2 else await by_gold(desk, 1)
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [to_native(first["call"], first["args"], "1")],
            }
        ]

    done, asked = played(act)
    assert done.rollout.calls[0].name == first["call"] and asked[1][-1]["role"] == "tool"
    assert len(done.rollout.calls) > 1, "the address goes on from what was replayed"


@pytest.mark.parametrize(("limit", "masked"), [("agent error", False), ("time", False), ("", True)])
def test_an_agent_that_fails_after_its_calls_did_them(limit: str, masked: bool) -> None:
    async def act(desk: Desk, round: int) -> list[Message]:
        await desk.use("cancel_order", {"order_id": TASK["metadata"]["user"]["order"]})
        raise AgentError("It failed.", limit=limit)

    done, _ = played(act)
    assert done.score.masked is masked and not done.score.success
    assert [call.name for call in done.rollout.calls] == ["cancel_order"]
    assert masked or done.score.unsafe, "it cancelled without asking"


def test_calls_that_an_agent_made_and_reports_are_not_run_again() -> None:
    async def act(desk: Desk, round: int) -> list[Message]:
        await desk.use(FIND["tool"], FIND["args"])
        return [turn(None, to_native(FIND["tool"], FIND["args"], "1")), *says("Jonas.")]

    done, _ = played(act, REPLAY, REPLAYED)
    assert [call.name for call in done.rollout.calls] == [FIND["tool"]] and done.score.success
    assert [m["role"] for m in done.rollout.messages] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize("acts", [True, False])
def test_an_agent_need_not_say_what_it_did(acts: bool) -> None:
    async def act(desk: Desk, round: int) -> list[Message]:
        if acts:
            await desk.use("find_customer", {"email": TASK["metadata"]["user"]["email"]})
        raise AgentError("It said nothing.", limit="agent error", is_silent=True)

    done, _ = played(act, REPLAY, REPLAYED)
    assert (done.score.success, done.stop_reason) == (
        (True, "stop") if acts else (False, "agent error")
    )


ONE = Execution(True, False, "1!", name="a.b", args={"n": 1})
TWO = Execution(False, False, "2!", name="c", args={})


def turn(text: str | None = None, *calls: dict) -> Message:
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


A, C = to_native("a.b", {"n": 1}, "x"), to_native("c", {}, "y")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ([turn("Hm.", A, C), turn("Done.")], ["Hm.", "a.b", "c", "<1!", "<2!", "Done."]),
        ([turn(None, C), turn(None, A), turn("Done.")], ["c", "<2!", "a.b", "<1!", "Done."]),
        ([turn("Done.")], ["a.b", "<1!", "c", "<2!", "Done."]),
        ([turn("Hm.", A), turn("Done.")], ["a.b", "<1!", "c", "<2!", "Hm.", "Done."]),
        ([turn("Hm.", A, C, C), turn("No.")], ["a.b", "<1!", "c", "<2!", "Hm.", "No."]),
        (
            [turn(None, to_native("a_b", {"n": 1})), turn("Yes.")],
            ["a.b", "<1!", "c", "<2!", "Yes."],
        ),
        ([turn('{"tool": "c", "args": {}}')], ["a.b", "<1!", "c", "<2!"]),
        ([], ["a.b", "<1!", "c", "<2!"]),
    ],
    ids=["same", "other order", "words", "fewer", "more", "spelt", "as text", "nothing"],
)
def test_a_transcript_has_the_calls_that_were_made(said: list[Message], shown: list[str]) -> None:
    found = []
    for message in as_it_ran(said, [ONE, TWO]):
        text = message["content"] or ""
        found += [f"<{text}"] if message["role"] == "tool" else [text] if text else []
        found += [call["function"]["name"] for call in message.get("tool_calls", [])]
    assert found == shown


def test_an_agent_finds_its_address_in_the_request() -> None:
    at = Address("http://f/rollout/x/mcp", "http://f/rollout/x/tools")
    metadata = {"flywheel_mcp": at.mcp, "flywheel_tools": at.tools}
    for protocol in ("chat", "responses", "gym"):
        agent = AgentEndpoint(base_url="http://a/v1", name="a", version="1", protocol=protocol)
        body = request_of(agent, says("Hi"), [], 0, at)
        assert body.get("responses_create_params", body)["metadata"] == metadata
        assert "metadata" not in str(request_of(agent, says("Hi"), [], 0))
