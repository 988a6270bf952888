"""What RL can learn from a set of tasks, given k samples of each. Pure: no Django, no torch.

GRPO's advantage is a reward minus its group's mean, so a group with equal rewards teaches nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from apps.evals.stats import PASS_AT, SampleRow, TaskSamples, pass_at_k

Kind = Literal["mixed", "all_pass", "all_fail"]
PRIOR = (0.5, 0.5)  # Jeffreys prior of a success rate
SAME = 1e-9  # rewards closer than this are equal


@dataclass(frozen=True)
class TaskView:
    """One task: `n` samples, `passed` of them; `spread` is the standard deviation of its rewards
    (population).
    """

    task: str
    n: int
    passed: int
    mean_reward: float
    spread: float
    group: str = ""

    @property
    def rate(self) -> float:
        return self.passed / self.n

    @property
    def kind(self) -> Kind:
        if self.passed == self.n:
            return "all_pass"
        return "mixed" if self.passed else "all_fail"

    @property
    def has_signal(self) -> bool:
        """Whether its samples differ in reward: partial credit may teach even if no sample
        passes.
        """
        return self.spread > SAME


@dataclass(frozen=True)
class Learnability:
    """Aggregates over all tasks with an unmasked sample; shares are of those tasks."""

    tasks: list[TaskView]
    pass_at: dict[int, float]
    counts: dict[str, int]
    shares: dict[str, float]
    zero_variance: int
    zero_variance_share: float
    mean_spread: float
    group_size: int
    expected_signal: float
    unscored: int
    sentence: str


@dataclass(frozen=True)
class Pick:
    """The tasks for training, best first; and why each other one is left out."""

    chosen: list[str]
    left_out: dict[str, str]


def learnability(
    rows: Sequence[SampleRow], *, group_size: int = 8, groups: dict[str, str] | None = None
) -> Learnability:
    """`group_size`: samples of a task in one GRPO step (G). Masked samples do not count. Raises
    ValueError for G < 2.
    """
    if group_size < 2:
        raise ValueError("a group has at least 2 samples")
    tasks = [
        _view(task, found, (groups or {}).get(task, ""))
        for task, found in sorted(TaskSamples(rows).scored().items())
    ]
    total = len(tasks) or 1
    counts = Counter(item.kind for item in tasks)
    kinds: tuple[Kind, ...] = ("mixed", "all_pass", "all_fail")
    flat = sum(not item.has_signal for item in tasks)
    signal = (
        fmean(signal_chance(item.passed, item.n, group_size) for item in tasks) if tasks else 0.0
    )
    return Learnability(
        tasks=tasks,
        pass_at=_pass_at(tasks),
        counts={kind: counts[kind] for kind in kinds},
        shares={kind: counts[kind] / total for kind in kinds},
        zero_variance=flat,
        zero_variance_share=flat / total,
        mean_spread=fmean(item.spread for item in tasks) if tasks else 0.0,
        group_size=group_size,
        expected_signal=signal,
        unscored=len({row.task for row in rows}) - len(tasks),
        sentence=_sentence(tasks),
    )


def _view(task: str, rows: Sequence[SampleRow], group: str) -> TaskView:
    rewards = [row.reward or 0.0 for row in rows]
    return TaskView(
        task, len(rows), sum(row.success for row in rows), fmean(rewards), pstdev(rewards), group
    )


def _pass_at(tasks: Sequence[TaskView]) -> dict[int, float]:
    """The mean of unbiased pass@k for each k that every task has samples for."""
    smallest = min((item.n for item in tasks), default=0)
    return {
        k: fmean(pass_at_k(item.n, item.passed, k) for item in tasks)
        for k in PASS_AT
        if k <= smallest
    }


def _sentence(tasks: Sequence[TaskView]) -> str:
    if not tasks:
        return "No task has a scored sample yet."
    if all(item.n == 1 for item in tasks):
        return "One sample per task is not enough to estimate learnability. Use at least 4."
    learns = sum(item.has_signal for item in tasks)
    return f"RL can learn from {learns} of {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}."


def signal_chance(passed: int, n: int, size: int, prior: tuple[float, float] = PRIOR) -> float:
    """Probability that `size` new samples of a task neither all pass nor all fail, given `passed`
    of `n`.

    1 − E[p^G] − E[(1 − p)^G] over the Beta(a + passed, b + n − passed) posterior, whose moments are
    E[p^G] = Π_{i<G} (a + i)/(a + b + i). With p known it is 1 − p^G − (1 − p)^G. Raises ValueError
    for passed > n.
    """
    if not 0 <= passed <= n:
        raise ValueError(f"{passed} successes of {n}")
    a, b = prior[0] + passed, prior[1] + n - passed
    return 1.0 - _moment(a, a + b, size) - _moment(b, a + b, size)


def _moment(a: float, total: float, power: int) -> float:
    return math.prod((a + i) / (total + i) for i in range(power))


def pick(
    tasks: Iterable[TaskView],
    *,
    size: int | None = None,
    per_group: int | None = None,
    partial: bool = True,
) -> Pick:
    """Mixed tasks, those nearest to p = ½ first; then, with `partial`, tasks without both outcomes
    whose rewards differ.

    `per_group` caps the tasks of one group (tasks without a group are not capped), `size` the
    total. Every task is chosen or has a reason.
    """
    chosen: list[str] = []
    left_out: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for item in sorted(tasks, key=_order):
        if why := _unfit(item, partial):
            left_out[item.task] = why
        elif item.group and per_group is not None and taken[item.group] >= per_group:
            left_out[item.task] = f"{per_group} tasks of the group {item.group} are already picked"
        elif size is not None and len(chosen) >= size:
            left_out[item.task] = f"{size} better ones are already picked"
        else:
            taken[item.group] += 1
            chosen.append(item.task)
    return Pick(chosen, left_out)


def _order(item: TaskView) -> tuple[bool, float, float, str]:
    """Mixed first, near ½ first, large spread first; then by name."""
    return (item.kind != "mixed", abs(item.rate - 0.5), -item.spread, item.task)


def _unfit(item: TaskView, partial: bool) -> str:
    if item.n < 2:
        return "a single sample has no spread"
    if item.has_signal and (item.kind == "mixed" or partial):
        return ""
    if item.kind == "all_pass":
        return f"passes in all {item.n} samples: nothing left to learn"
    if item.kind == "all_fail":
        return f"fails in all {item.n} samples: no reward signal"
    return "passes and failures have the same reward"
