"""Deleting a project: all of its rows and files, by a job that continues where a dead worker
stopped.

Rows that refer to others go first, whatever `PROTECT` says about single deletions; tables that
refer to each other or to themselves go in one transaction, since foreign keys are checked at its
end. The project's own row, its owners and its audit log stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from graphlib import TopologicalSorter
from typing import Generic, TypeVar

from django.apps import apps
from django.db import connection, models, transaction
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import audit
from apps.core.bus import Question, ask
from apps.core.job_files import remove_work
from apps.core.kinds import InProcess, Progress, job_models, register
from apps.core.models import (
    AuditEvent,
    Job,
    Membership,
    Project,
    ProjectDeletion,
    Role,
    Stage,
)
from apps.core.nouns import noun

M = TypeVar("M", bound=models.Model)
Model = type[models.Model]
KEPT: tuple[Model, ...] = (Project, AuditEvent, Membership, ProjectDeletion)
CHUNK = 2000
SETTLES = timedelta(seconds=10)  # keys are trusted for some seconds, and requests take some


class Deleting(Question[Callable[[], None]], Generic[M]):
    """Rows that are about to go. The answer is called when they are gone, in the same
    transaction."""

    rows: models.QuerySet[M]

    @property
    def about(self) -> Model:
        return self.rows.model


def tables() -> dict[Model, str]:
    """{model: the lookup of its project} of every table whose rows belong to one."""
    found: dict[Model, str] = {Project: ""}
    every = apps.get_models(include_auto_created=True)
    while True:
        new = {
            model: lookup
            for model in every
            if model not in found and (lookup := _lookup(model, found))
        }
        if not new:
            return {model: lookup for model, lookup in found.items() if model not in KEPT}
        found |= new


def _lookup(model: Model, found: dict[Model, str]) -> str:
    fields = [field for field in model._meta.fields if field.is_relation and not field.null]
    fields.sort(key=lambda field: field.related_model is not Project)
    for field in fields:
        if field.related_model in found:
            return "__".join(filter(None, (field.name, found[field.related_model])))
    return ""


def groups() -> list[list[Model]]:
    """The tables in the order of deletion; those that refer to each other together."""
    every = tables()
    refers = {
        model: (
            {field.related_model for field in model._meta.fields if field.is_relation}
            & every.keys()
        )
        for model in every
    }
    reached = {model: _reach(model, refers) for model in every}
    of = {
        model: frozenset({model, *(other for other in reached[model] if model in reached[other])})
        for model in every
    }
    waits: dict[frozenset[Model], set[frozenset[Model]]] = {group: set() for group in of.values()}
    for model, others in refers.items():
        for other in others:
            if of[other] != of[model]:
                waits[of[other]].add(of[model])
    return [
        sorted(group, key=lambda model: model._meta.label)
        for group in TopologicalSorter(waits).static_order()
    ]


def _reach(model: Model, refers: dict[Model, set[Model]]) -> set[Model]:
    found: set[Model] = set()
    new = set(refers[model])
    while new:
        found |= new
        new = {other for one in new for other in refers[one]} - found
    return found


def rows_of(model: Model, project: Project, lookup: str = "") -> models.QuerySet:
    return model._base_manager.filter(**{lookup or tables()[model]: project.pk}).order_by()


def counts(project: Project) -> list[tuple[str, int]]:
    """[(what, how many)] of what a project has, the most first."""
    found = []
    for model, lookup in tables().items():
        if lookup == "project" and (n := rows_of(model, project, lookup).count()):
            found.append((noun(model, n), n))
    return sorted(found, key=lambda row: (-row[1], row[0]))


def active_jobs(project: Project) -> list[Job]:
    models_ = [model for model in job_models() if model is not ProjectDeletion]
    return [
        job for model in models_ for job in model._default_manager.filter(project=project).active()
    ]  # type: ignore[attr-defined]


def steps(job: ProjectDeletion) -> Iterator[Progress]:
    project = job.project
    done, total = int(job.cursor.get("done", 0)), int(job.cursor.get("total", 0))
    if not total:
        total = sum(n for _, n in counts(project))
        yield Progress(0, total, "Cancelling running jobs", {"done": 0, "total": total})
    for active in active_jobs(project):
        jobs.cancel(active, by=None)
    while (waiting := len(active_jobs(project))) or timezone.now() < job.created_at + SETTLES:
        label = (
            f"Waiting for {waiting} job{'s' if waiting != 1 else ''} to stop"
            if waiting
            else "Waiting for open requests"
        )
        yield Progress(done, total, label, {"done": done, "total": total})
        time.sleep(1)
    lookups, order = tables(), groups()
    again = True
    while again:  # what was on its way when the project was closed may have come meanwhile
        again = False
        for group in order:
            while n := _remove(group, project, lookups):
                done, again = done + n, True
                name = noun(group[0], 2)
                yield Progress(
                    done,
                    max(done, total),
                    f"Deleting {name}",
                    {"done": done, "total": max(done, total)},
                )
    _close(job, done)
    return {"rows": done}


def _remove(group: list[Model], project: Project, lookups: dict[Model, str]) -> int:
    """Deletes a part of a table, or all of those that refer to each other. Returns how many rows
    went.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL flywheel.purge = 'on'")
    alone = len(group) == 1 and not any(
        field.related_model is group[0] for field in group[0]._meta.fields
    )
    removed, after = 0, []
    for model in group:
        found = rows_of(model, project, lookups[model]).values_list("pk", flat=True)
        pks = list(found[:CHUNK] if alone else found)
        if not pks:
            continue
        rows = model._base_manager.filter(pk__in=pks).order_by()
        if issubclass(model, Job):
            remove_work(model, pks)
        after += ask(Deleting(rows))
        removed += rows._raw_delete(using=rows.db)  # type: ignore[attr-defined]
    for then in after:
        then()
    return removed


@transaction.atomic
def _close(job: ProjectDeletion, rows: int) -> None:
    project = job.project
    slug = f"{project.slug[:40]}-deleted-{project.pk}"  # the old one is free for another project
    Project.objects.filter(pk=project.pk).update(stage=Stage.DELETED, slug=slug, description="")
    project.memberships.exclude(role=Role.OWNER).delete()
    audit(
        "project.deleted",
        project=project,
        by=job.created_by,
        target=project,
        name=project.name,
        slug=project.slug,
        rows=rows,
    )


register(
    ProjectDeletion,
    InProcess(
        queue="default",
        steps=steps,
        if_lost="Nothing stays half-deleted: start it again to continue.",
    ),
)
