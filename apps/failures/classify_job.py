"""Classifies new and changed runs: automatically, seconds after they arrive (`classify_new`), or as
a job started by a person or a flow; the job goes through everything once if the rules, or decisions
on policy rules, are newer than the last pass.

The digest notes what is new (`note`). A note is removed in the transaction that stores the
diagnosis, before the trajectory is read, so a concurrent change leaves a new note.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from apps.core import jobs, lags
from apps.core.actions import audit
from apps.core.bus import on
from apps.core.kinds import Progress
from apps.core.lags import lag
from apps.core.models import ACTIVE_STATES, JobState, Project
from apps.core.postgres import array
from apps.failures.actions.diagnose import diagnose_and_draw
from apps.failures.classify import RULES_VERSION
from apps.failures.clusters.store import PLACED_AT_ONCE, place, place_new
from apps.failures.models import Classification, Classifier, Failure, Unclassified
from apps.trajectories.digest import RunsDigested
from apps.trajectories.models import HourlyCount, Trajectory, with_content

log = logging.getLogger(__name__)
CHUNK = 500
Steps = Generator[Progress, None, dict]
NEVER = Q(Exists(HourlyCount.objects.filter(project=OuterRef("pk"))), classifier=None)
CURRENT = Classifier.objects.filter(policy_done=F("policy"))


@on(RunsDigested)
def note_unclassified(event: RunsDigested) -> None:
    classify_soon(event.trajectories)


def classify_soon(trajectories: Iterable[UUID]) -> None:
    """Has runs classified again in the next seconds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failures_unclassified (trajectory_id, project_id) SELECT id, project_id"
            " FROM trajectories_trajectory JOIN failures_classifier USING (project_id) WHERE id ="
            " ANY(%s::uuid[]) ON CONFLICT DO NOTHING",
            [array(map(str, sorted(trajectories)))],
        )


@lag("classified")
def waiting_since() -> datetime | None:
    """Since when the oldest run that is digested waits for the rules: new ones, the first pass over
    a project, or another pass over everything.
    """
    noted = Unclassified.objects.aggregate(since=Min("noted_at"))["since"]
    passes = Classification.objects.active().aggregate(since=Min("created_at"))["since"]
    first = Trajectory.objects.filter(project=OuterRef("pk")).order_by("pk")
    never = _not_failed().filter(NEVER).annotate(at=Subquery(first.values("received_at")[:1]))
    return min(
        filter(None, (noted, passes, never.aggregate(since=Min("at"))["since"])), default=None
    )


def start(*, project: Project, by: Any) -> Classification:
    """Queues a classification, or returns the running one."""
    job = Classification(project=project, name="Classify trajectories", total=count(project))
    try:
        return jobs.submit(job, by=by)
    except IntegrityError:
        active = project.classifications.active().first()
        return active or start(project=project, by=by)


def classify_again(project: Project, by: Any) -> None:
    """Queues a pass over all runs of the project."""
    Classifier.objects.filter(project=project).update(policy=F("policy") + 1)
    transaction.on_commit(partial(start, project=project, by=by))


def count(project: Project) -> int:
    """The number of trajectories that a classification would process now."""
    if CURRENT.filter(project=project, rules=RULES_VERSION).exists():
        return project.unclassified.count()
    return project.trajectories.count()


def due() -> list[Project]:
    """Projects with notes, changes that need a pass over all runs, or runs that were never
    classified. Left out are projects with a running classification, and those whose last one
    failed: people see the error on the page."""
    noted = Exists(Unclassified.objects.filter(project=OuterRef("pk")))
    decided = Q(classifier__policy__gt=F("classifier__policy_done"))
    rows = _not_failed().exclude(last__in=ACTIVE_STATES)
    return list(rows.filter(Q(noted) | NEVER | decided))


def _not_failed() -> QuerySet[Project]:
    """Projects with the state of their `last` classification, but those where it failed."""
    of_project = Classification.objects.filter(project=OuterRef("pk")).order_by("-created_at")
    last = Coalesce(Subquery(of_project.values("state")[:1]), Value(""))
    return Project.objects.running().annotate(last=last).exclude(last=JobState.FAILED)


def classify_new(project: Project, *, for_s: float) -> int:
    """Processes notes for at most this long, or until receivers are busy; returns how many. Without
    a job or an audit log entry, since it runs every few seconds. Concurrent processes take other
    rows. A pass over everything is a job; so is one after an error, which the job shows.
    """
    if not CURRENT.filter(project=project).exists():
        start(project=project, by=None)
        return 0
    try:
        return _classify_noted(project, time.monotonic() + for_s)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("New trajectories of project %s cannot be classified", project.pk)
        start(project=project, by=None)
        return 0


def _classify_noted(project: Project, until: float) -> int:
    cursor, looked = {"looked": 0, "found": 0}, []
    noted = project.unclassified.select_for_update(skip_locked=True).values_list("pk", flat=True)
    while time.monotonic() < until and not lags.rests("classified"):
        lags.give_way("classified")
        with transaction.atomic():
            ids = list(noted[:CHUNK])
            _classify(project, ids, cursor)
        looked += ids
        if len(ids) < CHUNK:
            break
    if cursor["found"]:
        place(
            project,
            list(
                Failure.objects.filter(
                    trajectory_id__in=looked[-PLACED_AT_ONCE:], cluster=None
                ).standing()
            ),
        )
    return cursor["looked"]


def steps(job: Classification) -> Steps:
    project, cursor = job.project, {"looked": 0, "found": 0, "after": None} | job.cursor
    classifier, _ = Classifier.objects.get_or_create(project=project)
    cursor.setdefault("policy", classifier.policy)
    yield _progress(
        cursor
    )  # committed before anything is read: what the digest changes from now on is noted again
    if classifier.rules != RULES_VERSION or classifier.policy_done != classifier.policy:
        rows = Trajectory.objects.filter(project=project).order_by("pk")
        while ids := list(_after(rows, cursor["after"]).values_list("pk", flat=True)[:CHUNK]):
            _classify(project, ids, cursor)
            cursor["after"] = str(ids[-1])
            yield _progress(cursor)
        Classifier.objects.filter(project=project).update(
            rules=RULES_VERSION, policy_done=cursor["policy"]
        )
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
    Unclassified.objects.filter(pk__among=ids).delete()
    rows = with_content(
        list(Trajectory.objects.filter(project=project, pk__among=ids).order_by("pk"))
    )
    cursor["looked"] += len(rows)
    cursor["found"] += diagnose_and_draw(project, rows)


def _progress(cursor: dict[str, Any]) -> Progress:
    return Progress(done=cursor["looked"], cursor=dict(cursor))
