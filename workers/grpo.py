"""GRPO on LoRA adapters. `python -m workers.grpo spec.json` (docs/jobs.md). Read it from top to bottom.

Each step: play G episodes of each of P tasks, score them with the environment's verifier, take advantages within each
group, and move the policy. What is trained on are the tokens that were sampled (workers.lib.token_rows); what tools and
users said between an agent's turns carries no loss. Rollouts and update share their prompts (workers.ml.tree): the system
prompt is computed once a step, each task's own words once, and only what came after them G times.

Sources: GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO 2507.18071.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from workers.evaluate import emit_sample, limits_of, sampling_of
from workers.lib.adapter_serving import ServersLost
from workers.lib.advantages import OVERLONG, group_advantages, overlong_shaping
from workers.lib.alarms import Watchman
from workers.lib.engines import Sampling
from workers.lib.environments import Environment, load
from workers.lib.events import Emitter
from workers.lib.policies import EnginePolicy, Policy, PolicyError
from workers.lib.probes import watch
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.rollouts import Finished, play
from workers.lib.sampler_gap import gap_metrics
from workers.lib.specs import Grpo, GrpoConfig
from workers.lib.task_draw import TaskDraw
from workers.lib.token_rows import TokenRow, rows_of
from workers.lib.verifiers import Score
from workers.lib.watching import Alarmed, report
from workers.ml import checkpoint
from workers.ml.checkpoint import restore, snapshot
from workers.ml.correction import correction_metrics, correction_of, ratios, sampler_logprobs, weights
from workers.ml.models import device, load_base, lora, set_threads, training_dtype
from workers.ml.policy_loss import policy_loss
from workers.ml.server_rollouts import Ahead, ServerRollouts
from workers.ml.transformers_engine import TransformersEngine
from workers.ml.tree import Scored, logprobs_of, pad, scored_parts

REDRAWN = 1_000_003  # between the seeds of a step's rounds of dynamic sampling


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
        """How many the policy wrote."""
        return sum(reply.output_tokens for done in self.episodes for reply in done.replies)

    @property
    def rewards(self) -> Tensor:
        """[G]; NaN where the verifier's own error masks a sample."""
        return torch.tensor([float("nan") if score.masked else float(score.reward or 0) for score in self.scores])

    def advantages(self, config: GrpoConfig) -> Tensor:
        """[G], of the rewards less what overlong completions lose."""
        lost = torch.tensor([score.components.get(OVERLONG, 0.0) for score in self.scores])
        return advantages(self.rewards + lost, config.scale_rewards, config.baseline)


def advantages(rewards: Tensor, scale: str = "group", baseline: str = "mean") -> Tensor:
    """`group_advantages` of a group's G rewards, [G] → [G]; NaN is a masked one."""
    given = [None if reward != reward else reward for reward in rewards.tolist()]
    return torch.tensor(group_advantages(given, scale, baseline))


@dataclass
class Batch:
    """What an update learns from: R rows, of at most U learnt tokens."""

    rows: list[TokenRow]
    advantage: Tensor  # [R]
    used: Tensor  # [R, U]: tokens of samples that are not masked
    informative: Tensor | None = None  # [R]: those of groups whose rewards differ; None: all


def micro_batches(model: Any, batch: Batch, config: GrpoConfig) -> Iterator[Scored]:
    """The parts of the batch's tree, or of a tree for each `micro_batch` rows of it."""
    size = config.micro_batch or len(batch.rows)
    for start in range(0, len(batch.rows), size):
        rows = batch.rows[start : start + size]
        for some in scored_parts(model, rows, config.temperature, recompute=config.gradient_checkpointing):
            yield Scored(some.rows + start, some.tokens, some.real)


