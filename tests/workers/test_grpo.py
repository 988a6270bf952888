"""GRPO: loss and gradients held against TRL's GRPOTrainer, and the life of a run (resume, stop, bad
input).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests import warm
from tests.amounts import amount
from tests.workers.conftest import Recorder, typed
from workers import grpo
from workers.lib.alarms import Watchman
from workers.lib.engines import Prompt, Sampling
from workers.lib.errors import SpecError
from workers.lib.policies import Reply
from workers.lib.probes.watch import Seen
from workers.lib.program import Stop, StopFlag
from workers.lib.rollouts import Finished
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.specs.training import Lora
from workers.lib.verifiers import Rollout, Score
from workers.lib.watching import Alarmed, Paused
from workers.ml import attention, losses, policy_gradient, reference, tree
from workers.ml.groups import Group, advantages
from workers.ml.models import load_base, lora
from workers.ml.policy_gradient import add_gradients, sampler_gap
from workers.ml.policy_loss import policy_loss

# Equality with TRL, float32: the loss, and each gradient's largest difference relative to the
# largest gradient.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 3e-5, 3e-5
CONFIG = {
    "steps": 3,
    "prompts_per_step": 2,
    "generations": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "max_new_tokens": 8,
    "save_every": 1,
}
LORA = Lora(lora_rank=CONFIG["lora_rank"], lora_alpha=CONFIG["lora_alpha"])


def main(spec: dict, events: Recorder, stop: StopFlag) -> None:
    grpo.main(typed(spec, "grpo"), events, stop)


def Trainer(spec: dict, events: Recorder, stop: StopFlag) -> grpo.Trainer:
    return grpo.Trainer(typed(spec, "grpo"), events, stop)


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that does something, as one from SFT does."""
    folder = tmp_path_factory.mktemp("adapter")
    model = lora(load_base(tiny_model)[0], LORA, None)
    shake(model, 1, 0.1)
    model.save_pretrained(folder)
    return folder


def shake(model: torch.nn.Module, seed: int, size: float) -> None:
    """The same change for the same seed in any model of this shape."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name and parameter.requires_grad:
            parameter.data += size * torch.randn(parameter.shape, generator=generator)


def own_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name of the adapted module; the frozen reference's are left out."""
    return {
        name.replace(".default", ""): parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }


def drift(model: torch.nn.Module) -> None:
    """Stands for the optimizer's step, so far that the second update's ratios are clipped. It does
    not come from the gradients: rounding of the first update would grow in the second, by how much
    is the processor's affair.
    """
    shake(model, 3, 0.05)
    model.zero_grad()


class Drift:
    """In place of the optimizer: keeps the gradients of each update."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.gradients = model, []
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.param_groups = [{"params": trained}]

    def step(self) -> None:
        self.gradients.append(own_gradients(self.model))
        drift(self.model)

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass

    def state_dict(self) -> dict:
        return {}


class Case:
    """What both trainers are given: completions of several lengths and their rewards."""

    def __init__(self, spec: dict, rewards: list[list[float | None]]) -> None:
        generator = torch.Generator().manual_seed(5)
        self.spec, self.tasks, self.rewards = spec, spec["tasks"][: len(rewards)], rewards
        lengths = torch.randint(
            1, CONFIG["max_new_tokens"] + 1, (len(rewards), 4), generator=generator
        )
        lengths[0, 0] = 1
        self.completions = [
            [torch.randint(3, 250, (int(length),), generator=generator).tolist() for length in row]
            for row in lengths
        ]

    def groups(self, trainer: Trainer) -> list[Group]:
        return [
            Group(
                task,
                [
                    episode(
                        trainer.engine.prompt_ids(trainer.environment.conversation(task)),
                        ids,
                        reward,
                    )
                    for ids, reward in zip(completions, rewards, strict=True)
                ],
            )
            for task, completions, rewards in zip(
                self.tasks, self.completions, self.rewards, strict=True
            )
        ]


def episode(prompt: list[int], ids: list[int], reward: float | None) -> Finished:
    said = {"role": "assistant", "content": ""}
    reply = Reply(
        said, prompt_token_ids=prompt, token_ids=ids, logprobs=sampler(ids), output_tokens=len(ids)
    )
    return Finished(Rollout({}, [said]), score(reward), [reply], "stop", 0.0)


def sampler(ids: list[int]) -> list[float]:
    """What the sampler is said to have given a completion's tokens: near a random model's
    log(1/259).
    """
    generator = torch.Generator().manual_seed(sum(ids))
    return (-5.5 + 2 * torch.rand(len(ids), generator=generator)).tolist()


def score(reward: float | None) -> Score:
    masked = reward is None
    return Score(reward=reward, masked=masked, mask_reason="the verifier failed" if masked else "")


def ours(
    case: Case, events: Recorder
) -> tuple[list[float], list[dict[str, torch.Tensor]], list[dict]]:
    """Losses, gradients and metrics of two updates on the same samples, by the product's own
    `update`.
    """
    found = []

    def recording(*arguments: Any) -> tuple[torch.Tensor, dict]:
        logprobs, metrics = add_gradients(*arguments)
        found.append((metrics["train/loss"], metrics))
        return logprobs, metrics

    trainer = Trainer(case.spec, events, StopFlag())
    shake(trainer.model, 2, 0.02)
    trainer.optimizer = optimizer = Drift(trainer.model)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "add_gradients", recording)
        trainer.update(case.groups(trainer))
    return [loss for loss, _ in found], optimizer.gradients, [metrics for _, metrics in found]


def theirs(case: Case, folder: Path) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """The same by TRL's GRPOTrainer: its tokenization, advantages, reference and loss; only
    sampling is replaced.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from workers.lib.environments import load

    config, environment = typed(case.spec, "grpo").config, load(case.spec["environment"])
    base, tokenizer = load_base(case.spec["model"]["base"])
    rows = [{"prompt": environment.conversation(task)} for task in case.tasks for _ in range(4)]
    flat_rewards = [reward for row in case.rewards for reward in row]
    sequence = config.loss_type == "gspo"
    if config.loss_type == "rloo":
        return theirs_rloo(case, folder, rows, flat_rewards)
    trainer = GRPOTrainer(
        model=lora(base, config, case.spec["model"]["adapter"]),
        reward_funcs=lambda completions, **_: flat_rewards,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=len(rows),
            num_generations=4,
            num_iterations=2,
            max_completion_length=config.max_new_tokens,
            temperature=config.temperature,
            beta=config.beta,
            epsilon=config.clip_low,
            epsilon_high=config.clip_high,
            loss_type="grpo" if sequence else config.loss_type,
            importance_sampling_level="sequence" if sequence else "token",
            scale_rewards=config.scale_rewards,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
        ),
    )
    completions = [ids for group in case.completions for ids in group]
    trainer._generate_single_turn = lambda *_, **__: (
        completions,
        [sampler(ids) for ids in completions],
    )
    if config.correction in ("tis", "mis"):
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        kind = "truncate" if config.correction == "tis" else "mask"
        trainer.vllm_importance_sampling_mode = f"{config.correction_level}_{kind}"
        trainer.vllm_importance_sampling_clip_min = config.correction_min
        trainer.vllm_importance_sampling_clip_max = config.correction_max
    trainer.current_gradient_accumulation_steps = 1
    return two_updates(trainer, rows)


