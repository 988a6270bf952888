"""Renaming, archiving and deleting a project."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from apps.core import jobs
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project, ProjectDeletion, Stage
from apps.core.projects.deletion import active_jobs


class LifecycleError(Rejected):
    """A change that the project's state or another project does not allow."""


@transaction.atomic
def rename(
    *, project: Project, name: str, slug: str, description: str, by: Any, **label: str
) -> Project:
    """Raises LifecycleError if another project has the short name."""
    row = Project.objects.select_for_update().get(pk=project.pk)
    before = {"name": row.name, "slug": row.slug}
    row.name, row.slug, row.description = name, slug, description
    try:
        with transaction.atomic():
            row.save(update_fields=["name", "slug", "description"])
    except IntegrityError as error:
        raise LifecycleError(
            f"Another project has the short name “{slug}”. Choose another.", "slug"
        ) from error
    if before != {"name": name, "slug": slug}:
        audit(
            "project.renamed",
            project=row,
            by=by,
            target=row,
            before=before["name"],
            name=name,
            slug=slug,
            **label,
        )
    return row


@transaction.atomic
def archive(*, project: Project, by: Any, **label: str) -> bool:
    """Makes it read-only: no data, no jobs, no schedules. False if it was not active. Raises
    LifecycleError while jobs are under way.
    """
    if not Project.objects.filter(pk=project.pk, stage=Stage.ACTIVE).update(stage=Stage.ARCHIVED):
        return False
    if under_way := active_jobs(project):
        many = len(under_way)
        raise LifecycleError(
            f"{many} job{'s are' if many > 1 else ' is'} under way, such as “{under_way[0].name}”."
            f" Cancel {'them' if many > 1 else 'it'} or wait."
        )
    audit("project.archived", project=project, by=by, target=project, name=project.name, **label)
    return True


@transaction.atomic
def unarchive(*, project: Project, by: Any, **label: str) -> bool:
    back = Project.objects.filter(pk=project.pk, stage=Stage.ARCHIVED).update(stage=Stage.ACTIVE)
    if back:
        audit(
            "project.unarchived", project=project, by=by, target=project, name=project.name, **label
        )
    return bool(back)


@transaction.atomic
def delete(*, project: Project, confirm: str, by: Any, **label: str) -> ProjectDeletion:
    """Closes the project at once and has a worker remove it. Raises LifecycleError; `confirm` is
    the project's name, typed.
    """
    if confirm.strip() != project.name.strip():
        raise LifecycleError(
            f"Type the name of the project, “{project.name}”, to delete it.", "confirm"
        )
    open_ = Project.objects.filter(pk=project.pk, stage__in=[Stage.ACTIVE, Stage.ARCHIVED])
    if not open_.update(stage=Stage.DELETING):
        raise LifecycleError(f"{project} is being deleted already.")
    audit(
        "project.deletion_started",
        project=project,
        by=by,
        target=project,
        name=project.name,
        **label,
    )
    return jobs.submit(ProjectDeletion(project=project, name=project.name), by=by)


def try_again(*, deletion: ProjectDeletion, by: Any) -> bool:
    """Goes on with a deletion that has ended before its end. False if it is under way or done."""
    ended = ProjectDeletion.objects.filter(project__stage=Stage.DELETING)
    return jobs.restart(deletion, among=ended, by=by, action="resumed")
