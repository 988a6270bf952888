"""PPO: a critic on the policy's base, GAE over an episode's tokens, and the clipped losses of both,
against their formulas written out on the library's own forward pass.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.workers.conftest import Recorder, tasks, typed
from tests.workers.test_dpo import an_adapter
from workers import grpo, reward_model
from workers.lib.alarms import Watchman
from workers.lib.errors import JobError
from workers.lib.folder_digest import folder_digest
from workers.lib.presets import PRESETS
from workers.lib.program import StopFlag
from workers.lib.specs.grpo import GrpoConfig
from workers.ml import policy_gradient
from workers.ml.critic import adapted, gae
from workers.ml.groups import without_spread
from workers.ml.models import load_base, lora, lora_config, using
from workers.ml.policy_gradient import minibatches
from workers.ml.policy_loss import policy_loss
from workers.ml.tree import decoder_of

PPO = PRESETS["ppo"].fields | {"generations": 3}


def main(spec: dict, events: Recorder) -> list[dict]:
    grpo.main(typed(spec, "grpo"), events, StopFlag())
    return [row["values"] for row in events.rows("metric") if "train/loss" in row["values"]]


def trainer_of(spec: dict, events: Recorder) -> grpo.Trainer:
    return grpo.Trainer(typed(spec, "grpo"), events, StopFlag())


def reward_of_tokens(done: Any) -> list[float]:
    """Written out again: per turn where the environment reports it, else at the end."""
    each, turns = [], done.score.components
    for number, reply in enumerate(done.replies, 1):
        each += [0.0] * len(reply.token_ids)
        each[-1] += turns.get(f"turn_{number}", 0.0)
    if "turn_1" not in turns:
        each[-1] += done.score.reward
    return each


class Plain:
    """The library's own model, with one forward pass per turn."""

    def __init__(self, trainer: grpo.Trainer, base: str) -> None:
        self.model = lora(load_base(base)[0], trainer.config, None)
        self.model.add_adapter("critic", lora_config(trainer.config))
        self.model.add_module("value_head", torch.nn.Linear(32, 1))
        self.model.eval()
        self.take([parameter.detach() for parameter in trainer.model.parameters()])
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("lora" in name or name.startswith("value_head"))

    @torch.no_grad()
    def take(self, weights: list[Tensor]) -> None:
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(weight)

    def states(self, done: Any) -> list[tuple[Tensor, Tensor]]:
        """(hidden states before the sampled tokens, the tokens) of each turn."""
        decoder, _ = decoder_of(self.model)
        found = []
        for reply in done.replies:
            ids = torch.tensor([reply.prompt_token_ids + reply.token_ids])
            hidden = decoder(input_ids=ids).last_hidden_state[0]
            found.append(
                (hidden[len(reply.prompt_token_ids) - 1 : -1], torch.tensor(reply.token_ids))
            )
        return found

    def logprobs(self, done: Any) -> Tensor:
        _, head = decoder_of(self.model)
        return torch.cat(
            [head(h).log_softmax(-1).gather(-1, ids[:, None])[:, 0] for h, ids in self.states(done)]
        )

    def values(self, done: Any) -> Tensor:
        with using(self.model, "critic"):
            return torch.cat([self.model.value_head(h)[:, 0] for h, _ in self.states(done)])


def gradients(model: Any) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def recorded(trainer: grpo.Trainer, groups: list[Any]) -> list[tuple]:
    """[(weights, gradients, metrics)] of each update of a step."""
    seen, move = [], trainer.move

    def moving(values: dict, before: Any = None) -> bool:
        weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        seen.append((weights, gradients(trainer.model), dict(values)))
        return move(values, before)

    trainer.move = moving
    trainer.update(groups)
    return seen


