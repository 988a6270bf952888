"""What a canary may cost users, before it starts: simulated trials of candidates that are worse by
so much. Pure: numpy only.

The rules are those of `deciding`, for success alone and without time: a look at each step's first
sessions, and then after every few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apps.promotion.trials.deciding import FIRST, MEASURES
from apps.promotion.trials.sequential import BETS

EXTRA = (
    0.0,
    0.05,
    0.1,
    0.3,
)  # of the sessions, that fail with the candidate and would not with the current version
RUNS, LOOKS, MOST_LOOKS = (
    200,
    20,
    300,
)  # simulated trials; looks in the shortest step; at which a trial is undecided
MOST = 0.95  # quantile that is called “at most”


@dataclass(frozen=True)
class Harm:
    """If `extra` of the sessions failed that would not with the current version: so many sessions
    are `harmed` on average, and in 19 of 20 trials at most `at_most`; `sessions` is how many the
    candidate answers until it is ended. `in_first_step`: the share of trials that end it there.
    `passed`: the share that pass it."""

    extra: float
    harmed: float
    at_most: float
    sessions: float
    ended: float
    in_first_step: float
    passed: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Course:
    """The rules of a simulated trial. For comparison with how it was (`bench.canary`): with a
    `centre` that is given, for the first step, each later one has the rate so far; without `holds`,
    a step is left whatever the estimate is."""

    steps: Sequence[Mapping[str, Any]]
    alpha: float
    margin: float
    max_harmed: float
    centre: float | None = None
    holds: bool = True


def forecast(
    course: Course, failing: float, extra: Sequence[float] = EXTRA, runs: int = RUNS
) -> list[Harm]:
    """`failing`: the share of the current version's sessions that fail."""
    worse = dict.fromkeys(min(1.0, failing + more) for more in extra)
    return [simulate(course, failing, candidate, runs) for candidate in worse]


def simulate(
    course: Course, failing: float, candidate_failing: float, runs: int = RUNS, seed: int = 0
) -> Harm:
    rng, trials = np.random.default_rng(seed), _Trials(course, runs)
    for _ in range(MOST_LOOKS):
        if not trials.going.any():
            break
        trials.add_sessions(rng, failing, candidate_failing)
        trials.decide()
    answered = trials.counts[..., 1, :].sum(axis=(1, 2, 3))
    harmed = (candidate_failing - failing) * answered
    first = trials.ended & (trials.step == 0)
    return Harm(
        round(candidate_failing - failing, 6),
        float(harmed.mean()),
        float(np.quantile(harmed, MOST)),
        float(answered.mean()),
        float(trials.ended.mean()),
        float(first.mean()),
        float(trials.passed.mean()),
    )


class _Trials:
    """Many trials at once. `counts`: [trials, steps, first or later sessions, current or candidate,
    bad or good].
    """

    def __init__(self, course: Course, runs: int) -> None:
        self.course, steps = course, len(course.steps)
        self.shares = np.array([step["share"] for step in course.steps])
        self.least = np.array([step["min_sessions"] for step in course.steps])
        self.counts = np.zeros((runs, steps, 2, 2, 2), dtype=int)
        self.step = np.zeros(runs, dtype=int)
        self.centres = np.full((runs, steps), 0.5)
        self.going, self.ended, self.passed = (np.full(runs, flag) for flag in (True, False, False))
        self.rows = np.arange(runs)
        self.wanted = math.log(len(MEASURES) / course.alpha)

    def add_sessions(
        self, rng: np.random.Generator, failing: float, candidate_failing: float
    ) -> None:
        """To each trial that goes on: the first of its step, or else a part of what the step
        needs.
        """
        now = self.counts[self.rows, self.step]
        begins = now.sum(axis=(1, 2, 3)) == 0
        share = self.shares[self.step]
        usual = np.maximum(1, np.rint(self.least[self.step] / LOOKS / share)).astype(int)
        size = np.where(begins, FIRST, usual) * self.going
        candidate = rng.binomial(size, share)
        part = np.where(begins, 0, 1)
        for lane, n, rate in ((0, size - candidate, failing), (1, candidate, candidate_failing)):
            bad = rng.binomial(n, rate)
            for outcome, count in ((0, bad), (1, n - bad)):
                self.counts[self.rows, self.step, part, lane, outcome] += count
        self._set_centres(begins & self.going)

    def _set_centres(self, begins: np.ndarray) -> None:
        """The rate of the step's first sessions; or, as it was, of all sessions before the step."""
        for at in self.rows[begins]:
            step = self.step[at]
            if self.course.centre is None:
                bad, good = self.counts[at, step, 0].sum(axis=0)
            else:
                bad, good = self.counts[at, :step].sum(axis=(0, 1, 2))
            self.centres[at, step] = good / (good + bad) if good + bad else self.course.centre

    def decide(self) -> None:
        course, answered = self.course, self.counts.sum(axis=2)  # [trials, steps, lanes, outcomes]
        sizes = answered.sum(axis=3)
        rates = answered[..., 1] / np.maximum(1, sizes)
        gaps = np.where((sizes > 0).all(axis=2), rates[..., 1] - rates[..., 0], 0.0)
        harmed = (-gaps * sizes[..., 1]).sum(axis=1)
        weights = sizes.prod(axis=2) / np.maximum(1, sizes.sum(axis=2))
        overall = (gaps * weights).sum(axis=1) / np.maximum(1e-9, weights.sum(axis=1))
        worse = self._refuted(0.0, "high") | (harmed >= course.max_harmed)
        self._end(worse, self.ended)
        enough = sizes[self.rows, self.step, 1] >= self.least[self.step]
        if course.holds:
            enough &= np.minimum(overall, gaps[self.rows, self.step]) >= -course.margin
        last = self.step == len(course.steps) - 1
        self._end(enough & last & self._refuted(-course.margin, "low"), self.passed)
        self.step = self.step + (self.going & enough & ~last)

    def _end(self, which: np.ndarray, how: np.ndarray) -> None:
        how |= which & self.going
        self.going &= ~which

    def _refuted(self, m: float, against: str) -> np.ndarray:
        """Whether a gambler who bets against the difference m has enough: `sequential.capital` of
        many trials at once.
        """
        share, above = self.shares[None, :], 1 - self.centres
        # [trials, steps, lanes, outcomes], in the order of `counts`
        sides = [
            [self.centres / (1 - share), -above / (1 - share)],
            [-self.centres / share, above / share],
        ]
        scores = np.moveaxis(np.array(sides), (0, 1), (2, 3))
        if against == "high":
            ratio = -(scores - m) / (scores.max(axis=(2, 3), keepdims=True) - m)
        else:
            ratio = (scores - m) / (m - scores.min(axis=(2, 3), keepdims=True))
        counts = self.counts[:, :, 1] if self.course.centre is None else self.counts.sum(axis=2)
        logs = [(counts * np.log1p(bet * ratio)).sum(axis=(1, 2, 3)) for bet in BETS]
        return np.logaddexp.reduce(logs) - math.log(len(BETS)) >= self.wanted
