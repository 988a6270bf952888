"""The tasks of an evaluation as table rows: what RL would learn from each, and whether it would be
picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from apps.evals.learnability.run import RunLearnability
from apps.evals.learnability.signal import TaskView, signal_chance

KINDS = {"mixed": "Mixed", "all_pass": "All pass", "all_fail": "All fail", "flat": "No spread"}


@dataclass(frozen=True)
class Row:
    """A task of the table. `signal`: the probability that a group of it has both outcomes; `why`:
    why it is not picked.
    """

    view: TaskView
    key: str
    signal: float
    picked: bool = False
    why: str = ""


SORTS: dict[str, Callable[[Row], object]] = {
    "task": lambda row: row.key,
    "rate": lambda row: row.view.rate,
    "reward": lambda row: row.view.mean_reward,
    "spread": lambda row: row.view.spread,
    "signal": lambda row: row.signal,
    "group": lambda row: row.view.group,
}


def rows_of(learning: RunLearnability, per_group: int | None) -> list[Row]:
    """Every task with a scored sample, with the pick's result for it."""
    made = None if learning.why_not() else learning.pick(per_group)
    chosen, left_out = (set(made.chosen), made.left_out) if made else (set(), {})
    size = learning.group_size
    return [
        Row(
            view=item,
            key=learning.names[item.task][0],
            signal=signal_chance(item.passed, item.n, size),
            picked=item.task in chosen,
            why=left_out.get(item.task, ""),
        )
        for item in learning.found.tasks
    ]


def is_kind(row: Row, kind: str) -> bool:
    return not kind or (not row.view.has_signal if kind == "flat" else row.view.kind == kind)


def ordered(rows: Iterable[Row], sort: str) -> list[Row]:
    """Sorted by one column, descending with a dash before its name; ties by key."""
    by_key = sorted(rows, key=lambda row: row.key)
    return sorted(by_key, key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))  # type: ignore[arg-type]
