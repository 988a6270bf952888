"""Draws the tasks of each GRPO step: from shuffled epochs, or weighted towards those that a policy
can currently learn from. Pure.

A step draws no task twice; if there are fewer tasks than prompts per step, it draws each once. All
draws depend only on the seed, the step and what the run has seen, which a checkpoint stores: a
resumed run draws the same tasks as an uninterrupted one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# minimum weight of a task: no task is excluded, since its success rate is an estimate that ages
FLOOR = 0.05
KEEP = 0.5  # weight of the old success rate when a new group is recorded
RECENT = 10  # steps during which a failure counts as recent


def signal(rate: float, size: int) -> float:
    """Chance that `size` samples of a task with this success rate neither all pass nor all fail: 1
    − p^G − (1 − p)^G.
    """
    return 1 - rate**size - (1 - rate) ** size


class TaskDraw:
    """`rates` {task id: success rate}: what an evaluation before the run showed."""

    def __init__(
        self,
        ids: Sequence[str],
        *,
        seed: int,
        size: int,
        generations: int,
        curriculum: bool = False,
        replay_share: float = 0.0,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.ids, self.seed, self.generations = ids, seed, generations
        self.size = min(size, len(ids))
        self.curriculum, self.replays = curriculum, round(replay_share * self.size)
        self.epochs: dict[int, list[int]] = {}  # {epoch: indices into `ids` in its order}
        self.rates = {task: rate for task, rate in (rates or {}).items() if task in set(ids)}
        self.failed: dict[str, int] = {}  # {task: step at which it last failed}, most recent last
        self.at = 0  # how many tasks the epochs have provided, needed if failures are replayed too
        self.begins: dict[
            int, int
        ] = {}  # `at` for steps that were drawn, or follow one, and are not recorded yet

    def draw(self, step: int) -> list[int]:
        """Indices into `ids` of the step's tasks, `size` distinct ones. A step that was interrupted
        is drawn the same way again. The next step may be drawn before this one is recorded.
        """
        if self.curriculum:
            replayed = self._failed(step, ())[: self.replays]
            return (replayed + self._by_signal(f"{self.seed}:{step}", replayed))[: self.size]
        if not self.replays:
            return self._of_epochs(step * self.size, self.size)
        begin = self.begins.get(step, self.at)
        fresh = self._of_epochs(begin, self.size)
        replayed = self._failed(step, fresh)[: self.replays]
        kept = fresh[: self.size - len(replayed)]
        self.begins[step + 1] = begin + len(kept)
        return kept + replayed

    def again(self, step: int, round: int, n: int, used: Collection[int]) -> list[int]:
        """Up to n other tasks for the step, to replace some without reward spread. [] if all have
        been used.
        """
        name = f"{self.seed}:{step}:{round}"
        if self.curriculum:
            return self._by_signal(name, used)[:n]
        left = [place for place in range(len(self.ids)) if place not in set(used)]
        return random.Random(name).sample(left, min(n, len(left)))

    def record(self, step: int, seen: Sequence[tuple[str, int, int]]) -> None:
        """Record what the step's groups have shown, once it is done: (task, number that passed,
        number of unmasked samples).
        """
        if self.replays and not self.curriculum:
            if step + 1 not in self.begins:
                self.draw(step)
            self.at = self.begins[step + 1]
            self.begins = {later: at for later, at in self.begins.items() if later > step + 1}
        for task, passed, n in seen:
            if not n:
                continue
            rate = passed / n
            self.rates[task] = (
                KEEP * self.rates[task] + (1 - KEEP) * rate if task in self.rates else rate
            )
            self.failed.pop(task, None)
            if passed < n:
                self.failed[task] = step

    def state(self) -> dict[str, Any]:
        return {"rates": self.rates, "failed": self.failed, "at": self.at}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rates, self.failed = dict(state.get("rates", {})), dict(state.get("failed", {}))
        self.at = state.get("at", 0)

    def _of_epochs(self, start: int, n: int) -> list[int]:
        """Each epoch goes through all tasks in a new shuffle."""
        places = [divmod(at, len(self.ids)) for at in range(start, start + n)]
        return [self._epoch(epoch)[index] for epoch, index in places]

    def _epoch(self, number: int) -> list[int]:
        """The order of an epoch. It depends on the previous epoch's, and is kept."""
        known = next((at for at in range(number, -1, -1) if at in self.epochs), -1)
        for at in range(known + 1, number + 1):
            self.epochs[at] = self._shuffled(at)
        return self.epochs[number]

    def _shuffled(self, epoch: int) -> list[int]:
        """A shuffle in which tasks that the current step has already drawn from the previous epoch
        come only after the step is full.
        """
        total = len(self.ids)
        left = random.Random(self.seed * 1000 + epoch).sample(range(total), total)
        if not epoch:
            return left
        begun, before = epoch * total % self.size, self.epochs[epoch - 1]
        first: list[int] = []
        for at in range(self.size):
            # With replays a step may begin anywhere, otherwise only at multiples of its size.
            near = self.size - 1 - at if self.replays else begun if begun + at < self.size else 0
            first.append(next(place for place in left if place not in before[total - near :]))
            left.remove(first[-1])
        return first + left

    def _failed(self, step: int, without: Collection[int]) -> list[int]:
        """Indices of tasks that failed recently, most recent first."""
        places = {task: place for place, task in enumerate(self.ids)}
        fresh = [places[task] for task, at in reversed(self.failed.items()) if step - at <= RECENT]
        return [place for place in fresh if place not in without]

    def _by_signal(self, name: str, without: Collection[int]) -> list[int]:
        """Tasks in random order, in which those with more to teach tend to come first: weighted
        sampling without replacement by the largest u^(1/w) (Efraimidis and Spirakis 2006). A task
        without known success rate has weight 1.
        """
        dice, out = random.Random(name), set(without)
        keys = []
        for place, task in enumerate(self.ids):
            weight = (
                max(FLOOR, signal(self.rates[task], self.generations))
                if task in self.rates
                else 1.0
            )
            keys.append((dice.random() ** (1 / weight), place))
        return [place for _, place in sorted(keys, reverse=True) if place not in out]