def stir(trainer: grpo.Trainer) -> None:
    """Weights as in the middle of a run: neither values nor the distance from the start are 0."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad and "lora_A" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("luck", [0, 2])
@pytest.mark.parametrize("forgets", [False, True])
def test_losses_advantages_and_gradients_are_their_formulas(
    luck: int,
    forgets: bool,
    talk: Callable[..., dict],
    events: Recorder,
    forgetful_model: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two updates on the same episodes of two turns, with a KL penalty and rewards at the end or
    per turn, as one row per episode or per turn. The second is off policy.
    """
    config = {
        "updates_per_batch": 2,
        "beta": 0.3,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "max_grad_norm": 1e9,
        "clip_value": 0.05,
    }
    model = {"base": str(forgetful_model if forgets else tiny_model), "adapter": None}
    trainer = trainer_of(talk(PPO | config, {"luck": luck}, model=model), events)
    stir(trainer)
    groups = trainer.rollout(0)
    plain, episodes = Plain(trainer, model["base"]), [d for g in groups for d in g.episodes]
    with torch.no_grad():
        old = [plain.logprobs(done) for done in episodes]
        before = [plain.values(done) for done in episodes]
        with using(plain.model, None):
            start = [plain.logprobs(done) for done in episodes]
    raw, targets = [], []
    for done, mine, values, far in zip(episodes, old, before, start, strict=True):
        rewards = torch.tensor(reward_of_tokens(done)) - 0.3 * (mine - far)
        after = torch.cat([values[1:], torch.zeros(1)])
        delta = rewards + 0.9 * after - values
        n = len(delta)
        sums = [
            sum((0.9 * 0.8) ** (k - t) * float(delta[k]) for k in range(t, n)) for t in range(n)
        ]
        raw.append(torch.tensor(sums))
        targets.append(raw[-1] + values)
    flat = torch.cat(raw)
    whole = [(each - flat.mean()) / (flat.var() + 1e-8).sqrt() for each in raw]

    given: list[dict[str, Tensor]] = []

    def recording(new: Tensor, before: Tensor, *rest: Any, **named: Any) -> Any:
        given.append({"ratio": (new - before).exp().detach(), "advantage": rest[1].detach()})
        return policy_loss(new, before, *rest, **named)

    monkeypatch.setattr(policy_gradient, "policy_loss", recording)
    updates = recorded(trainer, groups)
    assert bool((given[0]["ratio"] == 1).all()) and not bool((given[-1]["ratio"] == 1).all())
    ours = torch.cat([one["advantage"].flatten() for one in given[: len(given) // 2]])
    assert ours[ours != 0].sort().values == pytest.approx(flat_of(whole), abs=1e-5)

    tokens = len(flat)
    for weights, found, measured in updates:
        plain.take(weights)
        policy, value = torch.zeros(()), torch.zeros(())
        rows = zip(episodes, old, before, whole, targets, strict=True)
        for done, was, known, advantage, target in rows:
            ratio = (plain.logprobs(done) - was).exp()
            clipped = ratio.clamp(0.8, 1.2)
            policy = policy - torch.minimum(ratio * advantage, clipped * advantage).sum()
            now = plain.values(done)
            near = known + (now - known).clamp(-0.05, 0.05)
            value = value + torch.maximum((now - target) ** 2, (near - target) ** 2).sum() / 2
        assert measured["train/loss"] == pytest.approx(float(policy.detach()) / tokens, abs=1e-5)
        assert measured["train/value_loss"] == pytest.approx(
            float(value.detach()) / tokens, rel=1e-5
        )
        plain.model.zero_grad(set_to_none=True)
        ((policy + value) / tokens).backward()
        expected = gradients(plain.model)
        assert expected.keys() == found.keys()
        assert any(".critic." in name for name in found) and "value_head.weight" in found
        for part in (".critic.", ".default.", "value_head."):
            names = [name for name in found if part in name or name.startswith(part)]
            largest = max(float(expected[name].abs().max()) for name in names)
            assert largest > 1e-4, part
            for name in names:
                assert float((found[name] - expected[name]).abs().max()) < 1e-5 * max(1, largest)
    assert updates[1][2]["train/value_clip"] > 0
    assert updates[1][2]["train/clip_low"] + updates[1][2]["train/clip_high"] > 0


def flat_of(values: list[Tensor]) -> Tensor:
    return torch.cat(values).sort().values


def test_the_advantages_of_a_token_skip_observations_and_end_with_the_episode() -> None:
    """Schulman et al. 2016, equations 11 and 16, by hand: two episodes, the first of two rows."""
    rewards = torch.tensor([[0.0, 1.0], [2.0, 9.0], [5.0, 9.0]])
    values = torch.tensor([[0.5, 0.25], [1.0, 9.0], [3.0, 9.0]])
    used = torch.tensor([[True, True], [True, False], [True, False]])
    found = gae(rewards, values, used, torch.tensor([0, 0, 1]), gamma=0.5, lambda_=0.5)
    third = 2 - 1
    second = 1 + 0.5 * 1 - 0.25 + 0.25 * third
    first = 0 + 0.5 * 0.25 - 0.5 + 0.25 * second
    assert found.tolist() == [[first, second], [third, 0.0], [5 - 3, 0.0]]


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(6.0, 1.0), (6.6, 1.001), (600.0, 1.002), (0.0, 0.998)],
)
def test_the_kl_coefficient_follows_its_target(kl: float, factor: float) -> None:
    """Ziegler et al. 2019, section 2.2: by at most a fifth of the share of the horizon."""
    assert adapted(0.2, kl, target=6.0, horizon=10_000, episodes=100) == pytest.approx(0.2 * factor)


def test_the_penalty_is_adapted_from_step_to_step(
    talk: Callable[..., dict], events: Recorder
) -> None:
    config = {"steps": 3, "beta": 0.2, "kl_target": 1e-3, "kl_horizon": 60}
    first, second, third = main(talk(PPO | config), events)
    assert first["train/kl_coefficient"] == 0.2 and first["train/kl_episode"] == 0
    # Six episodes: down by 2% while it is the start, then up by 2%.
    assert second["train/kl_coefficient"] == pytest.approx(0.2 * 0.98)
    assert second["train/kl_episode"] > 1e-3 or second["train/kl_episode"] < 0
    up = 1.02 if second["train/kl_episode"] > 1e-3 else 0.98
    assert third["train/kl_coefficient"] == pytest.approx(0.2 * 0.98 * up)


def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    talk: Callable[..., dict], tmp_path: Path
) -> None:
    """Policy, critic, the optimizer's state of both, minibatches and the KL's coefficient."""
    whole, rest = Recorder(tmp_path / "whole.jsonl"), Recorder(tmp_path / "rest.jsonl")
    config = PPO | {
        "steps": 3,
        "updates_per_batch": 2,
        "minibatches": 2,
        "beta": 0.1,
        "kl_target": 0.01,
        "critic_learning_rate": 2e-2,
    }
    expected = main(talk(config, out_dir=str(tmp_path / "whole")), whole)
    resume = str(tmp_path / "whole" / "checkpoint-1")
    found = main(talk(config, out_dir=str(tmp_path / "rest"), resume_from=resume), rest)
    for before, after in zip(expected[1:], found, strict=True):
        names = [name for name in before if not name.startswith("time/")]
        assert [before[name] for name in names] == [after[name] for name in names]
    assert expected[0]["train/value_mean"] == 0 != expected[1]["train/value_mean"]
    for name in ("adapter/adapter_model", "checkpoint-2/critic", "checkpoint-2/optimizer"):
        first, second = (
            load_file(tmp_path / run / f"{name}.safetensors") for run in ("whole", "rest")
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first), name
    # What is served is the policy alone.
    assert not any(
        "critic" in key for key in load_file(tmp_path / "rest/adapter/adapter_model.safetensors")
    )


