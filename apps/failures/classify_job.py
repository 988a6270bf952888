"""Classifying as a job: what is new or has changed; everything once where the rules are newer than the last pass.

The digest notes what is new (`note`). A note is removed in the transaction that stores the diagnosis, before the
trajectory is read: a change that comes meanwhile leaves a new one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection
from django.db.models import QuerySet

from apps.core import jobs
from apps.core.actions import audit
from apps.core.kinds import Progress
from apps.core.models import Project
from apps.failures.actions.diagnose import diagnose
from apps.failures.classify import RULES_VERSION
from apps.failures.clusters.store import place_new
from apps.failures.models import Classification, Classifier, Unclassified
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.rollups import Counts

CHUNK = 500
Steps = Generator[Progress, None, dict]


def note(project: int, counts: Counts, trajectories: Sequence[UUID]) -> None:
    """Called by the digest with what was stored, changed or removed, in its transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failures_unclassified (trajectory_id, project_id) "
            "SELECT id, project_id FROM trajectories_trajectory JOIN failures_classifier USING (project_id) "
            "WHERE id = ANY(%s) ON CONFLICT DO NOTHING",
            [sorted(trajectories)],
        )


def start(*, project: Project, by: Any) -> Classification:
    """Queues a classification; the one that is under way, if there is one."""
    job = Classification(project=project, name="Classify trajectories", total=count(project))
    try:
        return jobs.submit(job, by=by)
    except IntegrityError:
        active = project.classifications.active().first()
        return active or start(project=project, by=by)


def count(project: Project) -> int:
    """How many trajectories a classification would go through now."""
    if Classifier.objects.filter(project=project, rules=RULES_VERSION).exists():
        return project.unclassified.count()
    return project.trajectories.count()


def steps(job: Classification) -> Steps:
    project, cursor = job.project, {"looked": 0, "found": 0, "after": None} | job.cursor
    classifier, _ = Classifier.objects.get_or_create(project=project)
    yield _progress(cursor)  # committed before anything is read: what the digest meets from now on is noted
    if classifier.rules != RULES_VERSION:
        rows = Trajectory.objects.filter(project=project).order_by("pk")
        while ids := list(_after(rows, cursor["after"]).values_list("pk", flat=True)[:CHUNK]):
            _classify(project, ids, cursor)
            cursor["after"] = str(ids[-1])
            yield _progress(cursor)
        Classifier.objects.filter(project=project).update(rules=RULES_VERSION)
        yield _progress(cursor)
    while ids := list(project.unclassified.values_list("pk", flat=True)[:CHUNK]):
        _classify(project, ids, cursor)
        yield _progress(cursor)
    place_new(project)
    counts = {"looked": cursor["looked"], "found": cursor["found"]}
    audit("failures.classified", project=project, by=job.created_by, **counts)
    return counts


def _after(rows: QuerySet[Trajectory], last: str | None) -> QuerySet[Trajectory]:
    return rows.filter(pk__gt=UUID(last)) if last else rows


def _classify(project: Project, ids: list[UUID], cursor: dict[str, Any]) -> None:
    Unclassified.objects.filter(pk__in=ids).delete()
    rows = with_content(list(Trajectory.objects.filter(project=project, pk__in=ids).order_by("pk")))
    cursor["looked"] += len(rows)
    cursor["found"] += diagnose(project, rows)


def _progress(cursor: dict[str, Any]) -> Progress:
    return Progress(done=cursor["looked"], cursor=dict(cursor))