def theirs_rloo(
    case: Case, folder: Path, rows: list, rewards: list
) -> tuple[list[float], list[dict]]:
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    config = typed(case.spec, "grpo").config
    base, tokenizer = load_base(case.spec["model"]["base"])
    trainer = RLOOTrainer(
        model=lora(base, config, case.spec["model"]["adapter"]),
        reward_funcs=lambda completions, **_: rewards,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=RLOOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=len(rows),
            num_generations=4,
            num_iterations=2,
            max_completion_length=config.max_new_tokens,
            beta=0.0,
            epsilon=config.clip_low,
            epsilon_high=config.clip_high,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
        ),
    )
    completions = [ids for group in case.completions for ids in group]
    trainer._generate_single_turn = lambda *_, **__: completions
    trainer.current_gradient_accumulation_steps = 1
    return two_updates(trainer, rows)


def two_updates(trainer: Any, rows: list) -> tuple[list[float], list[dict]]:
    model = trainer.model.train()
    shake(model, 2, 0.02)
    inputs = trainer._generate_and_score_completions(rows)
    losses, gradients = [], []
    for _ in range(2):
        loss = trainer._compute_loss(model, inputs)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(own_gradients(model))
        drift(model)
    return losses, gradients


SPREAD = [[1.0, -1.0, 0.4, 0.2], [0.6, 0.6, -1.0, 1.0], [0.0, 0.2, 1.0, 1.0]]
CASES = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "gspo", "clip_low": 0.02, "clip_high": 0.03},
    "grpo with KL": {"loss_type": "grpo", "beta": 0.1},
    "dapo with KL": {"loss_type": "dapo", "beta": 0.1},
    "gspo with KL": {"loss_type": "gspo", "beta": 0.01, "clip_low": 0.02, "clip_high": 0.03},
    "dapo, temperature 0.7": {"loss_type": "dapo", "temperature": 0.7},
    "dapo with KL, no adapter to start from": {"loss_type": "dapo", "beta": 0.1},
    "grpo with KL, row by row": {"loss_type": "grpo", "beta": 0.1},
    "dapo, row by row": {"loss_type": "dapo"},
    "dr_grpo, two rows at a time": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo with KL, two conversations and one": {"loss_type": "dapo", "beta": 0.1},
    "dapo with KL, attention in chunks": {"loss_type": "dapo", "beta": 0.1},
    "rloo": {"loss_type": "rloo", "baseline": "leave_one_out", "scale_rewards": "none"},
    "dapo, TIS": {"loss_type": "dapo", "correction": "tis", "beta": 0.1},
    "grpo, MIS": {"loss_type": "grpo", "correction": "mis", "clip_high": 0.2},
    "dapo, TIS of sequences": {
        "loss_type": "dapo",
        "correction": "tis",
        "correction_level": "sequence",
    },
    "gspo, MIS of sequences": {
        "loss_type": "gspo",
        "clip_low": 0.02,
        "clip_high": 0.03,
        "correction": "mis",
        "correction_level": "sequence",
        "correction_min": 0.01,
        "correction_max": 100.0,
    },
    "dapo, micro-batches of 5": {"loss_type": "dapo", "beta": 0.1, "micro_batch": 5},
    "grpo, gradient checkpointing": {
        "loss_type": "grpo",
        "beta": 0.1,
        "gradient_checkpointing": True,
    },
    "dapo, rsLoRA": {"loss_type": "dapo", "use_rslora": True},
    "dapo, DoRA": {"loss_type": "dapo", "use_dora": True},
}
TOKENS_AT_ONCE = {
    "row by row": 1,
    "two rows": 2 * CONFIG["max_new_tokens"],
    "two conversations": 100,
}