def test_a_checkpoint_without_a_critic_is_refused(
    talk: Callable[..., dict], tmp_path: Path
) -> None:
    main(talk({"steps": 2}), Recorder(tmp_path / "grpo.jsonl"))
    resume = str(tmp_path / "out" / "checkpoint-1")
    with pytest.raises(JobError, match="has no critic"):
        trainer_of(talk(PPO, resume_from=resume), Recorder(tmp_path / "ppo.jsonl"))


def test_a_critic_starts_from_the_adapter_that_the_policy_starts_from(
    talk: Callable[..., dict], events: Recorder, tiny_model: Path, tmp_path: Path
) -> None:
    start = an_adapter(tiny_model, tmp_path / "start")
    spec = talk(PPO | {"beta": 0.1}, model={"base": str(tiny_model), "adapter": start})
    trainer = trainer_of(spec, events)
    weights = dict(trainer.model.named_parameters())
    theirs = {name: weight for name, weight in weights.items() if ".default." in name}
    assert len(theirs) == 28
    for name, weight in theirs.items():
        assert torch.equal(weight, weights[name.replace(".default.", ".critic.")])
    trained = {name for name, weight in weights.items() if weight.requires_grad}
    trainer.update(trainer.rollout(0))
    assert trained == {name for name, weight in weights.items() if weight.requires_grad}
    assert all(
        bool((weights[name] != weight).any())
        for name, weight in zip(
            theirs, [weights[name.replace(".default.", ".critic.")] for name in theirs], strict=True
        )
    )


