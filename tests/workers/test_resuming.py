"""Resuming a recorded run: its calls are run again, and what they return is compared."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tests.workers.test_rollouts import SPEC, TASK, Scripted, made
from workers.lib.environments import load
from workers.lib.policies import RecordedPolicy
from workers.lib.resuming import resume
from workers.lib.rollouts import NO_LIMITS, OTHER_RESULTS, Finished, rollout

ENVIRONMENT = load(SPEC)


def recorded() -> list[dict]:
    """All of a good run, with what the tools returned."""
    done = asyncio.run(rollout(RecordedPolicy([made(TASK)]), ENVIRONMENT.open(TASK), NO_LIMITS))
    assert done.score.success and len(done.rollout.messages) > 2
    return done.rollout.messages


def continued(messages: list[dict], policy: Any) -> Finished:
    episode = ENVIRONMENT.open(TASK)
    return asyncio.run(rollout(policy, episode, NO_LIMITS, recorded=messages))


def test_the_policy_goes_on_where_the_run_was_and_only_its_own_turns_count() -> None:
    run, seen = recorded(), []

    def say(messages: list[dict]) -> dict:
        seen.append(copy.deepcopy(messages))
        return run[-1]

    done = continued(run[:-1], Scripted(say))
    assert done.score.success and len(done.replies) == 1
    assert seen[0][-len(run[:-1]) :] == run[:-1]
    assert done.rollout.messages == run


def test_the_end_of_a_whole_run_is_scored_without_a_policy() -> None:
    done = continued(recorded(), RecordedPolicy([[]]))
    assert done.score.success and not done.replies


def test_another_result_is_a_difference_and_masks() -> None:
    run = recorded()
    run[1]["content"] = run[1]["content"].replace("output", "outcome")
    difference = asyncio.run(resume(ENVIRONMENT.open(TASK), run))
    assert difference.at == 0 and "outcome" in difference.text
    done = continued(run[:-1], Scripted(lambda _: run[-1]))
    assert done.score.masked and done.stop_reason == OTHER_RESULTS
    assert "where the run has" in done.score.mask_reason and not done.replies


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: run.insert(2, {"role": "user", "content": "And now?"}), "does not answer"),
        (lambda run: run.pop(1), "which the run does not have"),
        (lambda run: run.append(run[0]), "ends the episode before this step"),
    ],
)
def test_what_the_environment_does_not_do_is_a_difference(change: Any, said: str) -> None:
    run = recorded()
    change(run)
    difference = asyncio.run(resume(ENVIRONMENT.open(TASK), run))
    assert said in difference.text


def test_white_space_and_the_order_of_keys_are_no_difference() -> None:
    run = recorded()
    run[1]["content"] = run[1]["content"].replace(":", " : ")
    assert asyncio.run(resume(ENVIRONMENT.open(TASK), run)) is None
