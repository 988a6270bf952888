"""GRPO on LoRA adapters. `python -m workers.grpo spec.json` (docs/jobs.md). Read it from top to
bottom.

Each step: play G episodes of each of P tasks, score them with the environment's verifier, compute
advantages within each group, and update the policy. It trains on exactly the tokens that were
sampled (workers.lib.token_rows); what tools and users said between the agent's turns has no loss.
Rollouts and update share prompts (workers.ml.tree): the system prompt is computed once per step,
each task's own prompt once, and only what follows G times.

With PPO (`advantages: gae`), advantages come from a critic instead (workers.ml.critic).

Sources: GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO 2507.18071, PPO 1707.06347.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from workers.evaluate import emit_sample, limits_of, sampling_of
from workers.lib.adapter_serving import ServersLost
from workers.lib.alarms import Watchman
from workers.lib.checkpoint_outputs import CheckpointOutputs
from workers.lib.engines import Sampling
from workers.lib.environments import Environment, load
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.harness.playing import HarnessPlayer
from workers.lib.policies import EnginePolicy, Policy, PolicyError
from workers.lib.prefixes import count_tokens
from workers.lib.probes import watch
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.rollouts import Finished, play
from workers.lib.shown_progress import ShownProgress
from workers.lib.specs.grpo import Grpo
from workers.lib.task_draw import TaskDraw
from workers.lib.watching import Alarmed, judge_end, report, require_scores
from workers.ml import checkpoint
from workers.ml.correction import correction_of
from workers.ml.critic import Critic, adapted
from workers.ml.groups import (
    Group,
    mask_reasons,
    outputs_of,
    passed_of,
    rollout_metrics,
    shape,
    validation_metrics,
)
from workers.ml.models import device, load_base, lora, set_threads, training_dtype
from workers.ml.policy_gradient import (
    Batch,
    add_gradients,
    batch_from,
    minibatches,
    sampler_gap,
    shared_logprobs,
)
from workers.ml.ranks import ALONE, join
from workers.ml.reference import Reference
from workers.ml.server_rollouts import Ahead, ServerRollouts
from workers.ml.transformers_engine import TransformersEngine
from workers.ml.tree import logprobs_of

DOING = {
    "train": "{}",
    "validation": "validation: {}",
    "checkpoint": "outputs to read: {}",
}  # labels, by phase
UNCHANGED = (
    "In no step did the answers to a task have different rewards, or none of them counted. Choose"
    " tasks that are solved sometimes (learnability), raise the temperature, or start with SFT."
)
KL_WATCHED = 0.25  # nats per token; above, the KL is measured at every step
REDRAWN = 1_000_003  # offset between the seeds of a step's rounds of dynamic sampling


class Trainer:
    """A policy, its optimizer, and the number of steps taken."""

    def __init__(self, spec: Grpo, events: Emitter, stop: StopFlag) -> None:
        self.ranks = join(spec.config.processes)
        same = training_dtype(spec.engine.dtype) == "float32" and spec.rollouts is None
        self.config = corrected(spec.config, correction_of(spec.config, same=same))
        self.events, self.stop, self.out = events, stop, Path(spec.out_dir)
        self.seed, self.resume = spec.seed, spec.resume_from
        self.environment: Environment = load(spec.environment)
        if self.config.advantages == "turn" and not getattr(
            self.environment, "turn_rewards", False
        ):
            raise SpecError(
                "“config.advantages” must be episode: this environment reports no rewards per turn."
            )
        self.tasks, self.validation = spec.tasks, spec.validation_tasks
        self.draw = TaskDraw(
            [task["id"] for task in spec.tasks],
            seed=spec.seed,
            size=self.config.prompts_per_step,
            generations=self.config.generations,
            curriculum=self.config.curriculum,
            replay_share=self.config.replay_share,
            rates=spec.success_rates,
        )
        self.draw.restore(checkpoint.seen_by("draw", self.resume))
        self.sampling = Sampling(
            self.config.temperature, self.config.top_p, self.config.max_new_tokens
        )
        set_threads(spec.engine.threads)
        torch.manual_seed(self.seed)
        base, tokenizer = load_base(
            spec.model.base,
            training_dtype(spec.engine.dtype),
            in_4bit=spec.config.load_in_4bit,
        )
        self.start = start = spec.model.adapter
        self.model = lora(base, spec.config, self.resume or start).to(device()).eval()
        self.reference = (
            Reference(self.model, start) if self.config.beta or self.config.kl_every else None
        )
        self.critic = (
            Critic(self.model, self.config, start, self.resume)
            if self.config.advantages == "gae"
            else None
        )
        # PPO's coefficient of the KL penalty, which may be adapted
        kept = checkpoint.seen_by("kl", self.resume) if self.config.kl_target else {}
        self.kl_coefficient = kept.get("coefficient", self.config.beta)
        # The engine generates with this same model object: the policy that acts is the policy that
        # learns.
        self.engine = TransformersEngine(self.model, tokenizer, spec.engine.batch_size)
        self.engine.check = self.stop.check
        # Alternatively vLLM servers generate; each step's weights are sent to them as a new
        # adapter.
        self.serves, warn = spec.rollouts is not None, partial(events.log, "warning")
        self.servers = (
            ServerRollouts(spec, self.engine, warn) if self.serves and self.ranks.is_main else None
        )
        # An agent that is not ours may play the episodes, in its own harness.
        self.player = HarnessPlayer(spec.harness, notify=self.notify) if spec.harness else None
        self.steps_ahead = spec.rollouts.steps_ahead if spec.rollouts else 0
        self.ahead = Ahead()
        self.outputs = CheckpointOutputs(
            spec.tasks,
            spec.validation_tasks,
            self.config.sampled_outputs,
            seed=spec.seed,
            environment=self.environment,
            check=self.check,
        )
        self.watchman = Watchman(
            self.config.alarms, "grpo", checkpoint.seen_by("alarms", self.resume)
        )
        self.optimizer, self.scheduler = checkpoint.optimizer_of(
            self.model, spec.config, self.resume, self.critic and self.critic.weights
        )
        self.done = checkpoint.step_of(self.resume)
        self.masked_by = ""  # why rollouts were masked in the last step with such ones
        self.shown = ShownProgress(events, self.config.steps)
        self.saved = self.done if self.resume else None  # the step of the last checkpoint

    def train(self) -> Path:
        """Run all steps; return the adapter's folder.

        After a stop, an alarm that ends the run, or the loss of rollout servers, a checkpoint is
        saved and the error is re-raised. An interrupted step counts as not started.
        """
        steps, every = self.config.steps, self.config.eval_every
        try:
            if self.serves:
                self.ranks.from_main(lambda: self.servers.open(self.sampling))
            if self.player:
                self.player.start()
                self.events.emit("rollouts", url=self.player.gateway.url)
            while True:
                self.ranks.check(self.stop.check)
                validates = (
                    every and self.validation and (self.done % every == 0 or self.done == steps)
                )
                validated = self.validate() if validates else []
                if self.done % self.config.save_every == 0 or self.done == steps:
                    self.show_outputs(validated)
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
            if self.player:
                self.player.close()
        self.shown.finished(self.done)
        self.require_scores()
        judge_end(self.events, self.watchman, self.done)
        return checkpoint.save_result(
            self.model,
            self.out,
            self.start,
            self.done,
            self.ranks.is_main,
            UNCHANGED,
            self.measured,
        )

    def measured(self, metrics: dict[str, float]) -> None:
        report(self.events, self.watchman.look(self.done, metrics))

    def notify(self, text: str) -> None:
        self.shown.show(self.done, text)
        self.events.log("info", text)

    def require_scores(self) -> None:
        require_scores(self.watchman, self.done, self.masked_by)

    def step(self) -> None:
        step, began = self.done + 1, time.perf_counter()
        groups, served = (
            self.ranks.from_main(self.next_groups) if self.serves else self.next_groups()
        )
        sampled = time.perf_counter()
        learning_rate = self.scheduler.get_last_lr()[0]
        self.shown.show(self.done, "updating")
        metrics = self.update(groups, stale=bool(served.get("rollout/staleness")))
        seen, masked_by = watch.look(outputs_of(groups)), mask_reasons(groups)
        self.masked_by = masked_by or self.masked_by
        rolled = rollout_metrics(groups, self.config, turns=self.environment.multi_turn)
        metrics |= seen.metrics | rolled | served
        metrics |= {
            "train/learning_rate": learning_rate,
            "time/generate_s": sampled - began,
            "time/update_s": time.perf_counter() - sampled,
        }
        metrics = self.ranks.from_main(
            lambda: metrics
        )  # all processes decide on the same times and alarms
        self.events.metric(step, metrics)
        notes = dict.fromkeys(("masked", "bypasses"), masked_by)
        alarms = self.watchman.look(step, metrics, seen.examples | notes)
        if any(alarm.name == "non_finite" for alarm in alarms):
            report(
                self.events, alarms
            )  # the step was not applied: after a stop, the weights from before it are kept
        self.scheduler.step()
        self.draw.record(self.done, [passed_of(group) for group in groups])
        self.done = step
        reward, passed = metrics["train/reward_mean"], metrics["train/success"]
        result = (
            f"reward {reward:.2f}, success {passed:.0%}"
            if math.isfinite(reward)
            else "no rollout could be scored"
        )
        self.shown.finished(step, result)
        report(self.events, alarms)

    def next_groups(self) -> tuple[list[Group], dict[str, float]]:
        """The step's groups, sampled now or during the last update, and metrics of publishing the
        weights to servers.
        """
        if self.servers is None:
            return self.rollout(self.done), {}
        waiting = self.ahead.take()
        metrics = self.servers.publish(self.done)
        metrics["rollout/staleness"] = 1 if waiting else 0
        groups = waiting or self.rollout(self.done)
        for group in waiting or ():
            for sample, done in enumerate(group.episodes):
                emit_sample(
                    self.events, group.task, sample, done, phase="train", step=self.done + 1
                )
        if self.steps_ahead and self.done + 1 < self.config.steps:
            self.ahead.start(partial(self.rollout, self.done + 1, self.draw.draw(self.done + 1)))
        return groups, metrics

    def rollout(self, step: int, drawn: list[int] | None = None) -> list[Group]:
        """The step's groups, for the tasks `drawn` for it. With dynamic sampling, other tasks are
        drawn while some groups have no reward spread.
        """
        used, seed = self.draw.draw(step) if drawn is None else drawn, self.seed * 100_003 + step
        groups = self.groups_of([self.tasks[place] for place in used], step, seed)
        for round in range(1, self.config.dynamic_sampling + 1):
            informative = sum(bool(group.advantages(self.config).any()) for group in groups)
            missing = self.config.prompts_per_step - informative
            others = self.draw.again(step, round, missing, used)
            if not others:
                break
            used += others
            groups += self.groups_of(
                [self.tasks[place] for place in others], step, seed + REDRAWN * round
            )
        return groups

    def groups_of(self, tasks: list[dict], step: int, seed: int) -> list[Group]:
        n = self.config.generations
        found = self.play(tasks, self.sampling, n, seed=seed, phase="train", step=step + 1)
        return [Group(task, episodes) for task, episodes in zip(tasks, found, strict=True)]

    def play(
        self, tasks: list[dict], sampling: Sampling, n: int, *, seed: int, phase: str, step: int
    ) -> list[list[Finished]]:
        """n episodes of each task, with the current weights."""
        found: list[dict[int, Finished]] = [{} for _ in tasks]

        def tell(index: int, sample: int, done: Finished) -> None:
            found[index][sample] = done
            if phase == "train":
                shape(done, self.config)
            if phase != "train" or not self.ahead.active:
                emit_sample(self.events, tasks[index], sample, done, phase=phase, step=step)

        def play_some(some: range, tell: Callable[[int, int, Finished], None]) -> None:
            shown = EpisodesShown(self, DOING[phase], len(some) * n)
            try:
                play(
                    self.policy(sampling),
                    self.environment,
                    tasks,
                    limits_of(self.environment.harness),
                    shown.scores(tell),
                    n=n,
                    concurrency=self.at_once(len(some) * n),
                    seed=seed,
                    only=some,
                    check=self.check,
                    sampled=shown.sampled,
                    player=self.player,
                )
            except PolicyError as error:
                self.stop.check()  # a stop also ends the generation
                if self.servers:
                    raise ServersLost(str(error)) from error
                raise

        (ALONE if self.serves else self.ranks).share(len(tasks), play_some, tell)
        return [[samples[sample] for sample in range(n)] for samples in found]

    def policy(self, sampling: Sampling) -> Policy:
        if self.servers:
            return self.servers.policy(sampling)
        goes_on = self.environment.multi_turn or self.player is not None
        return EnginePolicy(self.engine, sampling, goes_on=goes_on)

    def at_once(self, episodes: int) -> int:
        """How many of so many episodes are played side by side."""
        return min(episodes, self.player.harness.at_once) if self.player else episodes

    def check(self) -> None:
        """Raises Stop if the run, or sampling ahead, should end."""
        self.stop.check()
        self.ahead.check()

    def update(self, groups: list[Group], stale: bool = False) -> dict[str, float]:
        """One policy update, or several on the same rollouts. `stale`: they were sampled with older
        weights.

        Groups without reward spread are left out, of the mean too, unless a KL term needs them and
        dynamic sampling has not replaced them. With PPO, all groups are trained on.
        """
        config = self.config
        batch = self.batch_from(
            [
                (group, advantages)
                for group in groups
                if (advantages := group.advantages(config)).any()
                or self.critic
                or (config.beta and not config.dynamic_sampling)
            ]
        )
        if not batch.used.any():
            nothing = {"train/loss": 0.0, "train/tokens": 0.0, "train/distinct_tokens": 0.0}
            # Without rows there is nothing to learn from (`same_reward`); with rows, all of them
            # are masked.
            return nothing | ({"train/grad_norm": 0.0} if batch.rows else {})
        reference = self.reference_logprobs(batch)
        penalised = self.critic is not None and reference is not None and bool(config.beta)
        old = self.logprobs(batch) if penalised or config.minibatches > 1 else None
        metrics: dict[str, float] = {}
        if self.critic:
            gap = (old - reference) * batch.used if penalised else None
            batch, metrics = self.critic.estimate(
                batch, None if gap is None else self.kl_coefficient * gap, self.check, self.ranks
            )
        parts = [
            rows
            for at in range(config.updates_per_batch)
            for rows in minibatches(
                batch, config.minibatches, (self.seed * 100_003 + self.done) * 100 + at
            )
        ]
        before = checkpoint.snapshot(self.model, self.optimizer) if len(parts) > 1 else None
        for at, rows in enumerate(parts):
            part = batch.only(rows)
            # On policy the ratio is exactly 1.
            of_part = None if at == 0 or old is None else old[rows]
            far = None if reference is None else reference[rows]
            try:
                found = (
                    self.critic.add_gradients(part, self.check, self.ranks) if self.critic else {}
                )
                logprobs, learnt = add_gradients(
                    self.model, part, of_part, far, config, self.stop.check, self.ranks
                )
            except Stop:
                self.undo(before if at else None)
                raise
            metrics |= found | learnt
            computed = count_tokens([row.ids for row in part.rows], config.micro_batch)
            metrics |= {name: metrics.get(name, 0.0) + value for name, value in computed.items()}
            if at == 0:
                # How far the sampler really was from the trainer is measured rather than assumed.
                old, entropy = logprobs if old is None else old, learnt["train/entropy"]
                metrics |= sampler_gap(old, batch.rows, same=config.top_p == 1 and not stale)
            metrics["train/entropy"] = entropy
            if not self.move(metrics, before if at else None):
                return metrics
        return metrics | (self.adapt(gap, batch) if penalised else {})

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probabilities of the policy before the update, [R, U]."""
        compute = partial(
            logprobs_of, self.model, temperature=self.config.temperature, check=self.check
        )
        return shared_logprobs(self.ranks, batch, compute)

    def adapt(self, gap: Tensor, batch: Batch) -> dict[str, float]:
        """Set the coefficient of the next step's KL penalty. `gap` [R, U]: the log-probabilities'
        difference from the start's.
        """
        used, episodes = self.kl_coefficient, len(batch.episode[batch.used.any(-1)].unique())
        kl = float(gap.sum()) / episodes
        if self.config.kl_target:
            self.kl_coefficient = adapted(
                used, kl, self.config.kl_target, self.config.kl_horizon, episodes
            )
        return {"train/kl_coefficient": used, "train/kl_episode": kl}

    def move(self, metrics: dict[str, float], before: Any = None) -> bool:
        """Apply the optimizer's step. If the loss or a gradient is not finite, `undo` instead and
        return False.
        """
        names = ("train/grad_norm", "train/critic_grad_norm")
        for name, group in zip(names, self.optimizer.param_groups, strict=False):
            norm = float(torch.nn.utils.clip_grad_norm_(group["params"], self.config.max_grad_norm))
            # The largest of the step's updates: in a later one on the same rollouts, all ratios may
            # be clipped.
            metrics[name] = max(norm, metrics.get(name, 0.0)) if math.isfinite(norm) else norm
        steps = ("train/loss", "train/value_loss", *names)
        if not math.isfinite(sum(metrics.get(name, 0.0) for name in steps)):
            self.undo(before)
            return False
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return True

    def batch_from(self, groups: list[tuple[Group, Tensor]]) -> Batch:
        return batch_from(groups, self.config, next(self.model.parameters()).device)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Log-probabilities of the initial policy, [R, U]; None in a step that neither uses nor
        measures them.
        """
        if self.reference is None or not self.measures_kl(self.done + 1):
            return None
        compute = partial(
            self.reference.logprobs, temperature=self.config.temperature, check=self.check
        )
        return shared_logprobs(self.ranks, batch, compute)

    def measures_kl(self, step: int) -> bool:
        """Whether the step needs the KL. Where it is not part of the loss, it is measured every
        `kl_every` steps, in the first ones after the first update, and as long as it is high, so
        that its alarm does not have to wait.
        """
        every, seen = self.config.kl_every, self.watchman.history.last.get("train/kl")
        high = bool(seen) and seen[-1] > KL_WATCHED
        return bool(self.config.beta) or step % every == 0 or 1 < step <= every or high

    def undo(self, before: Any) -> None:
        """Roll back to before the step: no gradients, and the weights from before an earlier update
        on the same batch.
        """
        self.optimizer.zero_grad(set_to_none=True)
        if before is not None:
            checkpoint.restore(self.model, self.optimizer, before)

    def validate(self) -> list[tuple[dict, list[Finished]]]:
        """Sample the validation tasks with the harness's own settings and the current weights."""
        found, published = self.answers(self.validation, self.config.eval_samples, "validation")
        metrics = validation_metrics([episodes for _, episodes in found])
        if metrics:
            self.tell(metrics | published)
        return found

    def show_outputs(self, validated: list[tuple[dict, list[Finished]]]) -> None:
        """Sample the chosen tasks with the current policy for people to read, and check whether it
        exploits its reward.
        """
        if tasks := self.outputs.tasks(validated=bool(validated)):
            found, _ = self.answers(tasks, 1, "checkpoint")
            seen = self.ranks.from_main(lambda: self.outputs.look(found + validated))
            if seen.metrics:
                self.tell(seen.metrics, seen.examples)

    def answers(
        self, tasks: list[dict], n: int, phase: str
    ) -> tuple[list[tuple[dict, list[Finished]]], dict[str, float]]:
        """n episodes of each task with the harness's own sampling settings, and metrics of
        publishing the weights to servers.
        """

        def answered() -> tuple[list[list[Finished]], dict[str, float]]:
            self.ahead.wait()
            published = self.servers.publish(self.done) if self.servers else {}
            sampling = sampling_of(self.environment.harness)
            return (
                self.play(tasks, sampling, n, seed=self.seed, phase=phase, step=self.done),
                published,
            )

        found, published = self.ranks.from_main(answered) if self.serves else answered()
        return list(zip(tasks, found, strict=True)), published

    def tell(self, metrics: dict[str, float], examples: dict[str, str] | None = None) -> None:
        self.events.metric(self.done, metrics)
        report(self.events, self.watchman.look(self.done, metrics, examples))

    def save(self) -> None:
        if self.ranks.is_main:
            folder = checkpoint.save(
                self.out / f"checkpoint-{self.done}",
                step=self.done,
                model=self.model,
                optimizer=self.optimizer,
                alarms=self.watchman.state(),
                draw=self.draw.state(),
                kl={"coefficient": self.kl_coefficient},
                critic=self.critic and self.critic.weights,
            )
            self.events.checkpoint(self.done, str(folder))
        self.saved = self.done


