"""GRPO through an agent's own harness: what is learned is what was sampled at its address, and a
rollout of which that is not certain is masked with a reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.conftest import Recorder, typed
from workers import grpo
from workers.lib.alarms import RULES
from workers.lib.harness import open_rollout
from workers.lib.program import StopFlag
from workers.lib.reasons import by_reason, counted
from workers.lib.rollouts import EXCEEDED
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.token_rows import rows_of
from workers.lib.watching import Paused
from workers.ml.groups import Group, rollout_metrics
from workers.ml.policy_gradient import add_gradients

AGENT = Path(__file__).parent / "agents" / "two_turns_agent.py"
WEIGHTS = [torch.tensor([1.0, -0.5, 0.25, 2.0]), torch.tensor([-1.0, 1.5, 0.5, -2.0])]


def harness(way: str, **more: Any) -> dict:
    command = {"argv": [sys.executable, str(AGENT), way]}
    return {"name": "two-turns", "version": "1", "command": command} | more


@pytest.fixture
def rollouts_of(talk: Callable[..., dict], events: Recorder) -> Iterator[Callable[..., Any]]:
    """(trainer, its first groups) with an agent that acts in some way; None: the built-in loop."""
    opened: list[grpo.Trainer] = []

    def make(way: str | None, **more: Any) -> tuple[grpo.Trainer, list[Group]]:
        fields = {"harness": harness(way, **more)} if way else {}
        trainer = grpo.Trainer(typed(talk(**fields), "grpo"), events, StopFlag())
        opened.append(trainer)
        if trainer.player:
            trainer.player.start()
        return trainer, trainer.rollout(0)

    yield make
    for trainer in opened:
        if trainer.player:
            trainer.player.close()


def gradients(trainer: grpo.Trainer, groups: list[Group]) -> tuple[float, list[torch.Tensor]]:
    batch = trainer.batch_from(list(zip(groups, WEIGHTS, strict=True)))
    _, metrics = add_gradients(trainer.model, batch, None, None, trainer.config)
    found = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
    return metrics["train/loss"], found


def sampled(groups: list[Group]) -> list[list[tuple[list[int], list[int]]]]:
    return [
        [(reply.prompt_token_ids, reply.token_ids) for reply in done.replies]
        for group in groups
        for done in group.episodes
    ]


def reasons(groups: list[Group]) -> set[str]:
    return {done.score.mask_reason for group in groups for done in group.episodes}


def test_an_agent_is_trained_like_the_built_in_loop(rollouts_of: Callable[..., Any]) -> None:
    own, own_groups = rollouts_of(None)
    other, other_groups = rollouts_of("plain")
    assert reasons(other_groups) == {""}
    assert sampled(other_groups) == sampled(own_groups)
    rewards = [[d.score.reward for d in group.episodes] for group in own_groups]
    assert rewards == [[d.score.reward for d in group.episodes] for group in other_groups]
    (loss, ours), (same, theirs) = gradients(own, own_groups), gradients(other, other_groups)
    assert loss == pytest.approx(same, abs=1e-5)
    assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(ours, theirs, strict=True))


def test_what_the_agent_asks_of_sampling_changes_nothing(rollouts_of: Callable[..., Any]) -> None:
    _, plain = rollouts_of("plain")
    _, other = rollouts_of("hotter")
    assert sampled(other) == sampled(plain)
    metrics = rollout_metrics(other, GrpoConfig(steps=1, learning_rate=1e-3))
    assert (metrics["harness/calls"], metrics["harness/branches"]) == (2, 1)
    assert metrics["harness/ignored"] == 6


def test_a_rewritten_history_is_a_branch_of_its_own(rollouts_of: Callable[..., Any]) -> None:
    _, groups = rollouts_of("edits")
    assert reasons(groups) == {""}
    for group in groups:
        for done in group.episodes:
            rows = rows_of(done)
            assert len(rows) == 2
            assert [sum(row.learnt) for row in rows] == [len(r.token_ids) for r in done.replies]


def test_branches_at_the_same_time_are_learned_once_each(rollouts_of: Callable[..., Any]) -> None:
    _, groups = rollouts_of("forks")
    assert reasons(groups) == {""}
    for group in groups:
        for done in group.episodes:
            assert len(done.replies) == 4 and len(rows_of(done)) == 3
            learned = sum(sum(row.learnt) for row in rows_of(done))
            assert learned == sum(len(reply.token_ids) for reply in done.replies)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("silent", open_rollout.NO_CALL),
        ("makes_it_up", open_rollout.NOT_SAMPLED.format("12345678")),
    ],
)
def test_what_was_not_sampled_is_masked(
    way: str, reason: str, rollouts_of: Callable[..., Any]
) -> None:
    _, groups = rollouts_of(way)
    assert reasons(groups) == {reason}


@pytest.mark.parametrize("way", ["crashes"])
def test_an_agent_that_fails_is_not_masked(way: str, rollouts_of: Callable[..., Any]) -> None:
    _, groups = rollouts_of(way)
    for group in groups:
        for done in group.episodes:
            assert (done.score.masked, done.score.success) == (False, False)
            assert EXCEEDED["agent error"] in done.score.details
            assert "out of ideas" in done.problem


def test_a_run_whose_agent_does_without_the_model_pauses_with_the_reasons_counted(
    talk: Callable[..., dict],
    events: Recorder,
) -> None:
    alarms = {"bypasses": {"over": 1}}
    spec = typed(talk({"alarms": alarms, "steps": 2}, harness=harness("silent")), "grpo")
    trainer = grpo.Trainer(spec, events, StopFlag())
    with pytest.raises(Paused) as paused:
        trainer.train()
    count = spec.config.prompts_per_step * spec.config.generations
    assert RULES["bypasses"].title in str(paused.value)
    assert f"{count} × {open_rollout.NO_CALL}" in str(paused.value)


def test_reasons_that_differ_in_what_they_quote_are_counted_as_one() -> None:
    quoted = [(open_rollout.NOT_SAMPLED.format(text), 2) for text in ("12", "34")]
    same = open_rollout.NOT_SAMPLED.format("…")
    assert by_reason([*quoted, (open_rollout.CUT, 3)]) == [(same, 4), (open_rollout.CUT, 3)]
    assert by_reason([("It said “12", 1)]) == [("It said “…”", 1)]  # a reason that was cut
    texts = [open_rollout.CUT, *"abcd"]
    assert counted(texts) == f"1 × {open_rollout.CUT} 1 × a 1 × b 2 × other reasons."
    assert counted([]) == ""
