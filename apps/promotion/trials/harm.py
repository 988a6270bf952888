"""What a canary may cost users, before it starts: simulated trials of candidates that are worse by
so much. Pure: numpy only.

The rules are those of `deciding`, for success alone: a look at each step's first sessions, and then
after every few. Time is counted in sessions that come to the channel, and an outcome is known
`Course.delay` of them later; the trial takes no new sessions while those whose outcome is not known
might exceed the limit.
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
PARTS = 4  # into which a look's sessions are divided at most on average, where intake pauses
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
    """The rules of a simulated trial. `delay`: of outcomes, in sessions of the channel; `longest`:
    after so many it is undecided.

    For comparison with how it was (`bench.canary`): with a `centre` that is given, for the first
    step, each later one has the rate so far; without `holds`, a step is left whatever the estimate
    is; without `pauses`, new sessions are taken however many outcomes are not known.
    """

    steps: Sequence[Mapping[str, Any]]
    alpha: float
    margin: float
    max_harmed: float
    centre: float | None = None
    holds: bool = True
    pauses: bool = True
    delay: float = 0.0
    longest: float = math.inf


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
    for _ in range(MOST_LOOKS * PARTS):
        if not trials.going.any():
            break
        trials.add_sessions(rng, failing, candidate_failing)
        trials.read_outcomes()
        trials.decide()
    answered = trials.begun
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
    bad or good], of the sessions whose outcome is known. The others wait in `outcomes`, by trial
    and in the order in which they are `due`: of the batch at `next` the next outcome is known.
    `gains`: [trials, steps × lanes × outcomes, bets], the log of what a bet against a difference
    gains by a session.
    """

    def __init__(self, course: Course, runs: int) -> None:
        self.course, steps = course, len(course.steps)
        self.shares = np.array([step["share"] for step in course.steps])
        self.least = np.array([step["min_sessions"] for step in course.steps])
        self.counts = np.zeros((runs, steps, 2, 2, 2), dtype=int)
        self.step = np.zeros(runs, dtype=int)
        self.centres = np.full((runs, steps), 0.5)
        self.centred = np.zeros((runs, steps), dtype=bool)
        self.going, self.ended, self.passed = (np.full(runs, flag) for flag in (True, False, False))
        self.begun = np.zeros(runs, dtype=int)  # sessions of the candidate
        self.admitted = np.zeros((runs, steps), dtype=int)  # sessions of both lanes
        self.clock, self.looks = np.zeros(runs), np.zeros(runs)
        batches = MOST_LOOKS * PARTS
        self.next, self.last = np.zeros(runs, dtype=int), np.zeros(runs, dtype=int)
        self.outcomes = np.zeros((runs, batches, 2, 2), dtype=int)
        self.place = np.zeros((runs, batches, 2), dtype=int)  # step, first or later sessions
        self.due = np.full((runs, batches + 1), math.inf)
        self.rows = np.arange(runs)
        self.wanted = math.log(len(MEASURES) / course.alpha)
        self.gains = {side: np.zeros((runs, steps * 4, len(BETS))) for side in ("high", "low")}
        self.set_gains(self.rows)

    def add_sessions(
        self, rng: np.random.Generator, failing: float, candidate_failing: float
    ) -> None:
        """To each trial that goes on: the first of its step, or else a part of what the step
        needs. One that has no room waits for the next outcome instead.
        """
        share = self.shares[self.step]
        usual = np.maximum(1, np.rint(self.least[self.step] / LOOKS / share)).astype(int)
        self._wait_for_room(usual * share)
        begins = self.admitted[self.rows, self.step] < FIRST
        size = np.where(begins, FIRST - self.admitted[self.rows, self.step], usual) * self.going
        wanted = np.maximum(1, size)
        candidate = rng.binomial(size, share)
        room, all_of_them = self._room(), candidate
        candidate = np.minimum(candidate, room).astype(int)
        full = candidate < all_of_them  # intake ends before all have come
        size = np.where(full, np.rint(size * candidate / np.maximum(1, all_of_them)), size)
        size = np.maximum(size.astype(int), candidate)
        outcomes = np.zeros((len(self.rows), 2, 2), dtype=int)
        for lane, n, rate in ((0, size - candidate, failing), (1, candidate, candidate_failing)):
            outcomes[:, lane, 0] = rng.binomial(n, rate)
            outcomes[:, lane, 1] = n - outcomes[:, lane, 0]
        self.clock += size
        self.looks += size / wanted
        self.begun += candidate
        self.admitted[self.rows, self.step] += size
        rows = self.rows[size > 0]
        end = self.last[rows]
        self.outcomes[rows, end] = outcomes[rows]
        self.place[rows, end] = np.column_stack([self.step, ~begins])[rows]
        self.due[rows, end] = self.clock[rows] + self.course.delay
        self.last[rows] += 1

    def read_outcomes(self) -> None:
        """Those that are known by now."""
        while (rows := self.rows[self.due[self.rows, self.next] <= self.clock]).size:
            batch = self.next[rows]
            step, part = self.place[rows, batch].T
            self.counts[rows, step, part] += self.outcomes[rows, batch]
            self.next[rows] += 1
        first = self.counts[self.rows, self.step, 0].sum(axis=(1, 2))
        self._set_centres(self.going & (first >= FIRST) & ~self.centred[self.rows, self.step])

    def _room(self) -> np.ndarray:
        """`deciding.room`."""
        if not self.course.pauses:
            return np.full(len(self.rows), math.inf)
        waiting = self.begun - self.counts[..., 1, :].sum(axis=(1, 2, 3))
        harmed = np.maximum(0.0, self._harmed()[0])
        return np.maximum(0.0, np.ceil(self.course.max_harmed - harmed - waiting))

    def _wait_for_room(self, wanted: np.ndarray) -> None:
        """Until the next outcome, where there is none for so many sessions of the candidate."""
        full = self.going & (self._room() < wanted)
        if full.any():
            soonest = self.due[self.rows, self.next]
            wait = full & np.isfinite(soonest)
            self.clock = np.where(wait, np.maximum(self.clock, soonest), self.clock)
            self.read_outcomes()

    def _harmed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The estimate by trial, the differences by step, and how many sessions by step and
        lane.
        """
        answered = self.counts.sum(axis=2)  # [trials, steps, lanes, outcomes]
        sizes = answered.sum(axis=3)
        rates = answered[..., 1] / np.maximum(1, sizes)
        gaps = np.where((sizes > 0).all(axis=2), rates[..., 1] - rates[..., 0], 0.0)
        return (-gaps * sizes[..., 1]).sum(axis=1), gaps, sizes

    def _set_centres(self, begins: np.ndarray) -> None:
        """The rate of the step's first sessions; or, as it was, of all sessions before the step."""
        if not begins.any():
            return
        for at in self.rows[begins]:
            step = self.step[at]
            if self.course.centre is None:
                bad, good = self.counts[at, step, 0].sum(axis=0)
            else:
                bad, good = self.counts[at, :step].sum(axis=(0, 1, 2))
            self.centred[at, step] = True
            self.centres[at, step] = good / (good + bad) if good + bad else self.course.centre
        self.set_gains(self.rows[begins])

    def set_gains(self, rows: np.ndarray) -> None:
        """After their centres."""
        share, above = self.shares[None, :], 1 - self.centres[rows]
        # [trials, steps, lanes, outcomes], in the order of `counts`
        sides = [
            [self.centres[rows] / (1 - share), -above / (1 - share)],
            [-self.centres[rows] / share, above / share],
        ]
        scores = np.moveaxis(np.array(sides), (0, 1), (2, 3))
        high, low = scores.max(axis=(2, 3), keepdims=True), scores.min(axis=(2, 3), keepdims=True)
        margin = -self.course.margin
        for side, ratio in (("high", -scores / high), ("low", (scores - margin) / (margin - low))):
            gains = np.log1p(ratio[..., None] * BETS)
            self.gains[side][rows] = gains.reshape(-1, *self.gains[side].shape[1:])

    def decide(self) -> None:
        course, (harmed, gaps, sizes) = self.course, self._harmed()
        weights = sizes.prod(axis=2) / np.maximum(1, sizes.sum(axis=2))
        overall = (gaps * weights).sum(axis=1) / np.maximum(1e-9, weights.sum(axis=1))
        worse = self._refuted("high") | (harmed >= course.max_harmed)
        self._end(worse, self.ended)
        enough = sizes[self.rows, self.step, 1] >= self.least[self.step]
        if course.holds:
            enough &= np.minimum(overall, gaps[self.rows, self.step]) >= -course.margin
        last = self.step == len(course.steps) - 1
        self._end(enough & last & self._refuted("low"), self.passed)
        self.step = self.step + (self.going & enough & ~last)
        self.going &= (self.clock < course.longest) & (self.looks < MOST_LOOKS)

    def _end(self, which: np.ndarray, how: np.ndarray) -> None:
        how |= which & self.going
        self.going &= ~which

    def _refuted(self, side: str) -> np.ndarray:
        """Whether a gambler has enough who bets against no difference ("high") or against the
        margin ("low"): `sequential.capital` of many trials at once.
        """
        counts = self.counts[:, :, 1] if self.course.centre is None else self.counts.sum(axis=2)
        logs = (counts.reshape(len(counts), 1, -1) @ self.gains[side])[:, 0]
        return np.logaddexp.reduce(logs, axis=1) - math.log(len(BETS)) >= self.wanted
