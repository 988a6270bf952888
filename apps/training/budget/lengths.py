"""Estimates the length of a run's answers: from the parent's own evaluations, or else between one
token and the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean

from apps.core.models import JobState
from apps.evals.models import EvalRun, Split
from apps.training.budget.asked import Asked
from workers.lib.training_cost import Lengths

READ = 400  # samples of an evaluation
WIDER = (0.7, 1.5)  # relative to the measured mean: a policy's answers change while it trains


@dataclass(frozen=True)
class Known:
    """Low, likely and high lengths, and their source as a sentence."""

    low: Lengths
    likely: Lengths
    high: Lengths
    sentence: str
    run: EvalRun | None = None


def evaluation_of(asked: Asked) -> EvalRun | None:
    """The parent's newest evaluation in this environment, on the training tasks if possible; never
    on a hold-out.
    """
    rows = EvalRun.objects.current().filter(
        project=asked.project,
        model_version=asked.parent,
        environment=asked.environment,
        state=JobState.SUCCEEDED,
    )
    rows = rows.exclude(split=Split.HOLDOUT).select_related("eval_set").order_by("-created_at")
    return rows.filter(eval_set=asked.eval_set, split=Split.TRAIN).first() or rows.first()


def lengths_of(asked: Asked, *, turns: int) -> Known:
    """`turns`: the maximum of an episode."""
    most = asked.config["max_new_tokens"]
    run = evaluation_of(asked)
    rows = (
        run.samples.filter(output_tokens__gt=0).values_list(
            "output_tokens", "input_tokens", "turns"
        )[:READ]
        if run
        else ()
    )
    if not (found := list(rows)):
        low, high = Lengths(1, 1, 1), most * turns
        return Known(
            low,
            Lengths(high / 2, high, high / 2, (1 + turns) / 2),
            Lengths(high, high, high, turns),
            f"Answer length is unknown without an evaluation of {asked.parent} in"
            f" {asked.environment}: up to {most:,} tokens{' a turn' if turns > 1 else ''}.",
        )
    written, longest = mean(one[0] for one in found), max(one[0] for one in found)
    acted = mean(one[2] or 1 for one in found)
    # The last turn's prompt contains everything before it; over n turns, prompts add up to about
    # n(n-1)/2 times that.
    limit = most * max(1.0, acted)
    likely = Lengths(min(written, limit), min(longest, limit), min(written, limit), acted)
    between = _observed(found, acted)
    likely = replace(likely, after=likely.written + between)
    return Known(
        scaled(likely, WIDER[0], limit),
        likely,
        scaled(likely, WIDER[1], limit),
        f"Answers average {written:,.0f} tokens, up to {longest:,}, in “{run.name}” (n ="
        f" {len(found):,}).",
        run,
    )


def _observed(found: list[tuple[int, int | None, int]], turns: float) -> float:
    """Tokens of tool results and users in an episode: the prompts of its later turns contain them
    in addition to its own answers.
    """
    if turns <= 1:
        return 0.0
    several = [(written, asked or 0, count) for written, asked, count in found if count > 1]
    first = min((asked for _, asked, count in found if count == 1 and asked), default=0)
    grown = [
        max(0.0, 2 * (asked / count - (first or asked / count * 0.7)) - written)
        for written, asked, count in several
    ]
    return mean(grown) if grown else 0.0


def scaled(one: Lengths, by: float, limit: float) -> Lengths:
    return replace(
        one,
        written=min(one.written * by, limit),
        longest=min(max(one.longest * by, one.written), limit),
        after=one.after * by,
    )
