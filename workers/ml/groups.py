"""A task with its scored episodes, and what is derived from a step's groups: metrics, and inputs
for the watch and the task draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.lib.advantages import (
    OVERLONG,
    earned,
    group_advantages,
    overlong_shaping,
    returns,
    turn_advantages,
    turn_rewards,
)
from workers.lib.probes import watch
from workers.lib.reasons import counted
from workers.lib.rollouts import Finished
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.verifiers import Score


@dataclass
class Group:
    """One task with its G scored episodes."""

    task: dict
    episodes: list[Finished]

    @property
    def scores(self) -> list[Score]:
        return [done.score for done in self.episodes]

    @property
    def tokens(self) -> int:
        """The number of tokens that the policy generated."""
        return sum(reply.output_tokens for done in self.episodes for reply in done.replies)

    @property
    def rewards(self) -> Tensor:
        """[G]; NaN for a sample that is masked because its verifier failed."""
        return torch.tensor(
            [float("nan") if score.masked else float(score.reward or 0) for score in self.scores]
        )

    def advantages(self, config: GrpoConfig) -> Tensor:
        """[G], or [G, T] per turn: advantages of the rewards minus the overlong penalty. Those of
        PPO come from a critic (workers.ml.critic); here they are 0.
        """
        if config.advantages == "gae":
            return torch.zeros(len(self.episodes))
        lost = torch.tensor([score.components.get(OVERLONG, 0.0) for score in self.scores])
        if config.advantages == "turn":
            return self._turn_advantages(lost.tolist(), config)
        return advantages(self.rewards + lost, config.scale_rewards, config.baseline)

    def _turn_advantages(self, lost: list[float], config: GrpoConfig) -> Tensor:
        """[G, T]; 0 after an episode's last turn. The overlong penalty applies to the last turn."""
        since_turn = [
            (
                None
                if done.score.masked
                else [
                    one + less
                    for one in returns(
                        done.score.reward or 0.0, done.score.components, len(done.replies)
                    )
                ]
            )
            for done, less in zip(self.episodes, lost, strict=True)
        ]
        found = turn_advantages(since_turn, config.scale_rewards, config.baseline)
        width = max(len(done.replies) for done in self.episodes)
        return torch.tensor([row + [0.0] * (width - len(row)) for row in found])


def advantages(rewards: Tensor, scale: str = "group", baseline: str = "mean") -> Tensor:
    """`group_advantages` of a group's G rewards, [G] → [G]; NaN marks a masked sample."""
    given = [None if reward != reward else reward for reward in rewards.tolist()]
    return torch.tensor(group_advantages(given, scale, baseline))


def rollout_metrics(
    groups: Sequence[Group], config: GrpoConfig, *, turns: bool = False
) -> dict[str, float]:
    """Metrics of a step's episodes. `turns`: include the number of turns."""
    rewards = torch.stack([group.rewards for group in groups])
    seen = rewards[~rewards.isnan()]
    episodes = [done for group in groups for done in group.episodes]
    scores = [done.score for done in episodes]
    flat = without_spread(groups, config)
    calls = Counter(bool(call.ok) for done in episodes for call in done.rollout.calls)
    n = len(episodes)
    found = {
        "train/reward_mean": float(seen.mean()) if len(seen) else float("nan"),
        "train/reward_std": float(seen.std()) if len(seen) > 1 else 0.0,
        "train/success": sum(score.success for score in scores) / n,
        "train/unsafe": sum(score.unsafe for score in scores) / n,
        "train/zero_std_share": sum(flat) / len(flat),
        "train/completion_length": sum(group.tokens for group in groups) / n,
        "train/truncated_share": sum(done.truncated for done in episodes) / n,
        "train/rollouts": n,
        "train/masked_share": sum(score.masked for score in scores) / n,
    }
    if turns:
        found["train/turns"] = sum(len(done.replies) for done in episodes) / n
    if played := [done for done in episodes if "branches" in done.rollout.stats]:
        found |= harness_metrics(played)
    if calls:
        found["train/tool_failures"] = calls[False] / calls.total()
    return found


