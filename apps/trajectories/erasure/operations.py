"""Deleting data: what it would be, starting, cancelling and resuming it, and its report."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Meta, Struct, field

from apps.core import jobs
from apps.core.errors import Rejected
from apps.core.mentions import Words
from apps.core.models import JobState, Project, Role
from apps.core.openapi import LINE, TEXT, sent
from apps.core.operations import Moment, Page, Rest, operation
from apps.core.query import QueryError
from apps.trajectories.erasure import preview as previewing
from apps.trajectories.erasure.preview import Preview
from apps.trajectories.erasure.wanted import (
    Wanted,
    as_text,
    filters_from,
    is_short_text,
    matching,
)
from apps.trajectories.models import DataDeletion, LateData, Trajectory

MOST_WORDS = 50


class DeletionError(Rejected):
    """The message is a sentence for the page; `field` is the invalid input."""


class What(Struct, forbid_unknown_fields=True, kw_only=True):
    """The runs that filters match, or everything about a person."""

    filters: Annotated[
        str,
        Meta(
            title="Runs that match",
            max_length=4_000,
            pattern=LINE,
            description="As in the address of the list of runs: user=u-17&to=2026-06-30",
        ),
    ] = ""
    users: Annotated[
        str,
        Meta(
            title="User ids",
            max_length=4_000,
            pattern=TEXT,
            description="One per line: the runs and sessions of these users",
        ),
    ] = ""
    texts: Annotated[
        str,
        Meta(
            title="Texts",
            max_length=4_000,
            pattern=TEXT,
            description=(
                "Names, addresses or numbers of the person, one per line: every run that contains"
                " one is deleted"
            ),
        ),
    ] = ""
    others: Annotated[
        str,
        Meta(
            title="Except",
            max_length=4_000,
            pattern=TEXT,
            description=(
                "Names of other people that contain one of the texts, one per line (Mary Ann"
                " Example): runs with these alone are kept"
            ),
        ),
    ] = ""
    copies: Annotated[
        bool,
        Meta(
            title="Also what was made from the runs",
            description=(
                "Tasks (their hashes stay), training examples, evaluation samples; of a person"
                " always"
            ),
        ),
    ] = True


class Confirmed(What, kw_only=True):
    confirm: Annotated[
        str,
        Meta(
            title="Confirm",
            min_length=1,
            max_length=200,
            pattern=LINE,
            description="The project's name, or the number of runs of the preview",
        ),
    ]


class DeletionOut(Struct):
    """`result` of one that has ended is its report: what was deleted, what is left and why, and
    the model versions that learned from it.
    """

    pk: UUID = field(name="id")
    name: str
    state: str
    done: int
    total: int
    label: str
    error: str
    result: dict[str, Any]
    created_at: Moment
    finished_at: Moment | None


class LateOut(Struct):
    """What came of deleted runs on a day and was dropped."""

    kind: str
    day: date
    n: int
    last_at: Moment


FORM = {"template": "trajectories/deletion_form.html"}


@operation("deletions_list", rest=Rest("GET", "deletions/", "deletions"), gives=list[DeletionOut])
def listed(*, project: Project) -> QuerySet[DataDeletion]:
    """The last 50 deletions of data, the newest first."""
    return project.datadeletions.all()[:50]


@operation(
    "deletions_read", rest=Rest("GET", "deletions/<uuid:pk>/", "deletion"), gives=DeletionOut
)
def one(*, deletion: DataDeletion) -> DataDeletion:
    """A deletion, with its report once it has ended."""
    return deletion


@operation(
    "deletions_preview",
    rest=Rest("POST", "deletions/preview/", "deletions_preview"),
    gives=Preview,
    role=Role.OWNER,
    examples=(sent("Of a person", {"users": "u-17", "texts": "Ann Example"}),),
)
def preview(*, project: Project, given: What) -> Preview:
    """What a deletion would delete, by kind, what it would leave and why, and the model versions
    that learned from it. Nothing is deleted.

    Raises DeletionError.
    """
    return _preview(project, wanted_from(given))


@operation(
    "deletions_start",
    rest=Rest("POST", "deletions/", "deletions", 202),
    page=Page("deletions/new/", "deletion_new", **FORM),
    gives=DeletionOut,
    role=Role.OWNER,
    examples=(
        sent(
            "Runs that match filters",
            {"filters": "agent=support&to=2026-06-30", "confirm": "12873"},
        ),
    ),
)
@transaction.atomic
def start(*, project: Project, by: Any, given: Confirmed) -> DataDeletion:
    """Deletes the runs that match, or everything about a person, as a job. It cannot be undone:
    `confirm` is the project's name or the number of runs that match.

    Raises DeletionError.
    """
    wanted = wanted_from(given)
    typed = given.confirm.strip()
    rows = _matching(project, wanted)
    if typed not in (project.name, project.slug):
        runs = rows.count()
        if typed.replace(",", "") != str(runs):
            raise DeletionError(f"Type “{project.name}” or {runs} to confirm.", field="confirm")
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.datadeletions.active().exists():
        raise DeletionError("Another deletion is running. Wait for it, or cancel it.")
    row = DataDeletion(
        project=project,
        name=f"Deletion of {wanted.says}"[:200],
        wanted=as_text(wanted),
        spec={"what": wanted.says, "person": wanted.digests(project)},
    )
    return jobs.submit(row, by=by)


@operation(
    "deletions_cancel",
    rest=Rest("POST", "deletions/<uuid:pk>/cancel/", "deletion_cancel"),
    page=Page(
        "deletions/<uuid:pk>/cancel/",
        "deletion_cancel",
        done="It stops after the current step. What was deleted is gone.",
    ),
    gives=DeletionOut,
    role=Role.OWNER,
)
def cancel(*, deletion: DataDeletion, by: Any) -> None:
    """Stops a deletion. What was deleted is gone; it can be resumed.

    Raises Rejected if it has finished.
    """
    jobs.stop(deletion, by=by)


@operation(
    "deletions_resume",
    rest=Rest("POST", "deletions/<uuid:pk>/resume/", "deletion_resume"),
    page=Page("deletions/<uuid:pk>/resume/", "deletion_resume", done="It goes on."),
    gives=DeletionOut,
    role=Role.OWNER,
)
@transaction.atomic
def resume(*, deletion: DataDeletion, by: Any) -> None:
    """Goes on with a deletion that was cancelled or failed.

    Raises Rejected if it is running or done.
    """
    Project.objects.select_for_update().get(pk=deletion.project_id)
    if deletion.project.datadeletions.active().exclude(pk=deletion.pk).exists():
        raise Rejected("Another deletion is running. Wait for it, or cancel it.")
    stopped = DataDeletion.objects.filter(state__in=(JobState.CANCELLED, JobState.FAILED))
    if not jobs.restart(deletion, among=stopped, by=by, action="resumed"):
        raise Rejected("Only a cancelled or failed deletion can be resumed.")


@operation("late_data", rest=Rest("GET", "late-data/", "late_data"), gives=list[LateOut])
def late(*, project: Project) -> QuerySet[LateData]:
    """What came of deleted runs, by day and kind, and was dropped; the newest days first."""
    return project.late_data.all()[:200]


def wanted_from(given: What) -> Wanted:
    """Raises DeletionError."""
    users, texts, others = map(_lines, (given.users, given.texts, given.others))
    if bool(given.filters.strip()) == bool(users or texts):
        raise DeletionError(
            "Give either filters or a person (user ids, texts): one of the two.", field="filters"
        )
    if len(users) + len(texts) + len(others) > MOST_WORDS:
        raise DeletionError(f"At most {MOST_WORDS} ids and texts at a time.", field="users")
    if short := next(filter(is_short_text, texts), ""):
        raise DeletionError(
            f"“{short}” is too short to look for: it is in other words, too. Give the full name, an"
            " address, or the user id, which may have any length.",
            field="texts",
        )
    if stray := next((text for text in others if not Words(texts).are_in(text)), ""):
        raise DeletionError(f"“{stray}” contains none of the texts.", field="others")
    try:
        filters = filters_from(given.filters)
    except QueryError as error:
        raise DeletionError(error.sentence, field="filters") from error
    if not filters and not users and not texts:
        raise DeletionError("No filter is given: this would be every run.", field="filters")
    return Wanted(filters, users, texts, others, given.copies or bool(users or texts))


def is_resumable(deletion: DataDeletion) -> bool:
    return deletion.state in (JobState.CANCELLED, JobState.FAILED)


def _preview(project: Project, wanted: Wanted) -> Preview:
    try:
        return previewing.preview(project, wanted)
    except QueryError as error:
        raise DeletionError(error.sentence, field="filters") from error


def _matching(project: Project, wanted: Wanted) -> QuerySet[Trajectory]:
    try:
        return matching(project, wanted, timezone.now())
    except QueryError as error:
        raise DeletionError(error.sentence, field="filters") from error


def _lines(text: str) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
