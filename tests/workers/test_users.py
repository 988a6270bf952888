"""Who answers the agent's words: what is stored for the task's user, or a model that plays it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.workers.test_workplace_assistant import assistant
from workers.lib.environments import EnvironmentFailed, load
from workers.lib.errors import SpecError

REPLAY: dict[str, Any] = {"kind": "replay", "harness": {}, "verifier": {"kind": "expected"}}
SERVICE: dict[str, Any] = {
    "kind": "builtin",
    "name": "customer_service",
    "harness": {},
    "verifier": {},
}
TASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Book a seat."}],
    "expected": {"calls": [], "lookups": []},
    "metadata": {"user_turns": ["By card. Yes, if so.", "Yes, if so."], "user_says": ["By card."]},
}


def talked(spec: dict, *texts: str, ask: Any = None, task: dict = TASK) -> tuple[list[str], str]:
    """(what the user said, why the episode ended)."""

    async def play() -> Any:
        episode = load(spec, clients={"ask": ask} if ask else {}).open(task)
        for text in texts:
            await episode.step(assistant(text=text))
        return episode

    episode = asyncio.run(play())
    said = [item["content"] for item in episode.said if item["role"] == "user"]
    return said, episode.stop_reason


def test_the_user_says_what_is_stored_and_then_the_episode_ends() -> None:
    assert talked(REPLAY, "Which?", "Really?") == (TASK["metadata"]["user_turns"], "")
    assert talked(REPLAY, "Which?", "Really?", "Done.")[1] == "stop"


def test_a_model_plays_the_user_of_a_task_that_has_one() -> None:
    asked: list[list[dict]] = []

    def ask(messages: list[dict]) -> str:
        asked.append(messages)
        return "By card, please." if len(asked) == 1 else "Thanks. ###END###"

    spec = REPLAY | {"config": {"user": "llm"}}
    assert talked(spec, "How?", "Done.", ask=ask) == (["By card, please.", "Thanks."], "user")
    told, first, second = asked[0]
    assert "By card." in told["content"] and "nothing else" in told["content"]
    assert (first, second) == (
        {"role": "assistant", "content": "Book a seat."},
        {"role": "user", "content": "How?"},
    )
    alone = TASK | {"metadata": {}}
    assert talked(spec, "Done.", ask=ask, task=alone) == ([], "stop"), "no user, nobody to play"


def test_without_a_model_nobody_can_play_the_user() -> None:
    for user, why in (("llm", "needs a client"), ("me", "script or llm")):
        with pytest.raises(SpecError, match=why):
            load(REPLAY | {"config": {"user": user}})


def test_a_user_that_does_not_answer_is_no_fault_of_the_agent() -> None:
    def ask(messages: list[dict]) -> str:
        raise ValueError("down")

    with pytest.raises(EnvironmentFailed, match="simulated user did not answer"):
        talked(REPLAY | {"config": {"user": "llm"}}, "How?", ask=ask)


def test_the_service_desk_uses_what_is_stored_for_a_task_without_a_script() -> None:
    said, reason = talked(SERVICE, "May I have your email address?", "Shall I?", "Anything else?")
    assert said[:2] == TASK["metadata"]["user_turns"] and reason == "user"