def test_each_minibatch_has_an_update_of_its_own_episodes(
    talk: Callable[..., dict], events: Recorder, forgetful_model: Path
) -> None:
    """Also where an episode has several rows, which stay together."""
    spec = talk(
        PPO | {"updates_per_batch": 2, "minibatches": 3},
        model={"base": str(forgetful_model), "adapter": None},
    )
    trainer = trainer_of(spec, events)
    batch = trainer.batch_from([(group, torch.zeros(3)) for group in trainer.rollout(0)])
    parts = minibatches(batch, 3, seed=1)
    assert [len(rows) for rows in parts] == [4, 4, 4]
    assert sorted(row for rows in parts for row in rows.tolist()) == list(range(12))
    assert not {int(e) for e in batch.episode[parts[0]]} & {int(e) for e in batch.episode[parts[1]]}
    assert [rows.tolist() for rows in parts] != [rows.tolist() for rows in minibatches(batch, 3, 2)]
    assert len(recorded(trainer, trainer.rollout(1))) == 6


def test_one_answer_per_prompt_is_enough_and_equal_rewards_are_seen_over_the_step(
    talk: Callable[..., dict], events: Recorder
) -> None:
    values = main(talk(PPO | {"generations": 1}), events)
    assert all(row["train/grad_norm"] > 0 and row["train/critic_grad_norm"] > 0 for row in values)
    assert [row["train/zero_std_share"] for row in values] == [0, 0]
    trainer = trainer_of(talk(PPO), events)
    groups = trainer.rollout(0)
    for group in groups:
        for done in group.episodes:
            done.score.reward, done.score.components = 0.5, {}
    assert without_spread(groups, trainer.config) == [True]


