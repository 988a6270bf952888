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
from collections.abc import Sequence
from typing import Any

from workers.dpo import answers_in, refuse_pairs_without_preference
from workers.lib.calibration import Calibration, brier, fit
from workers.lib.program import run_main
from workers.lib.row_facts import pair_facts
from workers.lib.specs.reward_model import RewardModel, RewardModelConfig
from workers.lib.specs.rows import Pair
from workers.ml.chat_writer import ChatWriter
from workers.ml.judged_runs import Ids, Method, Run, main_of
from workers.ml.reward_head import Facts, conversation_ids, scores, write_facts

NAMED = {
    "accuracy": "rewards/accuracy",
    "margin": "rewards/margin",
    "mean_reward": "rewards/mean",
    "min_reward": "rewards/min",
    "max_reward": "rewards/max",
}


def pair_ids(writer: ChatWriter, row: Pair, config: RewardModelConfig) -> Ids:
    tools = row.tools if config.show_tools else []
    return {
        f"{side}_ids": conversation_ids(
            writer.tokenizer,
            [*row.messages, {"role": "assistant", "content": getattr(row, side)}],
            tools,
        )
        for side in ("chosen", "rejected")
    }


def settings(config: RewardModelConfig, rows: Sequence[Pair]) -> dict[str, Any]:
    return {"center_rewards_coefficient": config.center_rewards or None}


def measured(run: Run) -> dict[str, Any]:
    """Measures the model on the held-back pairs, and writes down how its scores are read."""
    config = run.spec.config
    run.events.progress(config.steps, config.steps, "scoring what was held back")
    found, calibration = measure(aside_scores(run))
    if run.ranks.is_main:
        facts = Facts(
            max_length=config.max_length, show_tools=config.show_tools, calibration=calibration
        )
        write_facts(run.adapter, facts)
    return found


def aside_scores(run: Run) -> list[tuple[float, float]]:
    """(score of the chosen answer, score of the rejected one) of each held-back pair."""
    rows, n = run.held_back, len(run.held_back)
    sides = [row[side] for side in ("chosen_ids", "rejected_ids") for row in rows]
    found = scores(run.model, run.tokenizer, sides)
    return list(zip(found[:n], found[n:], strict=True))


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


REWARD = Method(
    trl="Reward",
    what="pairs",
    named=NAMED,
    relative=False,
    refuse=refuse_pairs_without_preference,
    answers_in=answers_in,
    ids=pair_ids,
    facts=pair_facts,
    settings=settings,
    held=lambda run: ranking(aside_scores(run)),
    measured=measured,
)
main = main_of(REWARD)


if __name__ == "__main__":
    run_main(RewardModel, main)
