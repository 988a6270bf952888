"""What must not get worse beside the hold-out: regression tasks and general capability. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from apps.evals.bounds import lower_bound, upper_bound
from apps.promotion.gate.checks import EXCLUDES, REJECTS, SUCCESS, empty
from apps.promotion.gate.error_control import margin_met
from apps.promotion.gate.pairs import Pairs
from apps.promotion.gate.policy import Policy
from apps.promotion.gate.types import Check, Evaluation, State, points

Measured = (
    tuple[Evaluation, Evaluation] | None
)  # None: the set has such tasks, but they were not measured for both
Guards = Mapping[str, Measured]  # by split; a split that the set does not have is missing
TITLES = {"regression": "Regression tasks", "general": "General capability"}


def guards(measured: Guards, policy: Policy) -> list[Check]:
    margins = {"regression": policy.max_regression_drop, "general": policy.max_general_drop}
    return [_guard(name, measured, margins[name]) for name in TITLES]


def _guard(name: str, measured: Guards, margin: float) -> Check:
    """Not inferior: a drop beyond the margin is excluded, each masked sample taken as its side's
    worst (`safety`).
    """
    title = TITLES[name]
    if name not in measured:
        return empty(name, title, f"{title}: the eval set has none, so it was not measured.")
    pair = measured[name]
    if pair is None:
        return Check(
            name,
            title,
            "inconclusive",
            True,
            None,
            None,
            None,
            None,
            None,
            0,
            f"{title}: not measured for both models.",
            f"Measure {title.lower()} for both under “Compare”.",
        )
    pairs, tries = Pairs(*pair), max(side.tries for side in pair)
    excludes = EXCLUDES / tries  # whoever evaluates again until it passes pays for each try
    by_task = pairs.by_task(SUCCESS)
    if not by_task:
        return Check(
            name,
            title,
            "inconclusive",
            True,
            None,
            None,
            None,
            None,
            None,
            0,
            f"{title}: no sample of one of the models could be scored.",
            f"See why under “Compare” and measure {title.lower()} again.",
        )
    least = lower_bound(pairs.successes((1.0, 0.0)), excludes, -1, 1)
    n, (before, after) = len(by_task), (float(np.mean(side)) for side in pairs.sides(SUCCESS))
    low, high = lower_bound(by_task, 0.025, -1, 1), upper_bound(by_task, 0.025, -1, 1)
    state: State = "inconclusive"
    if upper_bound(by_task, REJECTS, -1, 1) < -margin:
        state = "worse"
    elif least >= -margin:
        state = "better" if low > 0 else "same"
    gap, drop = after - before, max(-least, 0)
    sentence = {
        "worse": (
            f"Success fell by more than {margin:.1%}: {points(gap)} [{points(low)}, {points(high)}]"
            f" over {n} tasks."
        ),
        "better": f"Success rose: {points(gap)} [{points(low)}, {points(high)}] over {n} tasks.",
        "same": (
            f"A drop of more than {drop:.1%} is excluded over {n} tasks; {margin:.1%} is allowed."
        ),
        "inconclusive": (
            f"A drop of up to {drop:.1%} cannot be excluded over {n} tasks; {margin:.1%} is"
            " allowed."
        ),
    }[state]
    if tries > 1:
        sentence += f" Evaluated {tries} times: each may be wrong with {excludes:.1%}."
    best = margin_met(n, excludes)
    decides = "" if state != "inconclusive" else "More tasks would narrow the interval."
    if decides and best > margin:
        decides = (
            f"Even without any change, {n} tasks cannot exclude less than {best:.1%}: add tasks or"
            " change the margin."
        )
    return Check(name, title, state, True, before, after, gap, low, high, n, sentence, decides)
