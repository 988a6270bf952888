"""What a model version learned from, back to the production trajectories, and which versions
learned from a trajectory or a task.

Every step is an index look-up: task by trajectory, row by task, run by dataset, version by parent.
Counts are capped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.core.bus import on
from apps.core.http import uuid_of
from apps.evals.models import Task
from apps.registry.models import ModelVersion
from apps.training.models import DatasetRow, Example, PromptSearch, TrainingRun
from apps.trajectories.filters import LearnedBy
from apps.trajectories.models import Trajectory

Job = TrainingRun | PromptSearch
COUNTED, AT_ONCE = (
    10_000,
    20_000,
)  # caps: trajectories counted, and trajectories collected before filtering
MOST, DEEPEST = 100, 50  # runs or versions shown; generations
NAMED = re.compile(r"([-a-zA-Z0-9_]{1,80})-v(\d{1,9})")


# Backwards: from a version to trajectories


def jobs_behind(version: ModelVersion) -> list[tuple[ModelVersion, Job | None]]:
    """The version and its ancestors, nearest first, each with the training run or prompt search
    that created it.
    """
    chain = [version, *version.ancestors()]
    made: dict[int, Job] = {}
    for kind in (TrainingRun, PromptSearch):
        rows = (
            kind.objects.filter(model_version__in=chain)
            .select_related("dataset__eval_set", "environment")
            .order_by("-created_at")
        )
        for job in rows:
            # the first run wins: the same content made twice is one version
            made[job.model_version_id] = job
    return [(node, made.get(node.pk)) for node in chain]


def trajectories_of(datasets: Iterable[UUID]) -> QuerySet[Trajectory]:
    """The production runs that the tasks of these datasets, or the seeds of their variants, were
    made from, and the runs whose answers are examples in them.
    """
    rows = DatasetRow.objects.filter(dataset__in=list(datasets)).order_by()
    own = rows.filter(task__trajectory__isnull=False).values("task__trajectory")
    seeds = rows.filter(task__variant_of__trajectory__isnull=False).values(
        "task__variant_of__trajectory"
    )
    shown = (
        Example.objects.filter(dataset__in=list(datasets), trajectory__isnull=False)
        .order_by()
        .values("trajectory")
    )
    return Trajectory.objects.filter(Q(pk__in=own) | Q(pk__in=seeds) | Q(pk__in=shown)).order_by()


def ids_of(datasets: Iterable[UUID], most: int) -> set[UUID]:
    """At most `most` ids, from the rows alone: deleting a trajectory also deletes its link."""
    rows, found = DatasetRow.objects.filter(dataset__in=list(datasets)).order_by(), set()
    for path in ("task__trajectory", "task__variant_of__trajectory"):
        found |= set(
            rows.filter(**{f"{path}__isnull": False}).values_list(path, flat=True).distinct()[:most]
        )
    shown = Example.objects.filter(dataset__in=list(datasets), trajectory__isnull=False).order_by()
    return found | set(shown.values_list("trajectory", flat=True).distinct()[:most])


def count(datasets: Iterable[UUID]) -> tuple[int, bool]:
    """(how many trajectories, whether there are more)."""
    n = len(ids_of(datasets, COUNTED + 1))
    return min(n, COUNTED), n > COUNTED


def datasets_behind(version: ModelVersion) -> list[UUID]:
    return list(dict.fromkeys(job.dataset_id for _, job in jobs_behind(version) if job))


@on(LearnedBy)
def learned_by(question: LearnedBy) -> QuerySet[Trajectory]:
    """Trajectories that a version (“support-v4”) and its ancestors learned from, or a single run by
    its id; nothing for any other value. The rows belong to one project, so another project's
    version finds nothing.
    """
    rows, datasets = question.rows, set(_datasets_named(question.learner))
    if not datasets:
        return rows.none()
    found = ids_of(datasets, AT_ONCE + 1)
    return rows.filter(
        pk__in=found if len(found) <= AT_ONCE else trajectories_of(datasets).values("pk")
    )


def _datasets_named(value: str) -> Iterator[UUID]:
    if named := NAMED.fullmatch(value):
        for version in ModelVersion.objects.filter(
            name=named[1], version=int(named[2])
        ).select_related("parent"):
            yield from datasets_behind(version)
    elif pk := uuid_of(value):
        for kind in (TrainingRun, PromptSearch):
            yield from kind.objects.filter(pk=pk).values_list("dataset_id", flat=True)


# Forwards: from a trajectory or a task to versions


@dataclass(frozen=True)
class Learner:
    """A job that learned from it and the version it created; `heirs` are versions derived from that
    one.
    """

    job: Job
    kind: str
    version: ModelVersion | None
    heirs: list[ModelVersion]


def learners_of_task(task: UUID) -> list[Learner]:
    return learners_of([task])


def learners_of_trajectory(trajectory: UUID) -> list[Learner]:
    """Including variants of the tasks that were made from it."""
    own = list(Task.objects.filter(trajectory=trajectory).order_by().values_list("pk", flat=True))
    shown = (
        Example.objects.filter(trajectory=trajectory)
        .order_by()
        .values_list("dataset_id", flat=True)
        .distinct()
    )
    return learners_of(
        [*own, *Task.objects.filter(variant_of__in=own).order_by().values_list("pk", flat=True)],
        list(shown),
    )


def learners_of(tasks: list[UUID], datasets: Sequence[UUID] = ()) -> list[Learner]:
    """For these tasks and datasets, newest first."""
    rows = DatasetRow.objects.filter(task__in=tasks).order_by()
    datasets = [*datasets, *(rows.values_list("dataset_id", flat=True).distinct() if tasks else ())]
    if not datasets:
        return []
    jobs: list[Job] = []
    for kind in (TrainingRun, PromptSearch):
        found = kind.objects.filter(dataset__in=datasets).select_related(
            "model_version", "dataset__eval_set"
        )
        jobs += found.order_by("-created_at")[:MOST]
    jobs.sort(key=lambda job: job.created_at, reverse=True)
    heirs = heirs_of({job.model_version_id for job in jobs if job.model_version_id})
    return [
        Learner(
            job,
            "prompt search" if isinstance(job, PromptSearch) else job.get_method_display(),
            job.model_version,
            heirs.get(job.model_version_id, []) if job.model_version_id else [],
        )
        for job in jobs[:MOST]
    ]


def heirs_of(versions: set[int]) -> dict[int, list[ModelVersion]]:
    """{version: all versions derived from it, over all generations}, with one query per
    generation.
    """
    found: dict[int, list[ModelVersion]] = {version: [] for version in versions}
    parents: dict[int, int] = {}
    level = set(versions)
    for _ in range(DEEPEST):
        rows = (
            ModelVersion.objects.filter(parent__in=level)
            .exclude(pk__in=parents)
            .select_related("parent")
        )
        children = list(rows.order_by("created_at", "pk"))
        parents |= {child.pk: child.parent_id for child in children}
        for child in children:
            node: int | None = child.parent_id
            while node is not None:
                if node in found and len(found[node]) < MOST:
                    found[node].append(child)
                node = parents.get(node)
        level = {child.pk for child in children}
        if not level:
            break
    return found
