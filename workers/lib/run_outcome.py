"""What a training run has achieved: the metrics that it was for, at its end against its start and
its best, on what it trained on and on what was held back. Pure: no torch, no Django.

A `Course` keeps a metric over the whole run in bounded memory. `outcome` says in sentences how far
each metric has improved, with a 95% interval where the steps differ by chance, and which of the
sentences are findings: reasons to doubt the run, by the name of an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

TRACKED = (
    "train/loss",
    "train/reward_mean",
    "train/success",
    "validation/loss",
    "validation/success",
    "validation/samples",
)
MOST_BLOCKS = 128
FIRST = 5  # steps that are compared with the end, besides the first third
LEAST_BLOCKS = 6
LEAST_STEPS = 10  # of a run whose steps are compared
SURE = 2.2414  # a normal quantile, 98.75%: of two comparisons, one misleads in 2.5%
LIKELY = 1.645  # 95%
CLEAR = 3.0  # standard errors; less may be the luckiest part of a run without a trend
NO_LOSS = 0.01  # nats per token; a smaller fall of the loss is none
NO_RISE = 1e-3  # of the reward
SOLVED = 0.95  # success that leaves nothing to gain
SMALL_GAIN = 0.10  # of success on held-back tasks
SAME_LOSS = 0.99  # of the held-back loss before training


@dataclass
class Course:
    """The means of blocks of equal size, the oldest first. Where there would be too many, each two
    become one.
    """

    size: int = 1
    blocks: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        if len(self.first) < FIRST:
            self.first.append(value)
        self.rest.append(value)
        if len(self.rest) < self.size:
            return
        self.blocks.append(fmean(self.rest))
        self.rest = []
        if len(self.blocks) == MOST_BLOCKS:
            halves = zip(self.blocks[::2], self.blocks[1::2], strict=True)
            self.blocks = [fmean(pair) for pair in halves]
            self.size *= 2

    @property
    def steps(self) -> int:
        return len(self.blocks) * self.size + len(self.rest)

    @property
    def noise(self) -> float:
        """The standard deviation of a step around the trend, from the differences of neighbours."""
        squares = [(after - before) ** 2 for before, after in pairwise(self.blocks)]
        return math.sqrt(fmean(squares) / 2 * self.size) if squares else 0.0

    def state(self) -> dict[str, Any]:
        return {"size": self.size, "blocks": self.blocks, "rest": self.rest, "first": self.first}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Course:
        lists = {name: list(state[name]) for name in ("blocks", "rest", "first")}
        return cls(size=int(state["size"]), **lists)


@dataclass(frozen=True)
class Change:
    """`low` and `high` are the 95% interval of `gain`, which is positive if the end is better."""

    before: float
    after: float
    gain: float
    low: float
    high: float
    steps: int  # at the end


def change(course: Course, *, up: bool, exact: bool = False) -> Change | None:
    """The last third against the first five steps or the first third, whichever shows a larger
    gain, since a run may learn at once and then stay there, or slowly until its end; against the
    first step, which is computed before the first update, if the end is worse than that. `exact`:
    the first value does not depend on the data that were drawn. None if the run is too short.
    """
    blocks, sign = course.blocks, 1.0 if up else -1.0
    if len(blocks) < LEAST_BLOCKS:
        return None
    third = len(blocks) // 3
    late, steps, noise = fmean(blocks[-third:]), third * course.size, course.noise
    margin = _student(SURE, len(blocks) - 1)

    def since(before: float, n: float) -> Change:
        gain, half = sign * (late - before), margin * noise * math.sqrt(1 / n + 1 / steps)
        return Change(before, late, gain, gain - half, gain + half, steps)

    first = since(course.first[0], math.inf if exact else 1)
    if exact or first.high < 0:
        return first
    starts = (since(fmean(course.first), len(course.first)), since(fmean(blocks[:third]), steps))
    return max(starts, key=lambda start: start.low)


def lost_share(course: Course, *, up: bool, least: float) -> float | None:
    """The share of the gain from the start to the best part of the run that is gone at its end, at
    least (one-sided 95%). None without a gain beyond noise and `least`.
    """
    values = [value if up else -value for value in course.blocks]
    if len(values) < LEAST_BLOCKS:
        return None
    width = max(3, len(values) // 8)
    levels = [fmean(values[at : at + width]) for at in range(len(values) - width + 1)]
    error = course.noise * math.sqrt(2 / (width * course.size))
    won = max(levels) - max(course.first[0] if up else -course.first[0], levels[0])
    if won <= max(CLEAR * error, least):
        return None
    return max(0.0, max(levels) - levels[-1] - LIKELY * error) / won


def lost_of(values: Sequence[float]) -> float | None:
    """The same for losses of the same rows each time, which have no noise."""
    if len(values) < 3:
        return None
    won = values[0] - min(values)
    return (values[-1] - min(values)) / won if won > least_fall(values[0]) else None


def least_fall(loss: float) -> float:
    return max(NO_LOSS, 0.01 * abs(loss))


def variance(share: float, n: float) -> float:
    """The variance of a share measured on n samples. Two successes and two failures are added
    (Agresti and Coull 1998), so that it is not 0 if all samples are alike.
    """
    n = max(n, 1.0)
    share = (min(max(share, 0.0), 1.0) * n + 2) / (n + 4)
    return share * (1 - share) / n


@dataclass(frozen=True)
class Sentence:
    """What is known about one metric. `alarm`: the alarm that it is the message of, "" if it is no
    reason to doubt the run; `value` belongs to the alarm.
    """

    text: str
    alarm: str = ""
    value: float = 0.0


Courses = Mapping[str, Course]


def loss_gained(courses: Courses, *, exact: bool) -> Change | None:
    return change(courses["train/loss"], up=False, exact=exact) if "train/loss" in courses else None


def fell(loss: Change) -> bool:
    return loss.low > 0 and loss.gain > least_fall(loss.before)


def rose(reward: Change) -> bool:
    return reward.low > 0 and reward.gain > NO_RISE


def outcome(courses: Courses, *, rewarded: bool, exact: bool) -> list[Sentence]:
    """`rewarded`: the method learns from a reward, else from its loss. `exact`: as of `change`."""
    parts = (
        _reward(courses) if rewarded else _loss(courses, exact),
        None if rewarded else _other_reward(courses),
        _lost(courses, rewarded),
        _held_back(courses, rewarded),
    )
    return [part for part in parts if part]


def _reward(courses: Courses) -> Sentence | None:
    course = courses.get("train/reward_mean")
    reward = change(course, up=True) if course and course.steps >= LEAST_STEPS else None
    if course is None or reward is None:
        return Sentence("Too few steps had a reward to say whether it has risen.")
    success = courses.get("train/success")
    if (
        success
        and success.blocks
        and fmean(success.blocks[-max(1, len(success.blocks) // 3) :]) > (SOLVED)
    ):
        return Sentence(f"{_between('Reward', reward)}: the tasks are solved.")
    if rose(reward):
        return Sentence(f"{_between('Reward', reward)}.")
    worse = "it has fallen" if reward.high < 0 else "a rise is not shown"
    return Sentence(f"{_between('Reward', reward)}: {worse}.", "no_progress", course.steps)


def _loss(courses: Courses, exact: bool) -> Sentence | None:
    course, loss = courses.get("train/loss"), loss_gained(courses, exact=exact)
    if course is None or loss is None or course.steps < LEAST_STEPS:
        return Sentence("Too few steps to say whether the loss has fallen.")
    if fell(loss):
        return Sentence(f"{_between('Loss', loss)}.")
    worse = "it has risen" if loss.high < 0 else "a fall is not shown"
    return Sentence(f"{_between('Loss', loss)}: {worse}.", "no_learning", course.steps)


def _other_reward(courses: Courses) -> Sentence | None:
    """The reward of a method that does not learn from it."""
    course = courses.get("train/reward_mean")
    reward = change(course, up=True) if course and course.steps >= LEAST_STEPS else None
    if reward is None:
        return None
    if reward.high < 0:
        return Sentence(f"{_between('Reward', reward)}: it has fallen.", "reward_lost", reward.gain)
    return Sentence(f"{_between('Reward', reward)}.")


def _lost(courses: Courses, rewarded: bool) -> Sentence | None:
    name, up = ("train/reward_mean", True) if rewarded else ("train/loss", False)
    train, held = courses.get(name), courses.get("validation/loss")
    least = NO_RISE if rewarded else NO_LOSS
    shares = {
        "reward" if rewarded else "loss": train and lost_share(train, up=up, least=least),
        "loss on held-back rows": held and lost_of([held.first[0], *held.blocks]),
    }
    where, share = max(shares.items(), key=lambda item: item[1] or 0.0)
    if not share:
        return None
    return Sentence(
        f"At the end, {min(share, 1.0):.0%} of the best improvement of the {where} are gone again.",
        "lost_gain",
        share,
    )


def _held_back(courses: Courses, rewarded: bool) -> Sentence:
    loss, success = courses.get("validation/loss"), courses.get("validation/success")
    if loss and loss.steps > 1:
        before, after = loss.first[0], (loss.rest or loss.blocks)[-1]
        text = f"Loss on held-back rows: {before:.3g} before training, {after:.3g} at the end"
        if before - after <= (1 - SAME_LOSS) * abs(before):
            return Sentence(f"{text}: not lower.", "validation_loss", after / max(before, 0.05))
        return Sentence(f"{text}.")
    if success and success.steps > 1 and "validation/samples" in courses:
        return _success(success, courses["validation/samples"].blocks[-1])
    what = "tasks" if rewarded else "rows"
    return Sentence(
        f"No held-back {what} were measured before and after training, so this run does not show"
        " whether it helps with anything that it did not train on."
    )


def _success(success: Course, samples: float) -> Sentence:
    """The last two validations count."""
    before, later = success.first[0], success.blocks[1:][-2:]
    after = fmean(later)
    error = math.sqrt(variance(after, len(later) * samples) + variance(before, samples))
    low, high = after - before - 1.96 * error, after - before + 1.96 * error
    text = (
        f"Success on held-back tasks: {before:.0%} before training, {after:.0%} at the end"
        f" ({100 * (after - before):+.0f} points, 95% interval {100 * low:+.0f} to"
        f" {100 * high:+.0f})"
    )
    most = after - before + LIKELY * error
    if most < SMALL_GAIN and before < SOLVED and after < SOLVED:
        return Sentence(f"{text}: no rise worth the training.", "validation_drop", before - after)
    return Sentence(f"{text}: a rise is not shown." if low <= 0 else f"{text}.")


def _between(title: str, change: Change) -> str:
    sign = 1 if change.gain * (change.after - change.before) >= 0 else -1
    ends = sorted((sign * change.low, sign * change.high))
    return (
        f"{title}: {change.before:.3g} at the start, {change.after:.3g} over the last"
        f" {change.steps} steps ({change.after - change.before:+.2g}, 95% interval {ends[0]:+.2g}"
        f" to {ends[1]:+.2g})"
    )


def _student(z: float, freedom: int) -> float:
    """Student's quantile from the normal one (Cornish and Fisher's expansion)."""
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
