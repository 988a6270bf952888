"""Are the tasks that would train like those whose scores people have judged? Pure: no Django, no
torch.

A task is unlike them by the first of these that holds:
  tool    it expects a call of a tool (or no call at all) that no judged task expects; form    what
  is right has another form than of any judged task (an answer, tests, a constraint of another
  name): a
          verifier scores each form by other rules;
  origin  no judged task is of its origin (a production failure, written by hand, synthetic …);
  bucket  it comes from a failure mode that no judged task comes from; answer  its request was
  judged, but something else is right now; text    its words are strange: the Jaccard index of the
  words without values (numbers, days, what the expected call
          holds) to the nearest judged task is under 0.25. Of requests that are made from few
          templates most are strange even to one another, so only what is *more* than among the
          judged tasks themselves counts, each held against those of other groups: the share of
          strange training tasks less that of the judged groups and its 95% margin. A review of a
          hold-out, which shares no group with what trains, is therefore no drift by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from apps.evals.near_duplicates.calls import document
from apps.evals.near_duplicates.text import is_slot

ALIKE = 0.25  # Jaccard index from which on two texts are similar
Z = NormalDist().inv_cdf(0.95)
AT_ONCE = 2000  # rows of a comparison
SHOWN = 3
NO_CALL = "no call"
FORMS = ("tool", "calls", "any_call", "answer", "tests", "pattern", "schema", "grader", "rubric")


@dataclass(frozen=True)
class Traits:
    """What tasks are compared by. `key` identifies the content: equal ones are the same task;
    `request` only the request.
    """

    key: str
    group: str
    origin: str
    bucket: str
    tools: frozenset[str]
    words: frozenset[str]
    forms: frozenset[str] = frozenset()
    request: str = ""


def traits(
    *,
    key: str,
    group: str,
    origin: str,
    bucket: str,
    messages: Sequence[dict],
    expected: dict[str, Any] | None,
    demonstration: str = "",
    request: str = "",
) -> Traits:
    found = document(messages, expected, demonstration)
    values = {word for _, _, word in found.calls or ()}
    tools = frozenset(tool for tool, _, _ in found.calls or () if tool) or frozenset([NO_CALL])
    words = frozenset(word for word in found.words if not is_slot(word) and word not in values)
    return Traits(key, group, origin, bucket, tools, words, forms_of(expected or {}), request)


def forms_of(expected: dict[str, Any]) -> frozenset[str]:
    """The forms of the expected answer (`workers.lib.checks`): each constraint is a separate
    form.
    """
    if isinstance(constraint := expected.get("constraint"), dict):
        return frozenset(f"constraint {name}" for name in constraint)
    return frozenset(
        [
            "call" if name in ("tool", "calls") else name.replace("_", " ")
            for name in FORMS
            if name in expected
        ]
    )


@dataclass(frozen=True)
class Drift:
    """Of `n` tasks, `unlike` are unlike those judged: how many by each kind, and examples
    ("mail.send", a request).
    """

    n: int
    unlike: int
    kinds: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.unlike / self.n if self.n else 0.0

    def __str__(self) -> str:
        parts = [
            (
                f"{count} by {kind} ({', '.join(self.examples[kind])})"
                if self.examples[kind]
                else f"{count} by {kind}"
            )
            for kind, count in self.kinds.items()
        ]
        return f"{self.unlike} of {self.n} tasks are unlike those judged: {'; '.join(parts)}"


def drift_of(training: Iterable[Traits], judged: Sequence[Traits]) -> Drift:
    tasks, known = list(training), {task.key for task in judged}
    tools = {tool for task in judged for tool in task.tools}
    forms, requests = (
        {form for task in judged for form in task.forms},
        {task.request for task in judged} - {""},
    )
    origins, buckets = {task.origin for task in judged}, {task.bucket for task in judged} | {""}
    found: list[tuple[str, str]] = []
    rest: list[Traits] = []
    for task in tasks:
        if task.key in known:
            rest.append(task)
        elif new := sorted(task.tools - tools):
            found.append(("tool", new[0]))
        elif other := sorted(task.forms - forms):
            found.append(("form", other[0]))
        elif task.origin not in origins:
            found.append(("origin", task.origin))
        elif task.bucket not in buckets:
            found.append(("bucket", task.bucket))
        elif task.request in requests:
            found.append(("answer", "other than judged"))
        else:
            rest.append(task)
    kinds = Counter(kind for kind, _ in found)
    if strange := strange_texts(rest, judged):
        kinds["text"] = strange
    examples = {
        kind: list(dict.fromkeys(name for k, name in found if k == kind))[:SHOWN] for kind in kinds
    }
    return Drift(len(tasks), kinds.total(), dict(kinds), examples)


def strange_texts(tasks: Sequence[Traits], judged: Sequence[Traits]) -> int:
    """How many more tasks are strange by their words than there would be, were they like the judged
    ones.
    """
    if not judged or not tasks:
        return len(tasks)
    parts = [tasks[start : start + AT_ONCE] for start in range(0, len(tasks), AT_ONCE)]
    strange = sum(int((_likeness(part, judged).max(axis=1) < ALIKE).sum()) for part in parts)
    return max(0, round(strange - len(tasks) * _usual(judged)))


def _usual(judged: Sequence[Traits]) -> float:
    """The share of judged groups that are strange to all others, and its one-sided margin."""
    groups = np.array([task.group for task in judged])
    likeness = _likeness(judged, judged)
    likeness[groups[:, None] == groups[None, :]] = 0
    nearest = likeness.max(axis=1)
    names = np.unique(groups)
    if len(names) == 1:
        return 0.0
    share = float(np.mean([nearest[groups == name].max() < ALIKE for name in names]))
    return share + Z * sqrt(share * (1 - share) / len(names))


def _likeness(tasks: Sequence[Traits], judged: Sequence[Traits]) -> np.ndarray:
    """Jaccard indices (tasks, judged)."""
    column = {
        word: index for index, word in enumerate({word for task in judged for word in task.words})
    }
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
