"""Latency: judged only where one job measured both models in turns (docs/gate.md). Pure."""

from __future__ import annotations

import numpy as np

from apps.promotion.gate.checks import REJECTS, empty
from apps.promotion.gate.policy import Policy
from apps.promotion.gate.types import Check, Evaluation, State
from workers.lib.latency import Ratio, quantile_ratio, typical_ratio

FEWEST = 20  # tasks, below which a bootstrap of a quantile says too little
ERROR = REJECTS / 2  # median and p95 may each reject
SMALLEST = 1e-6  # milliseconds, below which a ratio says nothing
MEDIAN, P95 = "Latency, median (ms)", "Latency, p95 (ms)"


def latency(baseline: Evaluation, candidate: Evaluation, policy: Policy) -> list[Check]:
    """Half of the tasks must be shown not to be slower; the p95, which few answers decide, must not
    be shown to be worse.
    """
    before, after = baseline.timing, candidate.timing
    if before is None or after is None or before.job != after.job:
        return [_shown(baseline, candidate)]
    tasks = [task for task in before.latencies if after.latencies.get(task)]
    sides = [[timing.latencies[task] for task in sorted(tasks)] for timing in (before, after)]
    if (
        len(tasks) < FEWEST
        or min(ms for side in sides for answers in side for ms in answers) < SMALLEST
    ):
        sentence = (
            f"Measured in alternation on {len(tasks)} tasks; at least {FEWEST} are needed to"
            " judge it."
        )
        return [empty("latency", MEDIAN, sentence)]
    how = f"measured in turns on {len(tasks)} tasks, {before.how}"
    limit = policy.max_latency_ratio
    median, p95 = typical_ratio(*sides, error=ERROR), quantile_ratio(*sides, 0.95, error=ERROR)
    state: State = "inconclusive"
    if median.low > limit:
        state = "worse"
    elif median.high <= limit:
        state = "better" if median.high < 1 else "same"
    decides = "Measure again with more tasks or rounds." if state == "inconclusive" else ""
    return [
        _check(
            "latency",
            MEDIAN,
            state,
            median,
            len(tasks),
            f"Median over tasks: {_ratio_text(median)}; up to {limit:.2f} is allowed; {how}.",
            decides,
        ),
        _check(
            "latency_p95",
            P95,
            "worse" if p95.low > limit else "same",
            p95,
            len(tasks),
            f"{_ratio_text(p95)}; rejected if it is shown to be above {limit:.2f}; {how}.",
        ),
    ]


def _ratio_text(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} times the baseline's [{ratio.low:.2f}, {ratio.high:.2f}]"


def _check(
    name: str, title: str, state: State, ratio: Ratio, n: int, sentence: str, decides: str = ""
) -> Check:
    before = ratio.baseline
    gap, low, high = (before * (by - 1) for by in (ratio.value, ratio.low, ratio.high))
    return Check(
        name, title, state, True, before, ratio.candidate, gap, low, high, n, sentence, decides
    )


def _shown(baseline: Evaluation, candidate: Evaluation) -> Check:
    """What the evaluations took, at different times: the machine decides that as much as the
    model.
    """
    found = [
        [row.latency_ms for row in side.rows if row.latency_ms is not None]
        for side in (baseline, candidate)
    ]
    if not all(found):
        return empty("latency", MEDIAN, "Latency: not measured.")
    before, after = (float(np.median(side)) for side in found)
    sentence = (
        "Shown, not judged: the two were evaluated at different times, so the machine may explain"
        " the difference. “Compare” measures both, alternating between them."
    )
    return Check(
        "latency",
        MEDIAN,
        "not judged",
        False,
        before,
        after,
        after - before,
        None,
        None,
        len({row.task for row in baseline.rows}),
        sentence,
    )
