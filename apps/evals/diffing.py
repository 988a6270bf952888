"""What changed from one version of a set to another. Pure: it compares rows only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

COMPARED = ("key", "messages", "tools", "expected", "demonstration", "split", "group", "metadata")
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
HOLDOUT = "holdout"


@dataclass(frozen=True)
class Change:
    """One task that differs; `before` is None for an added one, `after` for a removed one. `fields`
    are those that differ.
    """

    kind: str
    before: Any
    after: Any
    fields: tuple[str, ...] = ()

    @property
    def task(self) -> Any:
        return self.after or self.before

    @property
    def is_held_out(self) -> bool:
        """Whether one of its sides is held out."""
        return any(task is not None and task.split == HOLDOUT for task in (self.before, self.after))


def diff(before: Iterable[Any], after: Iterable[Any]) -> list[Change]:
    """The changes, by key. Tasks are matched by key, or else by request (canonical_hash)."""
    old, new = {task.key: task for task in before}, {task.key: task for task in after}
    pairs = {key: (old[key], new[key]) for key in old.keys() & new.keys()}
    gone = {task.canonical_hash: task for key, task in old.items() if key not in new}
    added = []
    for key, task in new.items():
        if key in old:
            continue
        same = gone.pop(task.canonical_hash, None)
        if same is None:
            added.append(Change(ADDED, None, task))
        else:
            pairs[key] = (same, task)
    changed = [
        Change(CHANGED, one, other, fields)
        for one, other in pairs.values()
        if (fields := differences(one, other))
    ]
    removed = [Change(REMOVED, task, None) for task in gone.values()]
    return sorted([*added, *removed, *changed], key=lambda change: (change.task.key, change.kind))


def differences(one: Any, other: Any) -> tuple[str, ...]:
    return tuple(name for name in COMPARED if getattr(one, name) != getattr(other, name))
