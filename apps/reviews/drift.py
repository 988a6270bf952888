"""Are the tasks that would train like those whose scores people have judged? Pure: no Django, no torch.

A task is unlike them by the first of these that holds:
  tool    it expects a call of a tool (or no call at all) that no judged task expects;
  origin  no judged task is of its origin (a production failure, written by hand, synthetic …);
  bucket  it comes from a failure mode that no judged task comes from;
  text    its words are stranger to the judged tasks than those are to one another. Likeness is the Jaccard index of the
          words without values (numbers, days, what the expected call holds) to the nearest judged task. The bound is
          conformal (Bates et al. 2023, “Testing for outliers with conformal p-values”): the judged tasks' own likeness to
          the nearest one *of another group* gives the scale, and less than its 5% quantile is strange. So a review of a
          hold-out, which shares no group with what trains, is no drift by itself. At least half the words shared is
          always alike: where all judged tasks come from one template the scale has no spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apps.evals.near_duplicates.compare import document
from apps.evals.near_duplicates.text import is_slot

STRANGE = 0.05  # share of the judged tasks that may be as strange to the others
ALIKE = 0.5  # Jaccard index from which on two texts are alike in any case
AT_ONCE = 2000  # rows of a comparison
SHOWN = 3
NO_CALL = "no call"


@dataclass(frozen=True)
class Traits:
    """What a task is compared by. `key` names its content: equal ones are the same task."""

    key: str
    group: str
    origin: str
    bucket: str
    tools: frozenset[str]
    words: frozenset[str]


def traits(
    *, key: str, group: str, origin: str, bucket: str, messages: Sequence[dict], expected: dict[str, Any] | None,
    demonstration: str = "",
) -> Traits:  # fmt: skip
    found = document(messages, expected, demonstration)
    values = {word for _, _, word in found.calls or ()}
    tools = frozenset(tool for tool, _, _ in found.calls or () if tool) or frozenset([NO_CALL])
    words = frozenset(word for word in found.words if not is_slot(word) and word not in values)
    return Traits(key, group, origin, bucket, tools, words)


@dataclass(frozen=True)
class Drift:
    """Of `n` tasks, `unlike` are unlike those judged: how many by each kind, and examples ("mail.send", a request)."""

    n: int
    unlike: int
    kinds: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.unlike / self.n if self.n else 0.0

    def __str__(self) -> str:
        parts = [
            f"{count} by {kind} ({', '.join(self.examples[kind])})" if self.examples[kind] else f"{count} by {kind}"
            for kind, count in self.kinds.items()
        ]
        return f"{self.unlike} of {self.n} tasks are unlike those judged: {'; '.join(parts)}"


def drift_of(training: Iterable[Traits], judged: Sequence[Traits]) -> Drift:
    tasks, known = list(training), {task.key for task in judged}
    tools = {tool for task in judged for tool in task.tools}
    origins, buckets = {task.origin for task in judged}, {task.bucket for task in judged} | {""}
    fresh = [task for task in tasks if task.key not in known]
    found: list[tuple[str, str]] = []
    for task, strange in zip(fresh, strange_texts(fresh, judged), strict=True):
        if new := sorted(task.tools - tools):
            found.append(("tool", new[0]))
        elif task.origin not in origins:
            found.append(("origin", task.origin))
        elif task.bucket not in buckets:
            found.append(("bucket", task.bucket))
        elif strange:
            found.append(("text", ""))
    kinds = Counter(kind for kind, _ in found)
    examples = {kind: list(dict.fromkeys(name for k, name in found if k == kind and name))[:SHOWN] for kind in kinds}
    return Drift(len(tasks), len(found), dict(kinds), examples)


def strange_texts(tasks: Sequence[Traits], judged: Sequence[Traits]) -> list[bool]:
    """For each task whether its words are strange to the judged ones; one without words is never."""
    if not judged:
        return [bool(task.words) for task in tasks]
    bound = _bound(judged)
    nearest = np.concatenate([
        _likeness(tasks[start : start + AT_ONCE], judged).max(axis=1) for start in range(0, len(tasks), AT_ONCE)
    ] or [np.zeros(0)])  # fmt: skip
    return [bool(task.words) and like < bound for task, like in zip(tasks, nearest.tolist(), strict=True)]


def _bound(judged: Sequence[Traits]) -> float:
    """The 5% quantile of the judged tasks' likeness to the nearest one of another group, and at most ALIKE."""
    groups = np.array([task.group for task in judged])
    others = _likeness(judged, judged)
    others[groups[:, None] == groups[None, :]] = -1
    scale = np.sort(others.max(axis=1))
    scale = scale[scale >= 0]
    if len(scale) == 0:
        return ALIKE
    return min(ALIKE, float(scale[max(0, int(STRANGE * (len(scale) + 1)) - 1)]))


def _likeness(tasks: Sequence[Traits], judged: Sequence[Traits]) -> np.ndarray:
    """Jaccard indices (tasks, judged)."""
    column = {word: index for index, word in enumerate({word for task in judged for word in task.words})}
    mine, theirs = _incidence(tasks, column), _incidence(judged, column)
    both = mine @ theirs.T
    sizes = np.array([len(task.words) for task in tasks], dtype=np.float32)[:, None]
    either = sizes + theirs.sum(axis=1)[None, :] - both
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def _incidence(tasks: Sequence[Traits], column: dict[str, int]) -> np.ndarray:
    found = np.zeros((len(tasks), len(column)), dtype=np.float32)
    for row, task in enumerate(tasks):
        found[row, [column[word] for word in task.words if word in column]] = 1
    return found
