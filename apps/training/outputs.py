"""A policy's answers to the same tasks at the start, at an earlier checkpoint and at a later one,
and what got better or worse.

They are the samples of validations and of the tasks that a run answers at each checkpoint
(`sampled_outputs`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, Count, Min, Q, QuerySet
from django.db.models.functions import MD5

from apps.core.diffing import changed_lines
from apps.core.forms import whole
from apps.core.http import QueryFilters
from apps.training.models import Rollout, TrainingRun

PHASES = (Rollout.Phase.CHECKPOINT, Rollout.Phase.VALIDATION)
CHANGES = {
    "better": "Better",
    "worse": "Worse",
    "other": "Same reward, different text",
    "same": "Unchanged",
}
SPLITS = {
    Rollout.Phase.CHECKPOINT.value: "Training tasks",
    Rollout.Phase.VALIDATION.value: "Validation tasks",
}
LEVEL = 1e-9  # rewards closer than this are equal
DIFF_WORDS = 2_000  # words in both texts together above which they are not diffed


def samples_of(run: TrainingRun) -> QuerySet[Rollout]:
    return run.rollouts.filter(phase__in=PHASES)


def steps_of(run: TrainingRun) -> list[int]:
    """The steps at which the policy was sampled."""
    return sorted(set(samples_of(run).order_by().values_list("step", flat=True).distinct()))


def choice_for(run: TrainingRun, filters: Filters) -> Chosen | None:
    """`choose` among the steps of a run. By default it compares checkpoints, because a step that
    was only validated has no answers to the training tasks.
    """
    sampled = (
        samples_of(run)
        .filter(phase=Rollout.Phase.CHECKPOINT)
        .order_by()
        .values_list("step", flat=True)
    )
    return choose(steps_of(run), filters, usual=set(sampled))


@dataclass(frozen=True)
class Filters(QueryFilters):
    """`at` and `than` are steps; `q` is searched in the task's key, its request and the outputs
    shown.
    """

    at: str = ""
    than: str = ""
    change: str = ""
    q: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        given = cls.texts(query)
        for name in ("at", "than"):
            if whole(given[name], 0, 2**31 - 1) is None:
                given[name] = ""
        if given["change"] not in CHANGES:
            given["change"] = ""
        return cls(**given)


@dataclass(frozen=True)
class Chosen:
    """The three steps shown side by side. `than` and `baseline` may be equal, and `at` may be the
    only step.
    """

    steps: list[int]
    baseline: int
    than: int
    at: int

    @property
    def columns(self) -> list[int]:
        """The distinct steps, in order."""
        return sorted({self.baseline, self.than, self.at})

    @property
    def earlier(self) -> int | None:
        return max((step for step in self.steps if step < self.at), default=None)

    @property
    def later(self) -> int | None:
        return min((step for step in self.steps if step > self.at), default=None)


def choose(steps: list[int], filters: Filters, usual: Collection[int] = ()) -> Chosen | None:
    """The steps in the URL, or else the last of the `usual` steps and the one before it. A step
    that does not exist is replaced by the nearest lower one.
    """
    if not steps:
        return None
    often = [step for step in steps if step in usual] or steps
    at = _nearest(steps, whole(filters.at), often[-1])
    before = [step for step in steps if step < at]
    than = (
        _nearest(
            before,
            whole(filters.than),
            max((step for step in often if step < at), default=before[-1]),
        )
        if before
        else at
    )
    return Chosen(steps, steps[0], than, at)


def _nearest(steps: Sequence[int], wanted: int | None, usual: int) -> int:
    if wanted is None:
        return usual
    return max((step for step in steps if step <= wanted), default=steps[0])


@dataclass(frozen=True)
class Cell:
    """A task's samples at one step: mean reward, number that passed, number of samples, and the
    first one.
    """

    reward: float | None
    passed: int
    n: int
    first: int  # its pk


@dataclass
class Row:
    """A task across the columns. `delta` is the change of the reward from the earlier step; None if
    one of the two is missing.
    """

    task: Any  # its pk
    key: str
    cells: dict[int, Cell]
    delta: float | None
    change: str = ""
    shown: dict[int, Rollout] | None = None

    def weight(self) -> tuple[float, str]:
        """Sort key: largest change in either direction first, then by task key."""
        return (-abs(self.delta or 0.0), self.key)


def rows_of(run: TrainingRun, chosen: Chosen, filters: Filters) -> tuple[list[Row], Counter[str]]:
    """The tasks that match the search, largest changes first, and the number of changes of each
    kind (before `change` narrows them).
    """
    samples = samples_of(run).filter(step__in=chosen.columns)
    if filters.q:
        said = (
            Q(task__key__icontains=filters.q)
            | Q(output__icontains=filters.q)
            | Q(task__messages__icontains=filters.q)
        )
        samples = samples.filter(task__in=samples.filter(said).order_by().values("task"))
    cells: dict[Any, dict[int, Cell]] = defaultdict(dict)
    keys: dict[Any, str] = {}
    grouped = (
        samples.order_by()
        .values("task", "task__key", "step")
        .annotate(
            mean=Avg("reward"),
            passed=Count("pk", filter=Q(success=True, masked=False)),
            n=Count("pk"),
            first=Min("pk"),
        )
    )
    for one in grouped:
        keys[one["task"]] = one["task__key"]
        cells[one["task"]][one["step"]] = Cell(one["mean"], one["passed"], one["n"], one["first"])
    firsts = [cell.first for found in cells.values() for cell in found.values()]
    texts = dict(Rollout.objects.filter(pk__in=firsts).order_by().values_list("pk", MD5("output")))
    rows = [
        Row(task, keys[task], found, *_changed(found, chosen, texts))
        for task, found in cells.items()
    ]
    counts = Counter(row.change for row in rows if row.change)
    kept = [row for row in rows if not filters.change or row.change == filters.change]
    return sorted(kept, key=Row.weight), counts


def _changed(
    cells: Mapping[int, Cell], chosen: Chosen, texts: Mapping[int, str]
) -> tuple[float | None, str]:
    old, new = cells.get(chosen.than), cells.get(chosen.at)
    if (
        old is None
        or new is None
        or old.reward is None
        or new.reward is None
        or chosen.than == chosen.at
    ):
        return None, ""
    delta = new.reward - old.reward
    if abs(delta) > LEVEL:
        return delta, "better" if delta > 0 else "worse"
    return 0.0, "same" if texts[old.first] == texts[new.first] else "other"


def fill(rows: Sequence[Row]) -> None:
    """Gives the rows of one page the samples themselves."""
    wanted = [cell.first for row in rows for cell in row.cells.values()]
    found = Rollout.objects.select_related("task").in_bulk(wanted)
    for row in rows:
        row.shown = {step: found[cell.first] for step, cell in row.cells.items()}


def words_changed(before: str, after: str) -> list[tuple[str, str]] | None:
    """(kind: same, gone or new; text) of the later text against the earlier one; None if they are
    too long to compare.
    """
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    if len(old) + len(new) > DIFF_WORDS:
        return None
    if old == new:
        return [("same", after)]
    parts: list[tuple[str, str]] = []
    for kind, word in changed_lines(old, new, around=DIFF_WORDS):
        if parts and parts[-1][0] == kind:
            parts[-1] = (kind, parts[-1][1] + word)
        else:
            parts.append((kind, word))
    return parts
