"""The numbers of an evaluation, with intervals. Pure: no Django, no torch.

A task is sampled k times. Samples of one task are not independent, so every interval is over tasks:
the statistic is the mean of the tasks' own means, its error the spread of those (clustered by
task).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from apps.core.intervals import LEVEL, wilson

NOTHING_SCORED = "Every sample is masked, so this evaluation says nothing about the model."
PASS_AT = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One scored output, as far as the metrics need it. `reward` is None if it is masked.
    `timed_out`: it failed because it took longer than allowed, by the clock of its machine.
    `crashed`: the agent reported an error instead of an answer. `other_results`: it had run tools
    of its own. Not `answered`: it failed without an answer, so there are no tokens to count.
    `no_answer`: it failed because the agent crashed, took too long or said nothing. `called`: it
    called a tool of its task. `needs_calls`: whether its task cannot be solved in words alone; None
    if that is not known.

    Only the gate sets the last three, of unsafe outputs: what kinds of unsafe action it shows, and
    what a person who looked at it decided (None: nobody has)."""

    task: str
    reward: float | None
    success: bool = False
    valid: bool | None = None
    tool_ok: bool | None = None
    args_score: float | None = None
    executed: bool | None = None
    unsafe: bool = False
    masked: bool = False
    timed_out: bool = False
    crashed: bool = False
    other_results: bool = False
    answered: bool = True
    no_answer: bool = False
    called: bool = False
    needs_calls: bool | None = False
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    id: str = ""
    kinds: tuple[str, ...] = ()
    accepted: bool | None = None

    @property
    def lacks_calls(self) -> bool:
        """It failed without a call, where calls were needed or may have been."""
        failed = not (self.success or self.masked or self.no_answer or self.called)
        return failed and self.needs_calls is not False


Value = Callable[[SampleRow], float | None]  # None counts for nothing


@dataclass(frozen=True)
class Estimate:
    """A mean over n tasks with its 95% interval. None if n is too small: no mean of none, no
    interval of one.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


def mean_interval(
    values: Sequence[float], bounds: tuple[float, float] | None = None, *, level: float = LEVEL
) -> Estimate:
    """Mean of the tasks' values with Student's t interval of that level, cut to `bounds`.

    Where all the values are equal the spread says nothing: for 0/1 bounds Wilson's interval is
    given instead.
    """
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    if n == 1:
        return Estimate(mean, *(bounds or (None, None)), 1)
    error = float(array.std(ddof=1)) / math.sqrt(n)
    if error == 0 and bounds == (0.0, 1.0):
        low, high = wilson(round(mean * n), n, level)
        return Estimate(mean, low, high, n)
    half = _student(0.5 + level / 2, n - 1) * error
    low, high = mean - half, mean + half
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(mean, low, high, n)


@lru_cache(4096)
def _student(share: float, freedom: int) -> float:
    from scipy import stats  # scipy takes 60 MB, which a web process does without

    return float(stats.t.ppf(share, freedom))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k = 1 − C(n−c, k) / C(n, k) from c successes in n samples (Chen et al. 2021,
    2107.03374).

    Raises ValueError for k > n.
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


class TaskSamples:
    """Samples by task. A masked sample is no evidence about the model, unless a value is given that
    it counts as.
    """

    def __init__(self, rows: Iterable[SampleRow], among: Iterable[str] | None = None) -> None:
        """Of the tasks `among`, or of all tasks in the rows."""
        given = list(rows)
        self.tasks = sorted({row.task for row in given} if among is None else among)
        number = {task: at for at, task in enumerate(self.tasks)}
        self.rows = [row for row in given if row.task in number]
        self.at = np.array([number[row.task] for row in self.rows], dtype=int)
        self.masked = np.array([row.masked for row in self.rows], dtype=bool)
        self.timed_out = np.array([row.timed_out for row in self.rows], dtype=bool)
        self.answered = np.array([row.answered for row in self.rows], dtype=bool)
        self._columns: dict[Value, np.ndarray] = {}

    def sums(
        self, value: Value, masked: float | None = None, timed_out: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each task's sum and number of samples, [tasks] both; masked ones count as `masked`, or
        not at all, and those that timed out as `timed_out`, where it is given."""
        if value not in self._columns:
            self._columns[value] = np.array(
                [value(row) for row in self.rows], dtype=float
            )  # None is NaN
        found = self._columns[value].copy()
        weights = np.ones(len(found)) if masked is not None else (~self.masked).astype(float)
        found[self.masked] = masked or 0.0
        if timed_out is not None:
            found[self.timed_out] = timed_out
        unknown = np.isnan(found)
        found[unknown], weights[unknown] = 0.0, 0.0
        size = len(self.tasks)
        return np.bincount(self.at, found, size), np.bincount(self.at, weights, size)

    def means(
        self, value: Value, masked: float | None = None, timed_out: float | None = None
    ) -> dict[str, float]:
        """Each task's mean, without tasks in which nothing was scored."""
        totals, counts = self.sums(value, masked, timed_out)
        return {self.tasks[at]: float(totals[at] / counts[at]) for at in np.flatnonzero(counts)}

    def means_of_answers(self, value: Value) -> dict[str, float]:
        """`means` over samples that have an answer."""
        chosen, size = self.answered & ~self.masked, len(self.tasks)
        found = np.array([value(row) for row in self.rows], dtype=float)
        totals, counts = (
            np.bincount(self.at[chosen], found[chosen], size),
            np.bincount(self.at[chosen], minlength=size),
        )
        return {self.tasks[at]: float(totals[at] / counts[at]) for at in np.flatnonzero(counts)}

    def scored(self) -> dict[str, list[SampleRow]]:
        """The samples that are not masked, of each task that has one."""
        groups: dict[str, list[SampleRow]] = defaultdict(list)
        for row in self.rows:
            if not row.masked:
                groups[row.task].append(row)
        return dict(groups)

    @property
    def masked_share(self) -> float:
        return float(self.masked.mean()) if len(self.masked) else 0.0

    @property
    def timed_out_share(self) -> float:
        return float(self.timed_out.mean()) if len(self.timed_out) else 0.0