def harness_metrics(played: Sequence[Finished]) -> dict[str, float]:
    """Of episodes that an agent played in its own harness, per rollout: calls to the model,
    branches, what it asked of sampling in vain, results of tools that it altered, and whether it
    did without the model. `branch_share`: of the calls that could have continued an earlier one,
    how many did not.
    """
    stats, n = [done.rollout.stats for done in played], len(played)
    later = [max(0, len(done.replies) - 1) for done in played]
    begun = [max(0, one["branches"] - 1) for one in stats]
    return {
        "harness/calls": sum(len(done.replies) for done in played) / n,
        "harness/branches": sum(one["branches"] for one in stats) / n,
        "harness/branch_share": sum(begun) / max(1, sum(later)),
        "harness/ignored": sum(one["ignored"] for one in stats) / n,
        "harness/altered": sum(one["altered"] for one in stats) / n,
        "harness/bypasses": sum(one["bypassed"] for one in stats) / n,
    }


def without_spread(groups: Sequence[Group], config: GrpoConfig) -> list[bool]:
    """Which groups have equal rewards, so that nothing is learned from them. PPO learns from the
    step as a whole.
    """
    if config.advantages == "gae":
        scores = [score for group in groups for score in group.scores if not score.masked]
        rewards = {(score.reward, *turn_rewards(score.components)) for score in scores}
        return [len(scores) > 1 and len(rewards) == 1]
    compared = [
        group.advantages(config) if config.advantages == "turn" else advantages(group.rewards)
        for group in groups
    ]
    return [not bool(found.any()) for found in compared]


def token_rewards(done: Finished) -> list[float]:
    """The reward of each token that the policy generated, in order: a turn's at its last token, the
    overlong penalty at the episode's last.
    """
    found: list[float] = []
    score = done.score
    for reply, reward in zip(
        done.replies,
        earned(score.reward or 0.0, score.components, len(done.replies)),
        strict=True,
    ):
        found += [0.0] * len(reply.token_ids)
        if found:
            found[-1] += reward
    if found:
        found[-1] += score.components.get(OVERLONG, 0.0)
    return found


def validation_metrics(episodes: Sequence[Sequence[Finished]]) -> dict[str, float]:
    """Metrics of the samples that are not masked; {} if all are."""
    scores = [done.score for samples in episodes for done in samples if not done.score.masked]
    if not scores:
        return {}
    return {
        "validation/reward": sum(float(score.reward or 0) for score in scores) / len(scores),
        "validation/success": sum(float(score.success) for score in scores) / len(scores),
        "validation/samples": len(scores),
    }


def shape(done: Finished, config: GrpoConfig) -> None:
    """Add the penalty of an overlong episode to its score, based on its longest answer."""
    if config.overlong_buffer and done.replies:
        longest = max(reply.output_tokens for reply in done.replies)
        lost = overlong_shaping(
            longest, config.max_new_tokens, config.overlong_buffer, config.overlong_penalty
        )
        done.score.components = done.score.components | {OVERLONG: lost}


def passed_of(group: Group) -> tuple[str, int, int]:
    """(task, number that passed, number that are not masked)."""
    scores = [score for score in group.scores if not score.masked]
    return group.task["id"], sum(score.success for score in scores), len(scores)


def outputs_of(groups: Sequence[Group]) -> list[watch.Paid]:
    return [
        watch.Paid(
            group.task,
            [reply.message for reply in done.replies],
            None if done.score.masked else float(done.score.reward or 0),
        )
        for group in groups
        for done in group.episodes
    ]


def mask_reasons(groups: Sequence[Group]) -> str:
    """Why rollouts of the step were masked, counted; "" if none was."""
    return counted(score.mask_reason for group in groups for score in group.scores if score.masked)