FEW_CASES = (
    "gspo with KL",
    "dapo with KL, two conversations and one",
    "grpo, MIS",
)


@pytest.mark.more
@pytest.mark.parametrize("name", amount(FEW_CASES, tuple(CASES)))
def test_loss_and_gradients_are_those_of_trl(
    name: str,
    adapter: Path,
    tiny_model: Path,
    make_spec: Callable[..., dict],
    events: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for part, tokens in TOKENS_AT_ONCE.items():
        if part in name:
            monkeypatch.setitem(tree.PART, "cpu", tokens)
    if "chunks" in name:
        monkeypatch.setitem(attention.BLOCK, "cpu", 4)
    fresh = "no adapter" in name or "LoRA" in name or "DoRA" in name
    model = {"base": str(tiny_model), "adapter": None if fresh else str(adapter)}
    config = CONFIG | {"updates_per_batch": 2, "max_grad_norm": 1e9} | CASES[name]
    torch.manual_seed(0)  # for the new adapter of the last case
    compare(Case(make_spec(model=model, config=config), SPREAD), events, tmp_path)


def compare(case: Case, events: Recorder, folder: Path) -> None:
    expected_losses, expected = theirs(case, folder)
    losses, gradients, metrics = ours(case, events)
    assert losses == pytest.approx(expected_losses, abs=LOSS_TOLERANCE, rel=LOSS_TOLERANCE)
    for mine, trl in zip(gradients, expected, strict=True):
        assert mine.keys() == trl.keys() and len(mine) >= 2 * 2 * 7
        largest = max(float(gradient.abs().max()) for gradient in trl.values())
        assert largest > 1e-3
        for name, gradient in trl.items():
            assert float((mine[name] - gradient).abs().max()) < GRADIENT_TOLERANCE * largest, name
    # The second update is off policy, far enough that both sides of the clipping were at work.
    assert metrics[0]["train/clip_low"] == metrics[0]["train/clip_high"] == 0
    assert metrics[1]["train/clip_low"] > 0 and metrics[1]["train/clip_high"] > 0


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor of floats that was computed; views are of what
    is there.
    """

    elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            found = [
                leaf
                for leaf in tree_leaves(made)
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            ]
            self.elements = max(0, self.elements, *(leaf.numel() for leaf in found))
        return made


@pytest.mark.proof
def test_an_update_never_holds_all_logits_or_attention_weights(
    make_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many samples a step has; what grows with them is in the log-probabilities alone."""
    monkeypatch.setitem(losses.CHUNK, "cpu", 2000)
    monkeypatch.setitem(attention.BLOCK, "cpu", 4)
    monkeypatch.setitem(tree.PART, "cpu", 32)
    case = Case(make_spec(config=CONFIG | {"beta": 0.1}), SPREAD)
    trainer = Trainer(case.spec, events, StopFlag())
    groups = case.groups(trainer)
    vocabulary, width = trainer.engine.head.weight.shape
    tokens = sum(len(ids) for group in case.completions for ids in group)
    prompt = max(
        len(done.replies[0].prompt_token_ids) for group in groups for done in group.episodes
    )
    with Largest() as largest:
        assert trainer.update(groups)["train/grad_norm"] > 0
    # A prompt's own activations, or an adapter's gradient: no smaller than these.
    assert largest.elements <= max(2000, prompt * 2 * width)
    assert largest.elements < tokens * vocabulary / 3 and largest.elements < prompt * prompt


def test_a_masked_sample_moves_nothing(
    make_spec: Callable[..., dict], events: Recorder, adapter: Path
) -> None:
    """Its completion may be anything: the gradient is the same."""
    spec = make_spec(config=CONFIG | {"loss_type": "dapo", "updates_per_batch": 1})
    spec["model"]["adapter"] = str(adapter)
    case = Case(spec, [[1.0, None, 0.4, 0.2], [0.6, 0.6, -1.0, 1.0]])
    [loss], [before], _ = ours(case, events)
    case.completions[0][1] = [9] * 8
    [other], [after], _ = ours(case, events)
    assert loss == pytest.approx(other, abs=LOSS_TOLERANCE)
    largest = max(float(gradient.abs().max()) for gradient in before.values())
    for name, gradient in before.items():
        assert float((after[name] - gradient).abs().max()) < GRADIENT_TOLERANCE * largest, name


def test_the_correction_in_process_is_exactly_one(
    make_spec: Callable[..., dict], events: Recorder, adapter: Path
) -> None:
    """Float32 and no truncation: nothing is corrected, and the policy's own ratio is 1 to the last
    bit. With top_p the sampler's distribution is another one: the gap is measured, and corrected
    for."""
    found, policies, given = {}, [], []

    def recording(
        new: torch.Tensor, old: torch.Tensor, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, dict]:
        policies.append((new - old).exp().detach())
        given.append(named["weight"])
        return policy_loss(new, old, *rest, **named)

    for top_p in (1.0, 0.5):
        spec = make_spec(config=CONFIG | {"top_p": top_p, "kl_every": 0})
        spec["model"]["adapter"] = str(adapter)
        trainer = Trainer(spec, events, StopFlag())
        groups = trainer.rollout(0)
        for group in groups:
            for at, done in enumerate(group.episodes):
                done.score = score(float(at))
        given.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(policy_gradient, "policy_loss", recording)
            found[top_p] = trainer.update(groups)
        assert all(bool((ratio == 1).all()) for ratio in policies)
        assert all((weight is None) == (top_p == 1) for weight in given)
    exact, cut = found[1.0], found[0.5]
    assert exact["train/corrected_share"] == 0 and "train/gen_kl_error" in exact
    assert exact["train/ratio_min"] == pytest.approx(1, abs=3e-5)
    assert exact["train/ratio_max"] == pytest.approx(1, abs=3e-5)
    assert exact["train/effective_samples"] == pytest.approx(1, abs=1e-6)
    # Half of the mass was cut off: the sampler's tokens are about twice as likely as the trainer
    # says.
    assert 0.4 < cut["train/ratio_mean"] < 0.8 and cut["train/ratio_max"] <= 1 + 1e-5
    assert cut["train/logp_diff_mean"] > 0.3 and "train/gen_kl_error" not in cut


def drawn_tasks(trainer: Trainer, step: int) -> list[dict]:
    return [trainer.tasks[place] for place in trainer.draw.draw(step)]


def test_dynamic_sampling_replaces_groups_without_spread_by_other_tasks(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    spec = make_spec(config=CONFIG | {"dynamic_sampling": 3})
    spec["tasks"] = [spec["tasks"][0] | {"id": f"task-{at}"} for at in range(6)]
    trainer = Trainer(spec, events, StopFlag())
    first, drawn = {task["id"] for task in drawn_tasks(trainer, 0)}, []

    def played(tasks: list[dict], step: int, seed: int) -> list[Group]:
        drawn.append(([task["id"] for task in tasks], seed))
        values = [[1.0] * 4 if task["id"] in first else [1.0, 0, 0, 0] for task in tasks]
        return [
            Group(task, [episode([3], [4], one) for one in row])
            for task, row in zip(tasks, values, strict=True)
        ]

    trainer.groups_of = played  # type: ignore[method-assign]
    groups = trainer.rollout(0)
    assert [len(ids) for ids, _ in drawn] == [2, 2] and drawn[0][1] != drawn[1][1]
    assert len({group.task["id"] for group in groups}) == 4  # no task twice in a step
    first |= {task["id"] for task in trainer.tasks}
    drawn.clear()
    trainer.rollout(0)
    assert [len(ids) for ids, _ in drawn] == [2, 2, 2]  # all are flat: until no task is left


@pytest.mark.more
def test_the_update_is_as_large_however_many_groups_are_flat(
    make_spec: Callable[..., dict], events: Recorder, adapter: Path
) -> None:
    """One group that differs alone, and beside two that do not: the same gradient, by any loss."""
    for loss_type in amount(("dapo", "gspo"), ("grpo", "dapo", "dr_grpo", "gspo", "rloo")):
        gradients = []
        for rewards in ([SPREAD[0]], [SPREAD[0], [0.5] * 4, [1.0] * 4]):
            spec = make_spec(
                config=CONFIG | {"loss_type": loss_type, "kl_every": 0, "max_grad_norm": 1e9}
            )
            spec["model"]["adapter"] = str(adapter)
            case = Case(spec, rewards)
            case.completions[0] = [[5, 9, 77], [8, 8, 8, 100], [60], [44, 33]]
            gradients.append(ours(case, events)[1][0])
        alone, beside = gradients
        assert all(torch.allclose(alone[name], beside[name], atol=1e-7) for name in alone)


def test_overlong_answers_are_shaped_in_training_and_the_reward_stays(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    config = CONFIG | {"overlong_buffer": 4, "mask_truncated": True}
    trainer = Trainer(make_spec(config=config), events, StopFlag())
    groups = trainer.rollout(0)
    for group in groups:
        for done in group.episodes:
            reply, judged = done.replies[0], done.score
            lost = -min(1.0, max(0.0, (reply.output_tokens - 4) / 4))
            assert judged.components["overlong"] == pytest.approx(lost)
        expected = advantages(
            torch.tensor([judged.reward + judged.components["overlong"] for judged in group.scores])
        )
        assert torch.equal(group.advantages(trainer.config), expected)
    batch = trainer.batch_from([(group, group.advantages(trainer.config)) for group in groups])
    cut = [done.truncated for group in groups for done in group.episodes]
    assert any(cut) and [not bool(row.any()) for row in batch.used] == cut


def test_groups_without_spread_are_skipped_unless_kl_holds_them(
    make_spec: Callable[..., dict], events: Recorder, adapter: Path
) -> None:
    flat = [[0.2] * 4, [1.0] * 4]
    spec = make_spec(config=CONFIG | {"beta": 0.0})
    spec["model"]["adapter"] = str(adapter)
    assert ours(Case(spec, flat), events)[0] == []
    assert len(ours(Case(spec | {"config": CONFIG | {"beta": 0.1}}, flat), events)[0]) == 1


@pytest.mark.parametrize(
    ("rewards", "scale", "expected"),
    [
        ([1, 0], "group", [0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4)]),
        ([1, 0], "none", [0.5, -0.5]),
        ([1, 0, float("nan")], "none", [0.5, -0.5, 0]),
        ([1, 1, 1], "group", [0, 0, 0]),
        ([1, float("nan")], "group", [0, 0]),
    ],
)
def test_advantages(rewards: list[float], scale: str, expected: list[float]) -> None:
    assert advantages(torch.tensor(rewards, dtype=torch.float32), scale).tolist() == pytest.approx(
        expected, abs=1e-6
    )


def test_the_sampler_is_the_trainer(
    make_spec: Callable[..., dict], events: Recorder, adapter: Path
) -> None:
    """What the engine says of its tokens is what the update computes: the policy gradient is on
    policy.
    """
    spec = make_spec(config=CONFIG | {"temperature": 0.8})
    spec["model"]["adapter"] = str(adapter)
    trainer = Trainer(spec, events, StopFlag())
    batch = trainer.batch_from([(group, torch.ones(4)) for group in trainer.rollout(0)])
    logprobs = tree.logprobs_of(trainer.model, batch.rows, 0.8)
    assert sampler_gap(logprobs, batch.rows)["train/logp_diff_max"] < 2e-5
    wrong = [replace(row, logprobs=[value - 0.5 for value in row.logprobs]) for row in batch.rows]
    assert sampler_gap(logprobs, wrong)["train/logp_diff_mean"] == pytest.approx(0.5, abs=1e-3)


@pytest.fixture
def lengths_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that random weights can vary in: the share of letters among the bytes."""

    async def rewarded(episode: Any) -> Score:
        output = episode.said[0]["content"] or ""
        share = sum(letter.isascii() and letter.isalpha() for letter in output) / max(
            1, len(output)
        )
        return Score(reward=share, success=share > 0.5)

    monkeypatch.setattr("workers.lib.environments.workplace.OneCall.score", rewarded)


@pytest.fixture
def run_spec(
    make_spec: Callable[..., dict], adapter: Path, lengths_pay: None
) -> Callable[..., dict]:
    def make(**fields: Any) -> dict:
        spec = make_spec(config=CONFIG | {"beta": 0.05, "eval_every": 1}, seed=11)
        spec["model"]["adapter"] = str(adapter)
        return spec | {"validation_tasks": spec["tasks"][:1]} | fields

    return make


@pytest.mark.proof
def test_without_beta_the_kl_is_measured_at_intervals_and_holds_nothing(
    run_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    adapters = []
    for every in (2, 0):
        out = tmp_path / f"every-{every}"
        config = CONFIG | {"beta": 0.0, "kl_every": every, "sampled_outputs": 0}
        main(run_spec(config=config, validation_tasks=[], out_dir=str(out)), events, StopFlag())
        adapters.append(load_file(out / "adapter" / "adapter_model.safetensors"))
    found = [row["values"].get("train/kl") for row in events.rows("metric")]
    assert [value is None for value in found] == [True, False, True, True, True, True] and found[
        1
    ] > 0
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])


@pytest.mark.parametrize(
    ("seen", "steps"),
    [
        (
            [],
            [2, 3, 4, 5, 10, 15, 20],
        ),  # nothing of the KL was known before step 15, as its alarm needs three values
        ([0.1, 0.4], list(range(1, 21))),
        ([0.4, 0.1], [2, 3, 4, 5, 10, 15, 20]),
    ],
)
def test_the_kl_is_measured_in_the_first_steps_and_while_it_is_high(
    seen: list[float], steps: list[int]
) -> None:
    trainer = object.__new__(grpo.Trainer)
    trainer.config, trainer.watchman = GrpoConfig(steps=20, learning_rate=1e-3), Watchman()
    for value in seen:
        trainer.watchman.look(1, {"train/kl": value})
    assert [step for step in range(1, 21) if trainer.measures_kl(step)] == steps


@pytest.mark.proof
def test_updates_on_the_same_rollouts_that_are_clipped_everywhere_are_no_collapse(
    run_spec: Callable[..., dict], events: Recorder
) -> None:
    """The norm of the last update was reported, which is 0 where it is clipped."""
    config = CONFIG | {
        "loss_type": "gspo",
        "updates_per_batch": 6,
        "clip_low": 1e-9,
        "clip_high": 1e-9,
    }
    main(run_spec(config=config, validation_tasks=[]), events, StopFlag())
    norms = [
        row["values"]["train/grad_norm"]
        for row in events.rows("metric")
        if "train/loss" in row["values"]
    ]
    assert len(norms) == 3 and all(norm > 1e-3 for norm in norms)


def test_a_run_tells_all_and_leaves_an_adapter(
    run_spec: Callable[..., dict], events: Recorder, adapter: Path, tmp_path: Path
) -> None:
    main(run_spec(), events, StopFlag())
    trained = [row["values"] for row in events.rows("metric") if "train/loss" in row["values"]]
    names = {
        *(
            "train/loss",
            "train/learning_rate",
            "train/grad_norm",
            "train/reward_mean",
            "train/reward_std",
            "train/kl",
        ),
        *(
            "train/entropy",
            "train/clip_low",
            "train/clip_high",
            "train/zero_std_share",
            "train/completion_length",
        ),
        *("train/truncated_share", "train/logp_diff_mean", "train/logp_diff_max", "train/success"),
        *("time/generate_s", "time/update_s", "train/tokens", "train/distinct_tokens"),
    }
    assert len(trained) == 3 and all(names <= set(values) for values in trained)
    assert all(values["train/logp_diff_max"] < 2e-5 for values in trained)
    assert trained[0]["train/kl"] == 0 and trained[2]["train/kl"] > 0
    assert [
        row["step"] for row in events.rows("metric") if "validation/reward" in row["values"]
    ] == [0, 1, 2, 3]
    assert all(0 < values["train/distinct_tokens"] < values["train/tokens"] for values in trained)
    labels = [row["label"] for row in events.rows("progress")]
    first = ["sampling 0 of 8", "scoring 8 of 8", "updating"]
    assert labels[0] == "loading the model" and "validation: sampling 0 of 1" in labels
    assert [label for label in labels if label in first][:3] == first and labels[-1].startswith(
        "reward "
    )
    phases = [(row["phase"], row["step"]) for row in events.rows("sample")]
    assert phases.count(("train", 1)) == 8 and phases.count(("validation", 3)) == 1
    assert [row["step"] for row in events.rows("checkpoint")] == [1, 2]
    result = events.rows()[-1]
    assert result["type"] == "result" and result["adapter"] == str(tmp_path / "out" / "adapter")
    before, after = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (adapter, tmp_path / "out/adapter")
    )
    assert before.keys() == after.keys() and not torch.equal(
        *(next(iter(x.values())) for x in (before, after))
    )
    files = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.safetensors",
        "state.json",
    }
    assert not list((tmp_path / "out").rglob("reference"))


@pytest.mark.proof
def test_it_learns_what_is_rewarded(run_spec: Callable[..., dict], events: Recorder) -> None:
    # Five times the rate of an ordinary run; and what is paid here is not what the tasks ask for.
    alarms = {"kl": {"action": "warn"}, "hacking": {"action": "ignore"}}
    config = CONFIG | {
        "steps": 20,
        "generations": 8,
        "save_every": 100,
        "learning_rate": 5e-2,
        "alarms": alarms,
    }
    main(run_spec(config=config, validation_tasks=[]), events, StopFlag())
    rewards = [
        row["values"]["train/reward_mean"]
        for row in events.rows("metric")
        if "train/loss" in row["values"]
    ]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 5 * 0.25


def metrics_of(events: Recorder) -> dict[tuple[int, str], float]:
    return {
        (row["step"], name): value
        for row in events.rows("metric")
        for name, value in row["values"].items()
        if not name.startswith("time/")
    }


DRAWS = {
    "plain": {},
    "drawn": {"dynamic_sampling": 1, "curriculum": True, "replay_share": 0.5, "top_p": 0.8},
}


@pytest.mark.more
@pytest.mark.parametrize("options", amount(["drawn"], [*DRAWS]))
def test_a_resumed_run_is_the_same_as_an_unbroken_one(
    options: str, run_spec: Callable[..., dict], tmp_path: Path
) -> None:
    """Bit for bit, the curves and the weights."""
    whole, rest = Recorder(tmp_path / "whole.jsonl"), Recorder(tmp_path / "rest.jsonl")
    spec = run_spec(out_dir=str(tmp_path / "whole"), success_rates={"task-1234": 0.5})
    spec["config"] |= DRAWS[options]
    main(spec, whole, StopFlag())
    resume = tmp_path / "whole" / "checkpoint-1"
    main(spec | {"out_dir": str(tmp_path / "rest"), "resume_from": str(resume)}, rest, StopFlag())
    assert {key: value for key, value in metrics_of(whole).items() if key[0] > 1} == {
        key: value for key, value in metrics_of(rest).items() if key[0] > 1
    }
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("whole", "rest")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.proof
@pytest.mark.parametrize("where", ["an update", "a generation", "the second update of a batch"])
def test_interrupted_in_the_middle_is_uninterrupted_in_the_end(
    where: str, run_spec: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tree.PART, "cpu", 8)  # several parts an update
    config = CONFIG | {
        "updates_per_batch": 2 if "second" in where else 1,
        "save_every": 100,
        "eval_every": 1,
    }
    whole, broken, rest = (
        Recorder(tmp_path / f"{name}.jsonl") for name in ("whole", "broken", "rest")
    )
    main(run_spec(config=config, out_dir=str(tmp_path / "whole")), whole, StopFlag())
    stop, checked, updates, real = StopFlag(), [], [], grpo.add_gradients

    def counted(*arguments: Any) -> Any:
        updates.append(len(checked))
        return real(*arguments)

    def check() -> None:
        """Step 2: before its third token, or before the second part of an update."""
        checked.append(1)
        sampled = [(row["phase"], row["step"]) for row in broken.rows("sample")]
        if where == "a generation":
            tokens.append(("validation", 1) in sampled and ("train", 2) not in sampled)
            stop.is_set = stop.is_set or sum(tokens) == 4
        else:
            nth = 4 if "second" in where else 2
            stop.is_set = stop.is_set or (len(updates) == nth and len(checked) == updates[-1] + 2)
        StopFlag.check(stop)

    tokens: list[bool] = []
    monkeypatch.setattr(grpo, "add_gradients", counted)
    stop.check = check  # type: ignore[method-assign]
    with pytest.raises(Stop):
        main(run_spec(config=config, out_dir=str(tmp_path / "broken")), broken, stop)
    monkeypatch.setattr(grpo, "add_gradients", real)
    (saved,) = broken.rows("checkpoint")
    assert saved["step"] == 1
    main(
        run_spec(config=config, out_dir=str(tmp_path / "rest"), resume_from=saved["path"]),
        rest,
        StopFlag(),
    )
    joined = metrics_of(broken) | metrics_of(rest)
    assert joined == metrics_of(whole)
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("whole", "rest")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_stop_is_heard_while_the_reference_is_asked(
    run_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, real = StopFlag(), reference.logprobs_of

    def asked(*arguments: Any) -> Any:
        stop.is_set = True
        return real(*arguments)

    monkeypatch.setattr(reference, "logprobs_of", asked)
    monkeypatch.setattr(grpo, "add_gradients", lambda *_: pytest.fail("an update after the stop"))
    with pytest.raises(Stop):
        main(run_spec(config=CONFIG | {"beta": 0.1}), events, stop)


class StopAfter(StopFlag):
    """Asks to stop at the n-th time it is looked at."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def check(self) -> None:
        self.looks -= 1
        self.is_set = self.looks <= 0
        super().check()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("looks", [1, 2, 4, 5, 7, 9])
def test_a_stop_anywhere_leaves_a_checkpoint_from_which_all_goes_on(
    looks: int, run_spec: Callable[..., dict], tmp_path: Path
) -> None:
    spec = run_spec(out_dir=str(tmp_path / "stopped"))
    stopped, rest = Recorder(tmp_path / "stopped.jsonl"), Recorder(tmp_path / "rest.jsonl")
    with pytest.raises(Stop):
        main(spec, stopped, StopAfter(looks))
    saved = stopped.rows("checkpoint")[-1]
    assert not list(tmp_path.glob("stopped/*.incoming"))
    main(spec | {"resume_from": saved["path"]}, rest, StopFlag())
    assert rest.rows("result") and max(step for step, _ in metrics_of(rest)) == 3
    assert (
        min(row["step"] for row in rest.rows("metric") if "train/loss" in row["values"])
        == saved["step"] + 1
    )


WRONG_AND_PAID = {
    2: Seen({"watch/best_wrong": 0.0}, {}),
    3: Seen({"watch/best_wrong": 1.0}, {"hacking": "For example: hm."}),
}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("action", ["stop", "pause", "warn", "ignore"])
def test_a_run_whose_policy_climbs_a_hole_does_what_the_alarm_says(
    action: str, run_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward of a planted verifier rises with the step, and so does the share of wrong outputs
    among the best-paid.
    """
    steps = iter(range(1, 100))
    monkeypatch.setattr(
        grpo.watch, "look", lambda paid: WRONG_AND_PAID[2 if next(steps) <= 2 else 3]
    )
    real = grpo.rollout_metrics
    rising = iter(range(100))
    monkeypatch.setattr(
        grpo,
        "rollout_metrics",
        lambda groups, config, **options: (
            real(groups, config, **options) | {"train/reward_mean": next(rising) / 10}
        ),
    )
    alarms = {"hacking": {"action": action, "over": 2}}
    spec = run_spec(
        config=CONFIG | {"steps": 6, "save_every": 100, "alarms": alarms}, validation_tasks=[]
    )
    ends = {
        "stop": pytest.raises(Alarmed, match="exploiting a hole"),
        "pause": pytest.raises(Paused, match="Paused at step 4"),
    }
    with ends.get(action, nullcontext()):
        main(spec, events, StopFlag())
    raised = [
        (row["name"], row["step"], row["action"])
        for row in events.rows("alarm")
        if row["name"] == "hacking"
    ]
    assert raised == ([] if action == "ignore" else [("hacking", 4, action)])
    assert [row["step"] for row in events.rows("checkpoint")] == ([4] if action in ends else [])
    assert any("For example: hm." in row["message"] for row in events.rows("log")) == (
        action != "ignore"
    )
    assert metrics_of(events)[3, "watch/best_wrong"] == 1.0


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("updates", [2, 1])
def test_an_explosion_is_stopped_and_the_step_that_would_have_written_nan_is_not_applied(
    updates: int, run_spec: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is NaN in step 2; with two updates a batch in the second of them."""
    real, calls = grpo.add_gradients, iter(range(1, 100))

    def exploding(model: Any, *arguments: Any) -> Any:
        found = real(model, *arguments)
        if next(calls) == 2 * updates:
            next(p for p in model.parameters() if p.requires_grad).grad[0] = float("nan")
        return found

    monkeypatch.setattr(grpo, "add_gradients", exploding)
    config = CONFIG | {"updates_per_batch": updates}
    broken, whole = Recorder(tmp_path / "broken.jsonl"), Recorder(tmp_path / "whole.jsonl")
    with pytest.raises(
        Alarmed, match=r"NaN or infinity in the update: train/grad_norm.*not applied"
    ):
        main(run_spec(config=config, out_dir=str(tmp_path / "broken")), broken, StopFlag())
    assert [row["step"] for row in broken.rows("checkpoint")] == [1]
    assert [(row["name"], row["action"]) for row in broken.rows("alarm")] == [
        ("non_finite", "stop")
    ]
    # From the checkpoint the run goes on as if nothing had been: nothing of the broken step is in
    # it.
    monkeypatch.setattr(grpo, "add_gradients", real)
    rest = Recorder(tmp_path / "rest.jsonl")
    resume = broken.rows("checkpoint")[-1]["path"]
    main(
        run_spec(config=config, out_dir=str(tmp_path / "rest"), resume_from=resume),
        rest,
        StopFlag(),
    )
    main(run_spec(config=config, out_dir=str(tmp_path / "whole")), whole, StopFlag())
    first, second = (
        load_file(tmp_path / name / "adapter/adapter_model.safetensors")
        for name in ("whole", "rest")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.proof
def test_an_absurd_learning_rate_is_stopped_with_finite_weights(
    run_spec: Callable[..., dict], events: Recorder, tmp_path: Path
) -> None:
    config = CONFIG | {"steps": 40, "save_every": 1, "beta": 0.05}
    spec = typed(run_spec(config=config, validation_tasks=[]), "grpo")
    spec.config.learning_rate = 1e30  # beyond what a spec may say
    with pytest.raises(Alarmed):
        grpo.main(spec, events, StopFlag())
    assert events.rows("alarm")[-1]["action"] == "stop" and events.rows("alarm")[-1]["step"] <= 10
    saved = events.rows("checkpoint")
    assert saved
    for row in saved:
        weights = load_file(Path(row["path"]) / "adapter_model.safetensors")
        assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_sigterm_saves_and_exits_with_143(run_spec: Callable[..., dict], tmp_path: Path) -> None:
    """As the runner does it: a process of its own, events on a pipe."""
    spec = run_spec(config=CONFIG | {"steps": 100_000, "save_every": 100_000}, validation_tasks=[])
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    reading, writing = os.pipe()
    child = warm.Program(
        ["workers.grpo", str(path)],
        pass_fds=[writing],
        env=os.environ | {"FLYWHEEL_EVENTS_FD": str(writing), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    with os.fdopen(reading) as lines:
        rows = []
        for line in lines:
            rows.append(json.loads(line))
            if rows[-1]["type"] == "metric" and child.poll() is None and rows[-1]["step"] == 2:
                child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 143, child.stderr.read().decode()
    assert [row["type"] for row in rows[-2:]] == ["checkpoint", "log"]
    folder = Path(rows[-2]["path"])
    assert json.loads((folder / "state.json").read_text())["step"] == rows[-2]["step"] >= 2
    assert load_file(folder / "adapter_model.safetensors")
    assert (
        folder / "optimizer.safetensors"
    ).is_file()  # random weights earn −1 each time: no update, no state
    assert not list(folder.parent.glob("*.incoming"))


@pytest.mark.proof
def test_a_full_disk_keeps_the_last_checkpoint(
    run_spec: Callable[..., dict], events: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from workers.ml import checkpoint

    save_file, calls = checkpoint.save_file, []

    def full(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save_file(*arguments, **named)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        main(run_spec(), events, StopFlag())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-1"]
    assert [row["step"] for row in events.rows("checkpoint")] == [1]


def test_each_epoch_goes_through_all_tasks(
    make_spec: Callable[..., dict], events: Recorder
) -> None:
    trainer = Trainer(make_spec(config=CONFIG), events, StopFlag())
    drawn = [task["id"] for step in range(3) for task in drawn_tasks(trainer, step)]
    assert sorted(drawn[:3]) == sorted(drawn[3:]) == sorted(task["id"] for task in trainer.tasks)
    assert [task["id"] for task in drawn_tasks(trainer, 1)] == drawn[2:4]


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"loss_type": "ppo"}, "config.loss_type"), ({"temperature": 0}, "config.temperature")],
)
def test_a_config_that_cannot_be_is_refused(
    changes: dict, says: str, make_spec: Callable[..., dict], events: Recorder
) -> None:
    with pytest.raises(SpecError, match=says):
        Trainer(make_spec(config=CONFIG | changes), events, StopFlag())


def test_sampling_of_a_step_is_its_own(make_spec: Callable[..., dict], events: Recorder) -> None:
    trainer = Trainer(make_spec(config=CONFIG), events, StopFlag())
    seen: list[tuple[list[Prompt], Sampling]] = []
    generate = trainer.engine.generate
    trainer.engine.generate = lambda *given: seen.append(given[:2]) or generate(*given)
    trainer.rollout(0), trainer.rollout(1)
    first, second = ({seed for prompt in prompts for seed in prompt.seeds} for prompts, _ in seen)
    assert len(first) == len(second) == 8 and not first & second
    assert seen[0][1].max_new_tokens == 8
