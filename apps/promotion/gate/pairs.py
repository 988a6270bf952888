"""The samples of two evaluations, task by task. Pure."""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import comb

import numpy as np

from apps.evals.stats import RATES, TaskSamples, Value
from apps.promotion.gate.types import Evaluation


class Pairs:
    """Tasks that both evaluations have, with the samples of each side; a masked sample is no
    evidence of itself.

    A task whose samples are all masked on one side gives no difference, unless it is said what
    masked samples count as.
    """

    def __init__(self, baseline: Evaluation, candidate: Evaluation) -> None:
        both = {row.task for row in baseline.rows} & {row.task for row in candidate.rows}
        self.before, self.after = (
            TaskSamples(baseline.rows, both),
            TaskSamples(candidate.rows, both),
        )
        self.tasks = self.before.tasks
        self.models = baseline.model, candidate.model
        self.keys = baseline.keys | candidate.keys
        self.groups = baseline.groups

    def by_task(
        self,
        value: Value,
        *,
        baseline_masked: float | None = None,
        candidate_masked: float | None = None,
    ) -> dict[str, float]:
        """{task: candidate's mean − baseline's mean}."""
        before, after = (
            self.before.means(value, baseline_masked),
            self.after.means(value, candidate_masked),
        )
        return {
            task: after[task] - before[task]
            for task in self.tasks
            if task in before and task in after
        }

    def successes(self, unsure: tuple[float, float]) -> dict[str, float]:
        """`by_task` of success, with what the machine or the verifier may have decided as `unsure`
        (baseline's, candidate's): masked samples and those that timed out."""
        (a, b), value = unsure, RATES["success"]
        before, after = self.before.means(value, a, a), self.after.means(value, b, b)
        return {task: after[task] - before[task] for task in self.tasks}

    def sides(self, value: Value, *, answers: bool = False) -> tuple[list[float], list[float]]:
        """Each side's task means, in the same order, for the tasks that both could score; of
        `answers`, without the samples that failed without one."""
        before, after = (
            side.means_of_answers(value) if answers else side.means(value)
            for side in (self.before, self.after)
        )
        both = [task for task in self.tasks if task in before and task in after]
        return [before[task] for task in both], [after[task] for task in both]

    def masked_shares(self) -> tuple[float, float]:
        return self.before.masked_share, self.after.masked_share

    def masked_in_words(self) -> str:
        """Which version masked how many."""
        sides = zip(("baseline", "candidate"), self.models, (self.before, self.after), strict=True)
        return " and ".join(
            f"{side.masked.sum():,} of {len(side.masked):,} samples ({side.masked_share:.1%}) of"
            f" the {which} {model}"
            for which, model, side in sides
        )

    def timed_out_shares(self) -> tuple[float, float]:
        return self.before.timed_out_share, self.after.timed_out_share

    # Regressions

    @cached_property
    def _counts(self) -> np.ndarray:
        """Successes and scored samples of both sides, c0, n0, c1, n1, of each task, [tasks, 4]."""
        columns = [*self.before.sums(RATES["success"]), *self.after.sums(RATES["success"])]
        return np.rint(np.stack(columns, axis=1)).astype(int)

    def regressed(self) -> list[str]:
        """Keys of the tasks that went from mostly passing to mostly failing."""
        return self._moved(1)

    def improved(self) -> list[str]:
        return self._moved(-1)

    def _moved(self, sign: int) -> list[str]:
        c0, n0, c1, n1 = self._counts.T
        moved = np.flatnonzero((sign * (2 * c0 - n0) > 0) & (sign * (2 * c1 - n1) < 0))
        return sorted(self.keys.get(self.tasks[at], self.tasks[at]) for at in moved)

    def regressed_by_chance(self, quantile: float) -> int:
        """That quantile of how many tasks would seem to regress if each task's samples were dealt
        out again to the two.

        Exact: the tasks are independent, so their number is a sum of Bernoulli variables (Poisson's
        binomial distribution), whose probabilities are multiplied out one task at a time.
        """
        chances = np.ones(1)
        for c0, n0, c1, n1 in self._counts.tolist():
            chance = chance_of_regressing(c0 + c1, n0, n1)
            if chance:
                chances = np.convolve(chances, (1 - chance, chance))
        return int(np.searchsorted(np.cumsum(chances), quantile - 1e-12))

    def certainly_regressed(self, error: float) -> int:
        """How many tasks' own samples show it: one-sided Fisher tests, Holm's correction over all
        tasks.
        """
        chances = sorted(
            chance_of_so_few(c1, c0 + c1, n0, n1) for c0, n0, c1, n1 in self._counts.tolist()
        )
        for rank, chance in enumerate(chances):
            if chance > error / (len(chances) - rank):
                return rank
        return len(chances)


@lru_cache(4096)
def chance_of_so_few(passed_after: int, passed: int, before: int, after: int) -> float:
    """P(at most `passed_after` of the `passed` samples are among the `after`) if `before` + `after`
    samples are dealt out.
    """
    return sum(_dealt(count, passed, before, after) for count in range(passed_after + 1))


@lru_cache(4096)
def chance_of_regressing(passed: int, before: int, after: int) -> float:
    """P(more than half of `before` and less than half of `after` pass) where `passed` of both
    together do, dealt out.
    """
    return sum(
        _dealt(count, passed, before, after)
        for count in range(passed + 1)
        if 2 * (passed - count) > before and 2 * count < after
    )


def _dealt(count: int, passed: int, before: int, after: int) -> float:
    """The hypergeometric probability that `count` of the `passed` samples are among the `after`."""
    if count > after:
        return 0.0
    return (
        comb(passed, count)
        * comb(before + after - passed, after - count)
        / comb(before + after, after)
    )
