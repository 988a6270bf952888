"""Periodic measurements on data that does not train, for programs that TRL trains: the loss on
held-back rows and, in the run's environment, the success on validation tasks (except for a sharded
model, which cannot sample). Heavy: imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workers.evaluate import emit_sample, limits_of, sampling_of
from workers.lib.environments import Environment, load
from workers.lib.events import Emitter
from workers.lib.policies import EnginePolicy, PolicyError
from workers.lib.program import StopFlag
from workers.lib.rollouts import Finished, play
from workers.lib.shown_progress import ShownProgress
from workers.ml.ranks import ALONE, Ranks
from workers.ml.transformers_engine import TransformersEngine

Values = dict[str, float]


class Validation:
    """`held` returns metrics of the held-back rows; None if there are none. With several `ranks`,
    all call it, and each plays some of the tasks.
    """

    def __init__(
        self,
        spec: Any,
        events: Emitter,
        stop: StopFlag,
        model: Any,
        tokenizer: Any,
        held: Callable[[], Values] | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.spec, self.events, self.stop, self.held, self.ranks = spec, events, stop, held, ranks
        self.model, self.tokenizer = model, tokenizer
        self.environment: Environment | None = None
        if spec.validation_tasks and spec.environment is not None and not spec.config.shard:
            self.environment = load(spec.environment)

    def __call__(self, step: int) -> Values:
        self.model.eval()
        values = self.held() if self.held else {}
        return values | (self.success(self.environment, step) if self.environment else {})

    def success(self, environment: Environment, step: int) -> Values:
        """Success under the harness's own sampling settings, with the current weights."""
        engine = TransformersEngine(self.model, self.tokenizer, self.spec.engine.batch_size)
        engine.check = self.stop.check
        tasks, n = self.spec.validation_tasks, self.spec.config.eval_samples
        found: list[Finished] = []

        shown = ShownProgress(self.events, self.spec.config.steps)

        def tell(index: int, sample: int, done: Finished) -> None:
            found.append(done)
            shown.count(step, "validating", len(found), len(tasks) * n)
            emit_sample(self.events, tasks[index], sample, done, phase="validation", step=step)

        policy = EnginePolicy(
            engine, sampling_of(environment.harness), goes_on=environment.multi_turn
        )

        def play_some(some: range, tell: Callable[[int, int, Finished], None]) -> None:
            try:
                play(
                    policy,
                    environment,
                    tasks,
                    limits_of(environment.harness),
                    tell,
                    n=n,
                    concurrency=len(some) * n,
                    seed=self.spec.seed,
                    only=some,
                    check=self.stop.check,
                )
            except PolicyError:
                self.stop.check()  # a stop also ends the generation
                raise

        self.ranks.share(len(tasks), play_some, tell)
        scores = [done.score for done in found if not done.score.masked]
        if not scores:
            return {}
        return {
            "validation/reward": sum(float(score.reward or 0) for score in scores) / len(scores),
            "validation/success": sum(score.success for score in scores) / len(scores),
            "validation/samples": len(scores),
        }


def evaluated(trainer: Any, named: Mapping[str, str]) -> Values:
    """TRL's own evaluation of its `eval_dataset`, renamed to our metrics."""
    logs = trainer.evaluate()
    found = {"validation/loss": float(logs["eval_loss"])}
    for key, name in named.items():
        if name in ("rewards/accuracy", "rewards/margin") and f"eval_{key}" in logs:
            found[name.replace("rewards", "validation")] = float(logs[f"eval_{key}"])
    return found