RATES: dict[str, Value] = {
    "valid_json": lambda row: row.valid,
    "correct_tool": lambda row: row.tool_ok,
    "correct_arguments": lambda row: (
        None if row.args_score is None else row.tool_ok and row.args_score >= 1.0
    ),
    "execution_success": lambda row: row.executed,
    "unsafe_action": lambda row: row.unsafe,
    "success": lambda row: row.success,
}


def summarise(rows: Sequence[SampleRow]) -> dict[str, Any]:
    """The metrics of one evaluation: {name: Estimate as dict}, pass@k, shares of tasks, latency,
    tokens, counts.
    """
    samples = TaskSamples(rows)
    groups = samples.scored()
    metrics: dict[str, Any] = {
        name: mean_interval(list(samples.means(value).values()), (0.0, 1.0)).as_dict()
        for name, value in RATES.items()
    }
    metrics["reward"] = mean_interval(
        list(samples.means(lambda row: row.reward or 0.0).values())
    ).as_dict()
    metrics["pass_at_k"] = _pass_at(groups)
    metrics["tasks"] = _shares(groups)
    metrics["latency_ms"] = _quantiles(
        [row.latency_ms for row in rows if row.latency_ms is not None]
    )
    metrics["input_tokens"] = _mean(
        [row.input_tokens for row in rows if row.input_tokens is not None]
    )
    metrics["output_tokens"] = _mean(
        [row.output_tokens for row in rows if row.output_tokens is not None]
    )
    metrics["counts"] = {
        "tasks": len(groups),
        "samples": len(rows),
        "masked": int(samples.masked.sum()),
        "agent_errors": sum(row.crashed for row in rows),
        "other_results": sum(row.other_results for row in rows),
        "no_answer": sum(row.no_answer for row in rows),
        "called": sum(row.called for row in rows),
        "lack_calls": sum(row.lacks_calls for row in rows),
        "tasks_need_calls": len({r.task for r in rows if r.lacks_calls and r.needs_calls}),
    }
    return metrics


def _pass_at(groups: dict[str, list[SampleRow]]) -> dict[str, float]:
    smallest = min((len(group) for group in groups.values()), default=0)
    return {
        str(k): float(
            np.mean([pass_at_k(len(g), sum(r.success for r in g), k) for g in groups.values()])
        )
        for k in PASS_AT
        if k <= smallest
    }


def _shares(groups: dict[str, list[SampleRow]]) -> dict[str, int]:
    """How many tasks pass always, never, sometimes: only the last kind teaches GRPO anything."""
    passed = [(sum(row.success for row in group), len(group)) for group in groups.values()]
    always = sum(c == n for c, n in passed)
    never = sum(c == 0 for c, _ in passed)
    return {"always": always, "never": never, "mixed": len(passed) - always - never}


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p95": None}
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95)}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
