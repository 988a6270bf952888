"""Trains a reward model on preference pairs with TRL: a LoRA adapter with a scalar head. `python -m
workers.reward_model spec.json` (docs/jobs.md).

The loss is Bradley and Terry's, −log σ(r(chosen) − r(rejected)) (2203.02155, equation 1), where r
reads the whole conversation (workers.ml.reward_head). At the end, the model is measured on
held-back pairs: how many it ranks correctly, which probability a score corresponds to, and the
score from which an answer counts as good. A resumed run gives the same result as an uninterrupted
one (workers.ml.trl_runs).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from workers.dpo import answers_in, refuse_pairs_without_preference
from workers.lib.calibration import Calibration, brier, fit
from workers.lib.events import Emitter
from workers.lib.program import StopFlag, run_main
from workers.lib.row_facts import pair_facts
from workers.lib.shown_progress import tokenizing
from workers.lib.specs.reward_model import RewardModel
from workers.lib.specs.rows import Pair
from workers.ml import checkpoint
from workers.ml.ranks import join
from workers.ml.reward_head import Facts, conversation_ids, prepare, scores, write_facts
from workers.ml.trl_runs import (
    InParts,
    arguments,
    checkpointing,
    learnable,
    loaded,
    refuse_long_rows,
    reporting,
    row_order,
    train,
)

NAMED = {
    "accuracy": "rewards/accuracy",
    "margin": "rewards/margin",
    "mean_reward": "rewards/mean",
    "min_reward": "rewards/min",
    "max_reward": "rewards/max",
}


def main(spec: RewardModel, events: Emitter, stop: StopFlag) -> None:
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    class InOurOrder(InParts, RewardTrainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> list[int]:
            order = row_order(len(self.train_dataset), steps * config.batch_size, spec.seed)
            return ranks.part_of_each(config.batch_size, order[start * config.batch_size :])

    config, steps, start = spec.config, spec.config.steps, checkpoint.step_of(spec.resume_from)
    refuse_pairs_without_preference([*spec.rows, *spec.validation_rows])
    ranks = join(config.processes, in_lockstep=config.shard)
    model, tokenizer, optimizer, scheduler = loaded(spec, events, stop, ranks, scalar_head=True)
    prepare(model, tokenizer)
    rows, aside = (
        [
            pair_ids(tokenizer, row, config.show_tools)
            for row in learnable(some, answers_in, tokenizer, events, what=what)
        ]
        for some, what in ((spec.rows, "pairs"), (spec.validation_rows, "validation pairs"))
    )
    refuse_long_rows([max(map(len, row.values())) for row in [*rows, *aside]], config.max_length)

    def validation(step: int) -> dict[str, float]:
        return ranking(aside_scores(model, tokenizer, aside))

    counted = Counter[str]()
    with tokenizing(events, start, steps):
        trainer = InOurOrder(
            model=model,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            optimizers=(optimizer, scheduler),
            callbacks=[
                reporting(
                    events,
                    stop,
                    spec,
                    model,
                    optimizer,
                    named=NAMED,
                    measure=validation,
                    ranks=ranks,
                    counted=counted,
                    data=pair_facts(spec.rows),
                )
            ],
            args=RewardConfig(
                **arguments(spec, start, ranks) | checkpointing(config),
                center_rewards_coefficient=config.center_rewards or None,
            ),
        )
    trainer.ranks, trainer.counted = ranks, counted
    adapter = train(trainer, model, spec, ranks)
    events.progress(steps, steps, "scoring what was held back")
    measured, calibration = measure(aside_scores(model, tokenizer, aside))
    if ranks.is_main:
        write_facts(
            adapter,
            Facts(
                max_length=config.max_length, show_tools=config.show_tools, calibration=calibration
            ),
        )
    events.result(adapter=str(adapter), metrics={"steps": steps, "pairs": len(rows)} | measured)


def pair_ids(tokenizer: Any, row: Pair, show_tools: bool) -> dict[str, list[int]]:
    tools = row.tools if show_tools else []
    return {
        f"{side}_ids": conversation_ids(
            tokenizer, [*row.messages, {"role": "assistant", "content": getattr(row, side)}], tools
        )
        for side in ("chosen", "rejected")
    }


def aside_scores(model: Any, tokenizer: Any, aside: list[dict]) -> list[tuple[float, float]]:
    """(score of the chosen answer, score of the rejected one) of each held-back pair."""
    found = scores(
        model, tokenizer, [row[side] for side in ("chosen_ids", "rejected_ids") for row in aside]
    )
    return list(zip(found[: len(aside)], found[len(aside) :], strict=True))


def ranking(pairs: list[tuple[float, float]]) -> dict[str, float]:
    margins = [good - bad for good, bad in pairs]
    return {
        "validation/loss": (
            sum(math.log1p(math.exp(-abs(m))) + max(-m, 0.0) for m in margins) / len(margins)
        ),
        "validation/accuracy": sum(margin > 0 for margin in margins) / len(margins),
        "validation/margin": sum(margins) / len(margins),
        "validation/pairs": len(margins),
    }


def measure(pairs: list[tuple[float, float]]) -> tuple[dict[str, Any], Calibration]:
    """Measures on the held-back pairs: how many are ranked correctly, how many of each side pass at
    the threshold, and the quality of the probabilities (`brier`).
    """
    chosen, rejected = [good for good, _ in pairs], [bad for _, bad in pairs]
    found = fit(chosen, rejected)
    return {
        "aside": len(pairs),
        "aside_right": sum(good > bad for good, bad in pairs),
        "chosen_passed": sum(score >= found.threshold for score in chosen),
        "rejected_passed": sum(score >= found.threshold for score in rejected),
        "brier": brier(pairs),
        "slope": found.slope,
        "intercept": found.intercept,
        "threshold": found.threshold,
        "lowest": min(chosen + rejected),
        "highest": max(chosen + rejected),
    }, found


if __name__ == "__main__":
    run_main(RewardModel, main)
