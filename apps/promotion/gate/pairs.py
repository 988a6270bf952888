"""The samples of two evaluations, task by task. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

from apps.evals.stats import SampleRow
from apps.promotion.gate.types import Evaluation

Value = Callable[[SampleRow], float]


class Pairs:
    """Tasks that both evaluations have, with the samples of each side; a masked sample is no evidence of itself.

    A task whose samples are all masked on one side gives no difference, unless it is said what masked samples count as.
    """

    def __init__(self, baseline: Evaluation, candidate: Evaluation) -> None:
        self.before, self.after = _grouped(baseline.rows), _grouped(candidate.rows)
        self.tasks = sorted(self.before.keys() & self.after.keys())
        self.keys = baseline.keys | candidate.keys
        self.timed_together = bool(baseline.timing) and baseline.timing == candidate.timing

    def by_task(
        self, value: Value, *, baseline_masked: float | None = None, candidate_masked: float | None = None
    ) -> dict[str, float]:
        """{task: candidate's mean − baseline's mean}."""
        found = {}
        for task in self.tasks:
            before = _task_mean(self.before[task], value, baseline_masked)
            after = _task_mean(self.after[task], value, candidate_masked)
            if before is not None and after is not None:
                found[task] = after - before
        return found

    def differences(
        self, value: Value, *, baseline_masked: float | None = None, candidate_masked: float | None = None
    ) -> list[float]:
        found = self.by_task(value, baseline_masked=baseline_masked, candidate_masked=candidate_masked)
        return list(found.values())

    def sides(self, value: Value) -> tuple[list[float], list[float]]:
        """Each side's task means, in the same order, for the tasks that both could score."""
        pairs = [
            (before, after)
            for task in self.tasks
            if (before := _task_mean(self.before[task], value, None)) is not None
            and (after := _task_mean(self.after[task], value, None)) is not None
        ]
        return [before for before, _ in pairs], [after for _, after in pairs]

    def means(self, value: Value) -> tuple[float | None, float | None]:
        before, after = self.sides(value)
        return (float(np.mean(before)), float(np.mean(after))) if before else (None, None)

    def masked_shares(self) -> tuple[float, float]:
        return _masked_share(self.before), _masked_share(self.after)

    def latencies(self) -> tuple[list[float], list[float]]:
        sides = (self.before, self.after)
        before, after = ([ms for task in self.tasks for ms in _latencies(side[task])] for side in sides)
        return before, after

    def bootstrap_ratio(
        self, statistic: Callable[[list[float]], float | None], draws: int, seed: int = 0
    ) -> np.ndarray:
        """candidate ÷ baseline of a statistic of the latencies, over resampled tasks, [draws]."""
        rng = np.random.default_rng(seed)
        before = [_latencies(self.before[task]) for task in self.tasks]
        after = [_latencies(self.after[task]) for task in self.tasks]
        found = []
        for chosen in rng.integers(0, len(self.tasks), (draws, len(self.tasks))):
            low = statistic([ms for index in chosen for ms in before[index]])
            high = statistic([ms for index in chosen for ms in after[index]])
            if low and high is not None:
                found.append(high / low)
        return np.array(found)

    # Regressions

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Successes and scored samples of each task, both sides: c0, n0, c1, n1, each [tasks]."""
        rows = []
        for task in self.tasks:
            before = [row.success for row in self.before[task] if not row.masked]
            after = [row.success for row in self.after[task] if not row.masked]
            if before and after:
                rows.append((sum(before), len(before), sum(after), len(after)))
        found = np.array(rows, dtype=int).reshape(-1, 4)
        return found[:, 0], found[:, 1], found[:, 2], found[:, 3]

    def regressed(self) -> list[str]:
        """Keys of the tasks that went from mostly passing to mostly failing."""
        return self._moved(lambda before, after: before > 0.5 > after)

    def improved(self) -> list[str]:
        return self._moved(lambda before, after: before < 0.5 < after)

    def _moved(self, moved: Callable[[float, float], bool]) -> list[str]:
        value = lambda row: float(row.success)  # noqa: E731
        found = []
        for task in self.tasks:
            before, after = _task_mean(self.before[task], value, None), _task_mean(self.after[task], value, None)
            if before is not None and after is not None and moved(before, after):
                found.append(self.keys.get(task, task))
        return sorted(found)

    def regressed_by_chance(self, quantile: float, shuffles: int, seed: int) -> int:
        """That quantile of how many tasks would seem to regress if each task's samples were dealt out anew to the two."""
        c0, n0, c1, n1 = self._counts
        if not len(c0):
            return 0
        rng = np.random.default_rng(seed)
        dealt = rng.hypergeometric(c0 + c1, n0 + n1 - c0 - c1, n0, (shuffles, len(c0)))
        before, after = dealt / n0, (c0 + c1 - dealt) / n1
        return int(np.quantile(((before > 0.5) & (after < 0.5)).sum(1), quantile, method="higher"))

    def certainly_regressed(self, error: float) -> list[int]:
        """Tasks whose own samples show it: one-sided Fisher tests, Holm's correction over all tasks."""
        from scipy.stats import hypergeom  # 60 MB, which a web process does without

        c0, n0, c1, n1 = self._counts
        chances = hypergeom.cdf(c1, n0 + n1, c0 + c1, n1)  # of so few successes after, if nothing had changed
        order = np.argsort(chances)
        found = []
        for rank, index in enumerate(order):
            if chances[index] > error / (len(order) - rank):
                break
            found.append(int(index))
        return found


def _grouped(rows: Iterable[SampleRow]) -> dict[str, list[SampleRow]]:
    groups: dict[str, list[SampleRow]] = defaultdict(list)
    for row in rows:
        groups[row.task].append(row)
    return dict(groups)


def _task_mean(rows: list[SampleRow], value: Value, masked: float | None) -> float | None:
    """The mean over a task's samples; masked ones count as `masked`, or not at all where that is None."""
    values = [masked if row.masked else value(row) for row in rows if not row.masked or masked is not None]
    return sum(values) / len(values) if values else None  # type: ignore[arg-type]


def _masked_share(groups: dict[str, list[SampleRow]]) -> float:
    rows = [row for group in groups.values() for row in group]
    return sum(row.masked for row in rows) / len(rows) if rows else 0.0


def _latencies(rows: list[SampleRow]) -> list[float]:
    return [row.latency_ms for row in rows if row.latency_ms is not None]
