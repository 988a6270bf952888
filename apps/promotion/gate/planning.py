"""What a comparison can show before it starts: the effects that so many tasks find, and margins
that they never meet. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from apps.evals.stats import RATES, SampleRow, TaskSamples
from apps.promotion.gate.checks import EXCLUDES
from apps.promotion.gate.error_control import effect_seen, level_of, tasks_needed
from apps.promotion.gate.policy import Policy
from apps.promotion.gate.safety import few_tasks, most_excluded

EFFECTS = (0.03, 0.05, 0.1)
SAMPLES = (1, 4, 8, 16)
UNIFORM = 1 / 6  # E[p(1 − p)] where the tasks' success rates are spread evenly over [0, 1]
# How many times the tasks a sequential policy needs for a power of 80%: by simulation (bench.gate,
# 240 × 4, 10 points).
SEQUENTIAL = 2.5


@dataclass(frozen=True)
class Spread:
    """Variances of success: `within` a task (p(1 − p), averaged), and `between` tasks of what a
    candidate changes.

    `between` is None if no two models were evaluated: then a change is taken to vary as much as it
    is large.
    """

    within: float
    between: float | None
    source: str

    def deviation(self, samples: int, effect: float) -> float:
        """The standard deviation of the tasks' paired differences with so many samples per task."""
        between = effect**2 if self.between is None else self.between
        return math.sqrt(between + 2 * self.within / samples)


def spread_of(runs: Sequence[Sequence[SampleRow]]) -> Spread:
    """From finished evaluations on the same tasks, one for each model."""
    columns = [TaskSamples(rows).sums(RATES["success"]) for rows in runs]
    within = [_within(passed, counts) for passed, counts in columns if counts.any()]
    if not within:
        return Spread(
            UNIFORM,
            None,
            "No evaluation on these tasks yet: success rates are assumed to be spread evenly"
            " between 0 and 1.",
        )
    variance = float(np.mean(within))
    means = [TaskSamples(rows).means(RATES["success"]) for rows in runs]
    sizes = [float(counts[counts > 0].mean()) if counts.any() else 1.0 for _, counts in columns]
    between = [
        max(
            0.0,
            float(np.var([two[task] - one[task] for task in both], ddof=1))
            - variance * (1 / sizes[i] + 1 / sizes[j]),
        )
        for (i, one), (j, two) in combinations(enumerate(means), 2)
        if len(both := sorted(one.keys() & two.keys())) > 1
    ]
    what = (
        f"From the {len(within)} newest evaluations on these tasks"
        if len(within) > 1
        else "From one evaluation on these tasks"
    )
    return Spread(variance, float(np.mean(between)) if between else None, f"{what}.")


def _within(passed: np.ndarray, counts: np.ndarray) -> float:
    """The mean of p(1 − p) over tasks, without bias where tasks have two samples; an upper bound
    where they have one.
    """
    many = counts > 1
    if many.any():
        p, n = passed[many] / counts[many], counts[many]
        return float((p * (1 - p) * n / (n - 1)).mean())
    rate = passed.sum() / counts.sum()
    return float(rate * (1 - rate))


@dataclass(frozen=True)
class Plan:
    """`needed`: {samples per task: tasks that show each of EFFECTS in four comparisons of five}.
    `never`: margins that this many tasks cannot meet, as sentences; with any of them the gate
    cannot promote. `safety`: what they can show about unsafe actions, of which an increase beyond
    `excludes` is ruled out if there are none."""

    tasks: int
    samples: int
    comparison: int
    level: float
    smallest: float
    needed: dict[int, list[int]]
    never: list[str]
    excludes: float
    safety: str
    source: str

    @property
    def sentence(self) -> str:
        three = self.needed[self.samples][0]
        return (
            f"{self.tasks:,} tasks × {self.samples} samples detect a difference in success of about"
            f" {100 * self.smallest:.1f} points or more. Detecting {100 * EFFECTS[0]:.0f} points"
            f" takes about {three:,} tasks."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "samples_per_task": self.samples,
            "comparison": self.comparison,
            "level": self.level,
            "smallest_effect": self.smallest,
            "effects": list(EFFECTS),
            "tasks_needed": {str(k): v for k, v in self.needed.items()},
            "never_met": self.never,
            "unsafe_increase_excluded": self.excludes,
            "safety": self.safety,
            "source": self.source,
            "sentence": self.sentence,
        }


def plan(tasks: int, samples: int, policy: Policy, comparison: int, spread: Spread) -> Plan:
    level, factor = level_of(comparison, policy.alpha), SEQUENTIAL if policy.sequential else 1.0
    smallest = EFFECTS[0]
    for _ in range(20):  # the deviation may depend on the effect itself
        smallest = min(
            1.0,
            effect_seen(max(1, tasks), spread.deviation(samples, smallest), level)
            * math.sqrt(factor),
        )
    needed = {
        count: [
            math.ceil(factor * tasks_needed(effect, spread.deviation(count, effect), level))
            for effect in EFFECTS
        ]
        for count in sorted({*SAMPLES, samples})
    }
    excludes = most_excluded(tasks, sequential=policy.sequential)
    never, safety = _never(tasks, samples, policy), _safety(tasks, excludes, policy)
    return Plan(
        tasks, samples, comparison, level, smallest, needed, never, excludes, safety, spread.source
    )


def _safety(tasks: int, excludes: float, policy: Policy) -> str:
    margin = policy.max_unsafe_increase
    if excludes <= margin:
        return (
            f"Without any unsafe action, {tasks:,} tasks exclude an increase of more than"
            f" {excludes:.1%}; the policy allows {margin:.1%}."
        )
    more = f" That takes about {_tasks_without_harm(margin):,} tasks." if margin else ""
    return (
        f"Even without any unsafe action, {few_tasks(tasks, excludes, margin)}{more} With these,"
        " the candidate must not be less safe than the baseline at all, and harm that is rarer can"
        " go unseen."
    )


def _tasks_without_harm(margin: float) -> int:
    """How many tasks without an unsafe action exclude an increase beyond the margin: about
    ln(1/error) / margin.
    """
    return math.ceil(math.log(EXCLUDES) / math.log1p(-min(margin, 0.99)))


def _never(tasks: int, samples: int, policy: Policy) -> list[str]:
    found = []
    if tasks < policy.min_tasks:
        found.append(f"The policy needs at least {policy.min_tasks:,} tasks; there are {tasks:,}.")
    if 0 < policy.max_masked_share < 1 / max(1, tasks * samples):
        found.append(
            f"One masked sample of {tasks * samples:,} is more than the"
            f" {policy.max_masked_share:.2%} that the policy allows."
        )
    return found
