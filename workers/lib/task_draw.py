"""Which tasks a step of GRPO rolls out: each epoch's shuffle, or more often those that a policy can learn from now. Pure.

A step draws no task twice; where there are fewer tasks than it has prompts, it draws each once. All draws follow from the seed, the step and what the run has seen, which a checkpoint keeps: a resumed run draws what an
unbroken one would.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

FLOOR = 0.05  # of a task's weight: none is never drawn, since a rate is an estimate that ages
KEEP = 0.5  # of an old success rate, when a new group has been seen
RECENT = 10  # steps in which a failure is fresh


def signal(rate: float, size: int) -> float:
    """Chance that `size` samples of a task with this success rate neither all pass nor all fail: 1 − p^G − (1 − p)^G."""
    return 1 - rate**size - (1 - rate) ** size


class TaskDraw:
    """`rates` {task id: success rate}: what is known of tasks before the run, by an evaluation."""

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
        self.epochs: dict[int, list[int]] = {}  # places in `ids`, in the order of each epoch
        self.rates = {task: rate for task, rate in (rates or {}).items() if task in set(ids)}
        self.failed: dict[str, int] = {}  # {task: step at which it failed last}, the freshest last
        self.at = 0  # how many tasks of the epochs have been drawn, where failures are drawn besides
        self.begins: dict[int, int] = {}  # `at` of steps that were drawn, or come after one, and are not recorded yet

    def draw(self, step: int) -> list[int]:
        """Places in `ids` of the step's tasks, `size` different ones. A step that was stopped is drawn alike; the one after a step may be
        drawn before that is recorded."""
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
        """Up to n other tasks for the step, in place of some without reward spread. [] if all have been used."""
        name = f"{self.seed}:{step}:{round}"
        if self.curriculum:
            return self._by_signal(name, used)[:n]
        left = [place for place in range(len(self.ids)) if place not in set(used)]
        return random.Random(name).sample(left, min(n, len(left)))

    def record(self, step: int, seen: Sequence[tuple[str, int, int]]) -> None:
        """What the step's groups have shown, once it is done: (task, how many passed, of how many unmasked samples)."""
        if self.replays and not self.curriculum:
            if step + 1 not in self.begins:
                self.draw(step)
            self.at = self.begins[step + 1]
            self.begins = {later: at for later, at in self.begins.items() if later > step + 1}
        for task, passed, n in seen:
            if not n:
                continue
            rate = passed / n
            self.rates[task] = KEEP * self.rates[task] + (1 - KEEP) * rate if task in self.rates else rate
            self.failed.pop(task, None)
            if passed < n:
                self.failed[task] = step

    def state(self) -> dict[str, Any]:
        return {"rates": self.rates, "failed": self.failed, "at": self.at}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rates, self.failed = dict(state.get("rates", {})), dict(state.get("failed", {}))
        self.at = state.get("at", 0)

    def _of_epochs(self, start: int, n: int) -> list[int]:
        """Each epoch goes through all tasks in a shuffle of its own."""
        places = [divmod(at, len(self.ids)) for at in range(start, start + n)]
        return [self._epoch(epoch)[index] for epoch, index in places]

    def _epoch(self, number: int) -> list[int]:
        """The epoch's order. Each is made from the one before, and kept."""
        known = next((at for at in range(number, -1, -1) if at in self.epochs), -1)
        for at in range(known + 1, number + 1):
            self.epochs[at] = self._shuffled(at)
        return self.epochs[number]

    def _shuffled(self, epoch: int) -> list[int]:
        """A shuffle in which the tasks that a step has drawn from the end of the epoch before wait until that step is full."""
        total = len(self.ids)
        left = random.Random(self.seed * 1000 + epoch).sample(range(total), total)
        if not epoch:
            return left
        begun, before = epoch * total % self.size, self.epochs[epoch - 1]
        first: list[int] = []
        for at in range(self.size):
            # With replays a step may begin at any place, else only at multiples of its size.
            near = self.size - 1 - at if self.replays else begun if begun + at < self.size else 0
            first.append(next(place for place in left if place not in before[total - near :]))
            left.remove(first[-1])
        return first + left

    def _failed(self, step: int, without: Collection[int]) -> list[int]:
        """Places of tasks that failed lately, the freshest first."""
        places = {task: place for place, task in enumerate(self.ids)}
        fresh = [places[task] for task, at in reversed(self.failed.items()) if step - at <= RECENT]
        return [place for place in fresh if place not in without]

    def _by_signal(self, name: str, without: Collection[int]) -> list[int]:
        """Tasks in random order, the likelier first the more they can teach: weighted sampling without replacement by the
        largest u^(1/w) (Efraimidis and Spirakis 2006). A task that nothing is known of weighs 1."""
        dice, out = random.Random(name), set(without)
        keys = []
        for place, task in enumerate(self.ids):
            weight = max(FLOOR, signal(self.rates[task], self.generations)) if task in self.rates else 1.0
            keys.append((dice.random() ** (1 / weight), place))
        return [place for _, place in sorted(keys, reverse=True) if place not in out]
