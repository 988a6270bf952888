"""A person's decision about a pair of a check: the same task, or different ones. Remembered by the
content of the two.

The same task may not be on both sides: the one in the draft that could train is removed
immediately. Wherever both appear again (adding, splitting, freezing, training), they are refused
like the same request (`holdout.groups`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.core import serializers
from django.db import transaction
from django.db.models import Q, QuerySet

from apps.core import locks
from apps.core.actions import audit
from apps.core.locks import ProjectLock
from apps.core.models import JobState, Project
from apps.evals import actions
from apps.evals.actions import EvalSetError
from apps.evals.holdout.view_log import record_seen
from apps.evals.meaning.texts import TRAINS, content_of
from apps.evals.models import EvalSet, MeaningCheck, MeaningPair, MeaningVerdict, Split, Task

Verdict = MeaningVerdict.Verdict


# Earlier decisions


def in_order(ours: str, theirs: str) -> tuple[str, str]:
    return (ours, theirs) if ours < theirs else (theirs, ours)


def _verdicts(project: Project, hashes: Iterable[str]) -> QuerySet[MeaningVerdict]:
    named = set(hashes)
    return MeaningVerdict.objects.filter(project=project).filter(
        Q(one__in=named) | Q(two__in=named)
    )


def judged_different(
    project: Project, held: Iterable[Task], others: Mapping[Task, str]
) -> Iterator[tuple[Task, Task]]:
    """The pairs among these that a person has judged different; `others` have the digests of their
    texts.
    """
    ours = {task.canonical_hash: task for task in held}
    theirs = {task.canonical_hash: task for task in others}
    for row in _verdicts(project, ours).filter(verdict=Verdict.DIFFERENT):
        for one, two in ((row.one, row.two), (row.two, row.one)):
            if one in ours and two in theirs and others[theirs[two]] == row.digest:
                yield ours[one], theirs[two]


@dataclass(frozen=True)
class Shown:
    """A pair with the decision on it. `open`: the tasks are still on both sides and nobody has
    decided.
    """

    pair: MeaningPair
    verdict: MeaningVerdict | None

    @property
    def open(self) -> bool:
        return self.verdict is None and self.is_across

    @property
    def is_across(self) -> bool:
        held, other = self.pair.held, self.pair.other
        return bool(held and other) and held.split == Split.HOLDOUT and other.split in TRAINS


def shown(pairs: Iterable[MeaningPair], project: Project) -> list[Shown]:
    """The pairs with their verdicts; a verdict about other texts of the task is ignored."""
    rows = list(pairs)
    found = {
        (row.one, row.two): row
        for row in _verdicts(project, (pair.ours for pair in rows)).select_related("by")
    }
    verdicts = [found.get(in_order(pair.ours, pair.theirs)) for pair in rows]
    return [
        Shown(
            pair,
            (
                verdict
                if verdict and (verdict.verdict == Verdict.SAME or verdict.digest == pair.digest)
                else None
            ),
        )
        for pair, verdict in zip(rows, verdicts, strict=True)
    ]


@dataclass(frozen=True)
class Review:
    """The newest finished check of a set, and how many of its pairs are undecided."""

    check: MeaningCheck
    pairs: list[Shown]
    is_current: bool  # the set's tasks are still those that were compared

    @property
    def open(self) -> int:
        return sum(pair.open for pair in self.pairs)

    @property
    def unresolved(self) -> int:
        """Pairs that a person has judged to be the same task and that are still on both sides."""
        return sum(
            bool(pair.verdict) and pair.verdict.verdict == Verdict.SAME and pair.is_across
            for pair in self.pairs
        )


def review_of(eval_set: EvalSet) -> Review | None:
    check = eval_set.meaning_checks.filter(state=JobState.SUCCEEDED).first()
    if check is None:
        return None
    pairs = check.pairs.select_related("held", "other")
    return Review(
        check, shown(pairs, eval_set.project), check.result["content"] == content_of(eval_set)
    )


def record_pairs_view(project: Project, pairs: Iterable[Shown], *, by: Any) -> None:
    """Whoever sees pairs, a person or an API key, has viewed their held-out requests."""
    hashes = [one.pair.ours for one in pairs]
    record_seen(
        project,
        Task.objects.filter(canonical_hash__in=hashes),
        by=by,
        detail="pairs of a semantic check",
    )


# Deciding


@transaction.atomic
def decide(*, pair: MeaningPair, verdict: str, by: Any) -> MeaningVerdict:
    """Stores a person's decision on a pair. Raises EvalSetError, also if somebody else was
    first.
    """
    if verdict not in Verdict.values:
        raise EvalSetError("Choose “same task” or “different”.")
    eval_set = _locked(pair)
    now = shown([_fresh(pair)], eval_set.project)[0]
    if now.verdict is not None and now.verdict.verdict == verdict:
        return now.verdict
    if now.verdict is not None:
        said = now.verdict.get_verdict_display()
        raise EvalSetError(
            f"{now.verdict.by or 'Someone'} has already decided “{said}”. Undo that first."
        )
    if not now.is_across:
        raise EvalSetError(
            "The two tasks are no longer split between the hold-out and training. There is nothing"
            " to decide."
        )
    other = now.pair.other
    removes = verdict == Verdict.SAME and not eval_set.is_frozen
    removed = _removed(other) if removes else {}
    one, two = in_order(pair.ours, pair.theirs)
    row, _ = MeaningVerdict.objects.update_or_create(
        project=eval_set.project,
        one=one,
        two=two,
        defaults={"digest": pair.digest, "verdict": verdict, "removed": removed, "by": by},
    )
    audit(
        "meaning.decided",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        verdict=verdict,
        key=other.key,
        removed=removes,
    )
    if removes:
        _keep_current(eval_set, lambda: actions.remove_task(task=other, by=by))
    return row


@transaction.atomic
def undo(*, pair: MeaningPair, by: Any) -> None:
    """Takes a decision back, and restores the task that it removed. Raises EvalSetError if that is
    not possible.
    """
    eval_set = _locked(pair)
    verdict = shown([_fresh(pair)], eval_set.project)[0].verdict
    if verdict is None:
        raise EvalSetError("There is no decision on this pair to undo.")
    removed = verdict.removed
    audit(
        "meaning.undone",
        project=eval_set.project,
        by=by,
        target=eval_set,
        name=str(eval_set),
        verdict=verdict.verdict,
    )
    verdict.delete()
    if removed:
        _keep_current(eval_set, lambda: _put_back(removed, by))


def _locked(pair: MeaningPair) -> EvalSet:
    """The pair's set. Concurrent decisions, or a decision during a freeze, wait for each other."""
    eval_set = pair.job.eval_set
    locks.acquire_in(eval_set.project_id, ProjectLock.TASKS)
    return (
        EvalSet.objects.select_for_update(of=("self",))
        .select_related("project")
        .get(pk=eval_set.pk)
    )