class EpisodesShown:
    """How many episodes have been sampled and, once all have, scored. Of the next batch, which is
    sampled during an update, nothing.
    """

    def __init__(self, trainer: Trainer, doing: str, count: int) -> None:
        self.trainer, self.doing, self.count = trainer, doing, count
        self.ended = self.scored = 0
        self._show()

    def sampled(self) -> None:
        self.ended += 1
        self._show()

    def scores(
        self, tell: Callable[[int, int, Finished], None]
    ) -> Callable[[int, int, Finished], None]:
        def told(index: int, sample: int, done: Finished) -> None:
            tell(index, sample, done)
            self.scored += 1
            self._show()

        return told

    def _show(self) -> None:
        trainer, sampling = self.trainer, self.ended < self.count
        if not trainer.ahead.active:
            doing, n = (
                (self.doing.format("sampling"), self.ended)
                if sampling
                else (self.doing.format("scoring"), self.scored)
            )
            trainer.shown.count(trainer.done, doing, n, self.count)


def corrected(config: Any, correction: str) -> Any:
    """The config with what "auto" stands for; without a correction, its bounds are not read."""
    unread = {"correction_level": "token", "correction_min": None, "correction_max": None}
    return structs.replace(config, correction=correction, **(unread if correction == "off" else {}))


def main(
    spec: Any,
    events: Emitter,
    stop: StopFlag,
    make: type[Trainer] = Trainer,
    *,
    label: str = "loading the model",
) -> None:
    """Run everything. `make` builds the trainer from the spec: this one, or a subclass that learns
    from another signal.
    """
    events.progress(0, spec.config.steps, label)
    with stop.at_once():
        trainer = make(spec, events, stop)
    adapter = trainer.train()
    events.result(adapter=str(adapter), metrics={"steps": trainer.done})


if __name__ == "__main__":
    run_main(Grpo, main)