def add_gradients(
    model: Any,
    batch: Batch,
    old: Tensor | None,
    reference: Tensor | None,
    config: GrpoConfig,
    check: Callable[[], None] = lambda: None,
) -> tuple[Tensor, dict[str, float]]:
    """Adds the gradients of the batch's loss to the model's: (log-probabilities [R, U] of its tokens, metrics).

    `old` None: the batch is on policy, the ratio exactly 1. `check` is called before each part, and may raise.
    """
    logprobs, metrics = torch.zeros(batch.used.shape, device=batch.used.device), Counter[str]()
    tokens, corrects = batch.used.sum().clamp(min=1), config.correction not in ("off", "auto")
    sampled = sampler_logprobs(batch.rows, logprobs)
    for some in micro_batches(model, batch, config):
        check()
        here = (some.rows, slice(some.real.shape[1]))
        logprobs[here] = some.tokens.logprobs.detach()
        before, far = (old if old is not None else logprobs)[here], None if reference is None else reference[here]
        advantage, used = batch.advantage[some.rows], batch.used[here]
        ratio = ratios(before, sampled[here], used, config.correction_level) if corrects else None
        loss, measured = policy_loss(
            some.tokens.logprobs, before, far, advantage, used, config, batch.used,
            informative=batch.informative, weight=None if ratio is None else weights(ratio, config.correction, config),
        )  # fmt: skip
        loss.backward()
        entropy = float((some.tokens.entropies * used).sum() / tokens)
        metrics.update(measured | {"train/loss": float(loss.detach()), "train/entropy": entropy})
    if old is None:
        metrics.update(correction_metrics(logprobs, sampled, batch.used, config.correction, config))
    return logprobs, dict(metrics)