def _fresh(pair: MeaningPair) -> MeaningPair:
    return MeaningPair.objects.select_related("held", "other", "job").get(pk=pair.pk)


def _removed(task: Task) -> dict:
    [row] = json.loads(serializers.serialize("json", [task]))
    return {"task": row, "variants": [str(pk) for pk in task.variants.values_list("pk", flat=True)]}


def _put_back(removed: dict, by: Any) -> None:
    row = removed["task"]
    row["fields"].pop("guarded", None)  # a generated column
    [found] = serializers.deserialize("json", json.dumps([row]))
    task = found.object
    made = actions.store_tasks(eval_set=task.eval_set, tasks=[task], by=by, what="undo")
    if not made.made:
        why = (
            "the set already has its request or key"
            if made.duplicates
            else "it would now be on both sides of a hold-out"
        )
        raise EvalSetError(f"The task {task.key} cannot be restored: {why}.")
    Task.objects.filter(pk__in=removed["variants"], eval_set=task.eval_set).update(variant_of=task)
    gone = MeaningPair.objects.filter(
        job__eval_set=task.eval_set, other=None, theirs=task.canonical_hash
    )
    gone.update(other=task)


def _keep_current(eval_set: EvalSet, act: Any) -> None:
    """Accounts for the effect of a decision: a check that was up to date stays so."""
    before = content_of(eval_set)
    act()
    current = eval_set.meaning_checks.filter(state=JobState.SUCCEEDED, result__content=before)
    for job in current:
        MeaningCheck.objects.filter(pk=job.pk).update(
            result=job.result | {"content": content_of(eval_set)}
        )
