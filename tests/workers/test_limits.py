"""Hanging must not beat failing: what the agent exceeds fails its sample, what others break masks
it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.workers.conftest import Recorder
from tests.workers.test_rollouts import LOOK, Scripted, made
from tests.workers.test_workplace_assistant import assistant
from workers import rescore
from workers.lib.environments import EnvironmentFailed, load
from workers.lib.environments.episodes import ToolEpisode
from workers.lib.environments.workplace_assistant import own_tasks
from workers.lib.policies import PolicyError, Reply
from workers.lib.program import StopFlag
from workers.lib.rollouts import EXCEEDED, Finished, Limits, rollout
from workers.lib.specs.rescore import StoredSample
from workers.lib.verifiers import Rollout, Score

TASK = own_tasks()[0]
SPEC: dict = {"kind": "builtin", "name": "workplace_assistant", "harness": {}, "verifier": {}}
SHORT = Limits(seconds=0.05)
TOOLS = [
    {
        "type": "function",
        "function": {"name": LOOK["tool_calls"][0]["function"]["name"], "parameters": {}},
    }
]


def one(policy: Scripted, limits: Limits = SHORT, spec: dict = SPEC, task: dict = TASK) -> Finished:
    return asyncio.run(rollout(policy, load(spec).open(task), limits))


def after_the_right_calls(then: Any) -> Scripted:
    """Does all that is asked, then `then` for ever."""
    return Scripted(
        lambda messages: (made(TASK)[:-1] + [then] * 99)[
            sum(m["role"] == "assistant" for m in messages)
        ]
    )


def hung(*_: object, **__: object) -> Any:
    return asyncio.sleep(30)


def gone(*_: object, **__: object) -> Any:
    raise EnvironmentFailed("connection refused")


AGENTS = {
    "slow": (Scripted(lambda _: LOOK, wait=30), SHORT, "time"),
    "endless calls": (Scripted(lambda _: LOOK), Limits(), "turns"),
    "endless calls after the right ones": (after_the_right_calls(LOOK), Limits(), "turns"),
    "turns of the job": (after_the_right_calls(LOOK), Limits(turns=2), "turns"),
    "tokens": (after_the_right_calls(LOOK), Limits(tokens=4), "tokens"),
    **{
        limit: (after_the_right_calls(PolicyError("no", limit=limit)), Limits(), limit)
        for limit in ("time", "size", "context", "refused")
    },
}


@pytest.mark.parametrize("kind", AGENTS)
def test_what_the_agent_exceeds_fails(kind: str) -> None:
    policy, limits, reason = AGENTS[kind]
    done = one(policy, limits)
    assert (done.stop_reason, done.score.masked, done.score.success, done.score.reward) == (
        reason,
        False,
        False,
        0,
    )
    assert (
        done.score.details[0] == EXCEEDED[reason]
        and done.truncated
        and done.rollout.stats["stop_reason"] == reason
    )


class Writes(Scripted):
    """Calls a tool, and at last says what is right, in turns of so many tokens."""

    def __init__(self, tokens: list[int], cut: bool = False) -> None:
        super().__init__(lambda _: LOOK)
        self.tokens, self.cut, self.budgets = tokens, cut, list[int | None]()

    async def answer(self, messages: list[dict], tools: list[dict], **rest: Any) -> Reply:
        turn = sum(message["role"] == "assistant" for message in messages)
        self.budgets.append(rest.get("most"))
        said = assistant(text="right") if turn == len(self.tokens) - 1 else LOOK
        return Reply(said, output_tokens=self.tokens[turn], truncated=self.cut)


RIGHT = {"verifier": {"kind": "exact", "values": ["right"]}}


@pytest.mark.parametrize(
    ("tokens", "cut", "reason", "reward"),
    [
        ([50], False, "tokens", 0),
        ([5, 50], False, "tokens", 0),
        ([6, 6], False, "tokens", 0),
        ([11, 1], False, "tokens", 0),
        ([10], True, "tokens", 0),
        ([10], False, "stop", 1),
        ([4, 6], False, "stop", 1),
    ],
)
def test_the_last_answer_counts_into_the_tokens(
    tokens: list, cut: bool, reason: str, reward: int
) -> None:
    task = {"id": "t", "messages": [{"role": "user", "content": "Do it."}], "tools": TOOLS}
    for kind in ("single_turn", "replay") if len(tokens) == 1 else ("replay",):
        policy = Writes(tokens, cut)
        done = one(policy, Limits(tokens=10), {"kind": kind, "harness": {}} | RIGHT, task)
        assert (done.stop_reason, done.score.reward, done.score.success) == (
            reason,
            reward,
            bool(reward),
        )
        assert policy.budgets == [10 - sum(tokens[:turn]) for turn in range(len(policy.budgets))]


def test_a_servers_failure_masks_also_where_the_agent_waited_long() -> None:
    for policy in (
        Scripted(lambda _: LOOK, wait=30, alive=False),
        Scripted(lambda _: PolicyError("slow", limit="time"), alive=False),
        Scripted(lambda _: PolicyError("HTTP 500")),
    ):
        done = one(policy)
        assert done.score.masked and done.stop_reason == "policy error" and not done.truncated


@pytest.mark.parametrize(
    ("run", "responds", "masks", "reason"),
    [
        (hung, False, True, "environment error"),
        (hung, True, False, "time"),
        (gone, True, True, "environment error"),
    ],
    ids=["tools hang", "calls take long", "tools are gone"],
)
def test_the_time_of_tools_is_the_agents_only_where_the_environment_works(
    monkeypatch: pytest.MonkeyPatch, run: Any, responds: bool, masks: bool, reason: str
) -> None:
    async def answers(_: ToolEpisode) -> bool:
        return responds

    episode = load(SPEC).open(TASK)
    monkeypatch.setattr(type(episode), "run", run)
    monkeypatch.setattr(type(episode), "responds", answers)
    done = asyncio.run(rollout(Scripted(lambda _: LOOK), episode, SHORT))
    assert (done.score.masked, done.stop_reason, done.score.reward) == (
        masks,
        reason,
        None if masks else 0,
    )


@pytest.mark.parametrize("kind", ["remote", "mcp"])
def test_a_tool_server_that_is_gone_masks(kind: str) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    config = {"url": "http://127.0.0.1:1/x", "tools": tools}
    spec = {
        "kind": kind,
        "config": config,
        "harness": {},
        "verifier": {"kind": "no_call"},
        "allow_private": True,
    }
    task = {"id": "t", "messages": [{"role": "user", "content": "Do it."}]}
    done = one(Scripted(lambda _: assistant(("look", {}))), Limits(), spec, task)
    assert done.score.masked and done.stop_reason == "environment error"


def test_a_failed_environment_is_remembered_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        episode = load(SPEC).open(TASK)
        monkeypatch.setattr(type(episode), "run", gone)
        await episode.call("x", {})
        return load(SPEC).open(TASK, episode.state).failure

    assert "connection refused" in asyncio.run(run())


VERIFIERS: list[tuple[dict, dict, str]] = [
    ({"kind": "no_call"}, {"calls": []}, '{"tool": "x", "args": {}}'),
    ({"kind": "calls"}, {"calls": []}, '{"tool": "x", "args": {}}'),
    ({"kind": "calls"}, {"tool": "x", "args": {}}, "no"),
    ({"kind": "regex", "pattern": "bad", "absent": True}, {}, "bad"),
    ({"kind": "exact"}, {"answer": "right"}, "wrong"),
    ({"kind": "trajectory"}, {}, "said"),
    (
        {
            "kind": "openai_grader",
            "grader": {
                "type": "string_check",
                "operation": "ne",
                "input": "{{sample.output_text}}",
                "reference": "bad",
            },
        },
        {},
        "bad",
    ),
    ({"kind": "expected"}, {}, "unscorable"),
]


@pytest.mark.parametrize(("verifier", "expected", "wrong"), VERIFIERS)
def test_hanging_does_not_beat_failing(
    tmp_path: Path, verifier: dict, expected: dict, wrong: str
) -> None:
    """An answer that never came looks like silence, which some verifiers pay."""
    spec = {"kind": "single_turn", "harness": {}, "verifier": verifier}
    task = {"id": "t", "messages": [{"role": "user", "content": "Do it."}], "expected": expected}
    failing = one(Scripted(lambda _: assistant(text=wrong)), spec=spec, task=task).score
    hanging = one(Scripted(lambda _: assistant(text=wrong), wait=30), spec=spec, task=task).score
    assert not hanging.masked and not hanging.success and hanging.reward is not None
    assert hanging.reward <= max(0.0, failing.reward or 0.0)
    sample = StoredSample(id="s", task=task, messages=[], stop_reason="time")
    [again] = rescore.rescore(load(spec), [sample], Recorder(tmp_path / "e"), StopFlag())
    assert (again["reward"], again["success"], again["masked"]) == (hanging.reward, False, False)


def test_a_verifier_that_needs_no_sample_is_not_asked_about_a_failed_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episode = load(SPEC).open(TASK)
    monkeypatch.setattr(type(episode), "run", gone)
    asked: list[Rollout] = []

    async def score(self: Any) -> Score:
        asked.append(self.rollout())
        return Score(reward=1.0)

    monkeypatch.setattr(type(episode), "score", score)
    assert asyncio.run(rollout(Scripted(lambda _: LOOK), episode, SHORT)).score.masked and not asked