class Trainer:
    """A policy, its optimizer, and the steps taken."""

    def __init__(self, spec: Grpo, events: Emitter, stop: StopFlag) -> None:
        same = training_dtype(spec.engine.dtype) == "float32" and spec.rollouts is None
        self.config = structs.replace(spec.config, correction=correction_of(spec.config, same=same))
        self.events, self.stop, self.out = events, stop, Path(spec.out_dir)
        self.seed, self.resume = spec.seed, spec.resume_from
        self.environment: Environment = load(spec.environment)
        self.tasks, self.validation = spec.tasks, spec.validation_tasks
        self.draw = TaskDraw(
            [task["id"] for task in spec.tasks], seed=spec.seed, size=self.config.prompts_per_step,
            generations=self.config.generations, curriculum=self.config.curriculum,
            replay_share=self.config.replay_share, rates=spec.success_rates,
        )  # fmt: skip
        self.draw.restore(checkpoint.seen_by("draw", self.resume))
        self.sampling = Sampling(self.config.temperature, self.config.top_p, self.config.max_new_tokens)
        set_threads(spec.engine.threads)
        torch.manual_seed(self.seed)
        base, tokenizer = load_base(spec.model.base, training_dtype(spec.engine.dtype))
        start = spec.model.adapter
        self.model = lora(base, spec.config, self.resume or start).to(device()).eval()
        self.reference = self._add_reference(start) if self.config.beta or self.config.kl_every else None
        # The engine generates with this very model: the policy that acts is the policy that learns.
        self.engine = TransformersEngine(self.model, tokenizer, spec.engine.batch_size)
        self.engine.check = self.stop.check
        # Or vLLM servers generate, each step with its weights as an adapter of its own.
        self.servers = ServerRollouts(spec, self.engine, partial(events.log, "warning")) if spec.rollouts else None
        self.steps_ahead = spec.rollouts.steps_ahead if spec.rollouts else 0
        self.ahead = Ahead()
        self.watchman = Watchman(self.config.alarms, "grpo", checkpoint.seen_by("alarms", self.resume))
        self.optimizer, self.scheduler = checkpoint.optimizer_of(self.model, spec.config, self.resume)
        self.done = checkpoint.step_of(self.resume)
        self.saved = self.done if self.resume else None  # the step of the last checkpoint

    def _add_reference(self, start: str | None) -> str | None:
        """Name of the frozen adapter that KL is measured from; None where that is the bare base model."""
        if not start:
            return None
        self.model.load_adapter(start, "reference", is_trainable=False)
        return "reference"

    def reference_logprobs(self, rows: list[TokenRow]) -> Tensor | None:
        """What the policy at the start would have said, [R, U]; None in a step that neither uses nor measures it."""
        every = 1 if self.config.beta else self.config.kl_every
        if not every or (self.done + 1) % every:
            return None
        if self.reference is None:
            with self.model.disable_adapter():
                return logprobs_of(self.model, rows, self.config.temperature, self.check)
        self.model.set_adapter("reference")
        try:
            return logprobs_of(self.model, rows, self.config.temperature, self.check)
        finally:
            self.model.set_adapter("default")

    def policy(self, sampling: Sampling) -> Policy:
        return self.servers.policy(sampling) if self.servers else EnginePolicy(self.engine, sampling)

    def check(self) -> None:
        """Raises Stop where the run, or what is sampled ahead, is to end."""
        self.stop.check()
        self.ahead.check()

    def batch_of(self, step: int) -> list[dict]:
        return [self.tasks[place] for place in self.draw.draw(step)]

    def play(
        self, tasks: list[dict], sampling: Sampling, n: int, *, seed: int, phase: str, step: int
    ) -> list[list[Finished]]:
        """The n episodes of each task, with the weights as they are."""
        found: list[dict[int, Finished]] = [{} for _ in tasks]

        def tell(index: int, sample: int, done: Finished) -> None:
            found[index][sample] = done
            self.shape(done, phase)
            if phase != "train" or not self.ahead.active:
                emit_sample(self.events, tasks[index], sample, done, phase=phase, step=step)

        limits = limits_of(self.environment.harness)
        try:
            play(
                self.policy(sampling), self.environment, tasks, limits, tell,
                n=n, concurrency=len(tasks) * n, seed=seed, check=self.check,
            )  # fmt: skip
        except PolicyError as error:
            self.stop.check()  # which ended the generation
            if self.servers:
                raise ServersLost(str(error)) from error
            raise
        return [[samples[sample] for sample in range(n)] for samples in found]

    def shape(self, done: Finished, phase: str) -> None:
        """Notes in the score what an overlong episode loses, by its longest answer."""
        config = self.config
        if phase == "train" and config.overlong_buffer and done.replies:
            longest = max(reply.output_tokens for reply in done.replies)
            lost = overlong_shaping(longest, config.max_new_tokens, config.overlong_buffer, config.overlong_penalty)
            done.score.components = done.score.components | {OVERLONG: lost}

    def next_groups(self) -> tuple[list[Group], dict[str, float]]:
        """The step's groups, sampled now or during the last update, and what servers had to do for them."""
        if self.servers is None:
            return self.rollout(self.done), {}
        waiting = self.ahead.take()
        metrics = self.servers.publish(self.done)
        metrics["rollout/staleness"] = 1 if waiting else 0
        groups = waiting or self.rollout(self.done)
        for group in waiting or ():
            for sample, done in enumerate(group.episodes):
                emit_sample(self.events, group.task, sample, done, phase="train", step=self.done + 1)
        if self.steps_ahead and self.done + 1 < self.config.steps:
            self.ahead.start(partial(self.rollout, self.done + 1))
        return groups, metrics

    def rollout(self, step: int) -> list[Group]:
        """The step's groups. With dynamic sampling, other tasks are drawn as long as some groups have no reward spread."""
        used, seed = self.draw.draw(step), self.seed * 100_003 + step
        groups = self.groups_of([self.tasks[place] for place in used], step, seed)
        for round in range(1, self.config.dynamic_sampling + 1):
            informative = sum(bool(group.advantages(self.config).any()) for group in groups)
            missing = self.config.prompts_per_step - informative
            others = self.draw.again(step, round, missing, used)
            if not others:
                break
            used += others
            groups += self.groups_of([self.tasks[place] for place in others], step, seed + REDRAWN * round)
        return groups

    def groups_of(self, tasks: list[dict], step: int, seed: int) -> list[Group]:
        found = self.play(
            tasks, self.sampling, self.config.generations, seed=seed, phase="train", step=step + 1
        )  # fmt: skip
        return [Group(task, episodes) for task, episodes in zip(tasks, found, strict=True)]

    def update(self, groups: list[Group], stale: bool = False) -> dict[str, float]:
        """One policy update, or several on the same rollouts. `stale`: they were sampled with older weights.

        Groups without reward spread are left out, of the mean as well, unless a KL holds them and nothing replaced them.
        """
        config = self.config
        hold = config.beta and not config.dynamic_sampling
        weighted = [(group, group.advantages(config)) for group in groups]
        telling = [(group, weight) for group, weight in weighted if hold or weight.any()]
        if not telling:
            return {"train/loss": 0.0}
        batch = self.batch_from(telling)
        if not batch.used.any():
            return {"train/loss": 0.0}
        reference = self.reference_logprobs(batch.rows)
        old: Tensor | None = None
        metrics: dict[str, float] = {}
        before = snapshot(self.model, self.optimizer) if config.updates_per_batch > 1 else None
        for at in range(config.updates_per_batch):
            try:
                logprobs, found = add_gradients(self.model, batch, old, reference, config, self.stop.check)
            except Stop:
                self.undo(before if at else None)
                raise
            metrics |= found
            if old is None:
                # On policy the ratio is exactly 1; how far the sampler was from it is measured, not assumed.
                old, entropy = logprobs, found["train/entropy"]
                gaps = sampler_gap(old, batch.rows)
                # Of a sampler that was cut off on purpose, or is older, the rest would say that the two compute different models.
                metrics |= (
                    gaps
                    if config.top_p == 1 and not stale
                    else {name: gaps[name] for name in gaps if "logp_diff" in name}
                )
            norm = torch.nn.utils.clip_grad_norm_(checkpoint.trained(self.model), config.max_grad_norm)
            metrics |= {"train/entropy": entropy, "train/grad_norm": float(norm)}
            if not math.isfinite(metrics["train/loss"] + metrics["train/grad_norm"]):
                self.undo(before if at else None)
                break
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return metrics

    def undo(self, before: Any) -> None:
        """As if the step had not begun: no gradients, and the weights as they were before an earlier update of the batch."""
        self.optimizer.zero_grad(set_to_none=True)
        if before is not None:
            restore(self.model, self.optimizer, before)

    def batch_from(self, groups: list[tuple[Group, Tensor]]) -> Batch:
        """The rows of an episode whose turns are not joined share its advantage."""
        where = next(self.model.parameters()).device
        cuts = self.config.mask_truncated
        learnt = [
            (row, float(weight), done.score.masked or (cuts and done.truncated), bool(weights.any()))
            for group, weights in groups
            for done, weight in zip(group.episodes, weights, strict=True)
            for row in rows_of(done)
        ]
        masked = torch.tensor([masked for _, _, masked, _ in learnt], dtype=torch.bool)
        real = pad([[1] * sum(row.learnt) for row, *_ in learnt] or [[]], 0)[1][: len(learnt)]
        return Batch(
            rows=[row for row, *_ in learnt],
            advantage=torch.tensor([weight for _, weight, *_ in learnt]).to(where),
            used=(real & ~masked[:, None]).to(where),
            informative=torch.tensor([telling for *_, telling in learnt], dtype=torch.bool).to(where),
        )

    def validate(self, step: int) -> None:
        """The validation tasks under the harness's own sampling, with the weights as they are."""
        self.ahead.wait()
        published = self.servers.publish(step) if self.servers else {}
        sampling, n = sampling_of(self.environment.harness), self.config.eval_samples
        found = self.play(self.validation, sampling, n, seed=self.seed, phase="validation", step=step)
        scores = [done.score for episodes in found for done in episodes if not done.score.masked]
        rewards = [float(score.reward or 0) for score in scores]
        successes = [float(score.success) for score in scores]
        if rewards:
            metrics = {
                "validation/reward": sum(rewards) / len(rewards),
                "validation/success": sum(successes) / len(successes),
                "validation/samples": len(rewards),
            } | published
            self.events.metric(step, metrics)
            report(self.events, self.watchman.look(step, metrics))

    def step(self) -> None:
        began = time.perf_counter()
        groups, served = self.next_groups()
        sampled = time.perf_counter()
        learning_rate = self.scheduler.get_last_lr()[0]
        metrics = self.update(groups, stale=bool(served.get("rollout/staleness")))
        seen = watch.look(paid_of(groups))
        metrics |= (
            seen.metrics
            | rollout_metrics(groups)
            | (turn_metrics(groups) if self.environment.multi_turn else {})
            | tool_metrics(groups)
            | served
            | {
                "train/learning_rate": learning_rate,
                "time/generate_s": sampled - began,
                "time/update_s": time.perf_counter() - sampled,
            }
        )
        step = self.done + 1
        self.events.metric(step, metrics)
        alarms = self.watchman.look(step, metrics, seen.examples | mask_reason(groups))
        if any(alarm.name == "non_finite" for alarm in alarms):
            report(self.events, alarms)  # the step was not applied: a stop keeps the weights from before it
        self.scheduler.step()
        self.draw.record(self.done, [passed_of(group) for group in groups])
        self.done = step
        self.events.progress(
            self.done,
            self.config.steps,
            f"reward {metrics['train/reward_mean']:.2f}, success {metrics['train/success']:.0%}",
        )
        report(self.events, alarms)

    def save(self) -> None:
        folder = checkpoint.save(
            self.out / f"checkpoint-{self.done}", step=self.done, model=self.model, optimizer=self.optimizer,
            alarms=self.watchman.state(), draw=self.draw.state(),
        )  # fmt: skip
        self.saved = self.done
        self.events.checkpoint(self.done, str(folder))

    def train(self) -> Path:
        """All the steps; returns the adapter's folder.

        A stop, an alarm that ends the run, or rollout servers that are lost: a checkpoint is saved and the error goes on. A
        step that it broke off is as if not begun.
        """
        steps, every = self.config.steps, self.config.eval_every
        try:
            if self.servers:
                self.servers.open(self.sampling)
            while True:
                self.stop.check()
                if every and self.validation and (self.done % every == 0 or self.done == steps):
                    self.validate(self.done)
                if self.done >= steps:
                    break
                self.step()
                if self.done % self.config.save_every == 0 and self.done < steps:
                    self.save()
        except (Stop, Alarmed, ServersLost) as end:
            saved = self.done > 0 or not isinstance(end, ServersLost)
            if saved and self.saved != self.done:
                self.save()
            raise
        finally:
            self.ahead.close()
            if self.servers:
                self.servers.close()
        return checkpoint.save_adapter(self.model, self.out / "adapter")