def test_masked_episodes_teach_neither_policy_nor_critic(
    talk: Callable[..., dict], events: Recorder
) -> None:
    trainer = trainer_of(talk(PPO), events)
    groups = trainer.rollout(0)
    for group in groups:
        group.episodes[0].score.masked = True
    batch = trainer.batch_from([(group, torch.zeros(3)) for group in groups])
    batch, _ = trainer.critic.estimate(batch, None)
    assert not batch.used[0].any() and not batch.advantage[0].any() and batch.advantage[1].any()
    seen = batch.advantage[batch.used]
    assert float(seen.mean()) == pytest.approx(0, abs=1e-6)
    assert float(seen.std()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"advantages": "gae", "loss_type": "gspo"}, "advantages: must be episode with gspo"),
        ({"advantages": "gae", "dynamic_sampling": 2}, "dynamic_sampling: must be 0"),
        ({"advantages": "gae", "scale_rewards": "none"}, "scale_rewards: must be group"),
        ({"advantages": "gae", "minibatches": 33}, "minibatches: must be at most"),
        ({"advantages": "gae", "kl_target": 6.0}, "kl_target: must be 0.0 with beta 0.0"),
        ({"beta": 0.1, "kl_target": 6.0}, "kl_target: must be 0 without advantages gae"),
        ({"gae_lambda": 0.9}, r"gae_lambda: must be 0.95 with advantages episode.*choose gae"),
        ({"generations": 1}, "generations: must be at least 2"),
    ],
)
def test_settings_that_would_not_be_read_are_refused(fields: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GrpoConfig(steps=1, learning_rate=1e-3, **fields)


def test_a_critic_worse_than_a_constant_is_warned_of() -> None:
    watchman = Watchman({}, "grpo", {})
    raised = [
        alarm
        for step in range(12)
        for alarm in watchman.look(step, {"train/explained_variance": -2.0})
    ]
    assert [(alarm.name, alarm.action) for alarm in raised] == [("critic", "warn")]


@pytest.mark.proof
def test_two_turns_are_learnt_from_scratch(talk: Callable[..., dict], events: Recorder) -> None:
    """Whoever answers alike in both turns gains nothing."""
    config = {"steps": 50, "generations": 16, "save_every": 100}
    values = main(talk(PPO | config, seed=3), events)
    rewards = [row["train/reward_mean"] for row in values]
    assert sum(rewards[:5]) / 5 < 0.1 and sum(rewards[-5:]) / 5 > 0.3
    assert values[-1]["train/explained_variance"] > 0


def test_preferences_become_a_reward_model_and_that_a_policy(
    make_spec: Callable[..., dict], tiny_model: Path, tmp_path: Path
) -> None:
    """RLHF whole, end to end: pairs, the reward model of them, PPO on what it pays."""
    draw = random.Random(0)
    rows = [
        {
            "messages": task["messages"],
            "chosen": "".join(draw.choices(string.digits, k=6)),
            "rejected": "".join(draw.choices(string.ascii_letters + string.punctuation, k=6)),
        }
        for task in tasks()
        for _ in range(16)
    ]
    config = {"steps": 8, "batch_size": 12, "learning_rate": 3e-3, "lora_rank": 4, "lora_alpha": 8}
    spec = make_spec(
        rows=rows, validation_rows=rows[::4], config=config, out_dir=str(tmp_path / "reward")
    )
    judged = Recorder(tmp_path / "reward.jsonl")
    reward_model.main(typed(spec, "reward_model"), judged, StopFlag())
    adapter = judged.rows("result")[-1]["adapter"]
    folder = {
        "name": "reward-v1",
        "base": str(tiny_model),
        "adapter": adapter,
        "digest": folder_digest(Path(adapter)),
    }
    learns = {
        "steps": 3,
        "updates_per_batch": 2,
        "prompts_per_step": 3,
        "generations": 4,
        "max_new_tokens": 6,
        "learning_rate": 1e-2,
        "lora_rank": 4,
        "lora_alpha": 8,
        "beta": 0.01,
        "save_every": 100,
        "sampled_outputs": 0,
    }
    spec = make_spec(config=PPO | learns, out_dir=str(tmp_path / "policy"))
    spec["environment"] |= {
        "verifier": {
            "kind": "trained_reward",
            "version": "reward-v1",
            "digest": folder["digest"],
            "scale": "raw",
        },
        "clients": {"reward_models": [folder]},
    }
    values = main(spec, Recorder(tmp_path / "policy.jsonl"))
    assert [row["train/masked_share"] for row in values] == [0] * 3
    assert all(row["train/reward_std"] > 0 and row["train/value_loss"] > 0 for row in values)
    assert values[0]["train/kl_episode"] == 0 != values[-1]["train/kl_episode"]
    assert load_file(tmp_path / "policy/adapter/adapter_model.safetensors")