def passed_of(group: Group) -> tuple[str, int, int]:
    """(task, how many passed, of how many unmasked)."""
    scores = [score for score in group.scores if not score.masked]
    return group.task["id"], sum(score.success for score in scores), len(scores)


def paid_of(groups: list[Group]) -> list[watch.Paid]:
    return [
        watch.Paid(
            group.task,
            [reply.message for reply in done.replies],
            None if done.score.masked else float(done.score.reward or 0),
        )
        for group in groups
        for done in group.episodes
    ]


def mask_reason(groups: list[Group]) -> dict[str, str]:
    """{alarm: the reason for which most of the step's rollouts have no reward}."""
    reasons = Counter(score.mask_reason for group in groups for score in group.scores if score.masked)
    return {"masked": reasons.most_common(1)[0][0]} if reasons else {}


def sampler_gap(logprobs: Tensor, rows: list[TokenRow]) -> dict[str, float]:
    """How far the trainer's log-probabilities [R, U] are from the sampler's over the tokens; 0 up to rounding when on policy."""
    sampled = [list(compress(row.logprobs, row.learnt)) for row in rows]
    return gap_metrics([list(zip(*pair, strict=False)) for pair in zip(logprobs.tolist(), sampled, strict=True)])


def tool_metrics(groups: list[Group]) -> dict[str, float]:
    calls = Counter(bool(call.ok) for group in groups for done in group.episodes for call in done.rollout.calls)
    return {"train/tool_failures": calls[False] / calls.total()} if calls else {}


def rollout_metrics(groups: list[Group]) -> dict[str, float]:
    rewards = torch.stack([group.rewards for group in groups])
    seen = rewards[~rewards.isnan()]
    episodes = [done for group in groups for done in group.episodes]
    scores = [done.score for done in episodes]
    flat = [not bool(advantages(row).any()) for row in rewards]
    n = len(episodes)
    return {
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


def turn_metrics(groups: list[Group]) -> dict[str, float]:
    turns = [len(done.replies) for group in groups for done in group.episodes]
    return {"train/turns": sum(turns) / len(turns)}


def main(spec: Grpo, events: Emitter, stop: StopFlag) -> None:
    events.progress(0, spec.config.steps, "loading the model")
    with stop.at_once():
        trainer = Trainer(spec, events, stop)
    adapter = trainer.train()
    events.result(adapter=str(adapter), metrics={"steps": trainer.done})


if __name__ == "__main__":
    run_main("grpo", main)
