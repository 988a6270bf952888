"""Forms of tool replies: people say which tell that a call failed. Each decision has the project's
runs classified again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from django.db import transaction
from django.db.models import Max, QuerySet
from django.utils import timezone
from msgspec import Meta, Struct, field

from apps.core import outbox
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project, Role
from apps.core.openapi import sent
from apps.core.operations import Moment, Page, Paged, Rest, Written, choice_of, operation
from apps.core.operations.rest import filled
from apps.core.routes import RUNS, Disclosure
from apps.failures.classify_job import classify_again
from apps.failures.judge.reply_reading import MOST_FORMS, TASK
from apps.failures.models import Classifier, ReplyForm
from apps.failures.replies import listed_forms
from apps.trajectories.shown import runs_shown
from workers.lib.typed import json_schema

State = ReplyForm.State
AUDITED = {"confirmed": "confirmed", "dismissed": "dismissed", "undecided": "reopened"}


class ReplyFormError(Rejected):
    """The message is a sentence for the page."""


class ReplyFormOut(Struct):
    pk: int = field(name="id")
    tool: Annotated[str, Meta(description="Empty: tools that were not offered")]
    names: Annotated[list[str], Meta(description="Of tools that were not offered")]
    kind: Annotated[str, Meta(description="record or text")]
    meaning: Annotated[str, Meta(description="What replies of this form have in common")] = field(
        name="form"
    )
    good: Annotated[int, Meta(description="Replies to calls in order, in recent runs")]
    broken: Annotated[
        int, Meta(description="Replies to calls that break their tool's contract, in recent runs")
    ]
    runs: int
    run: str | None = field(name="trajectory")
    reply_index: Annotated[int | None, Meta(description="The message of an example")]
    state: choice_of(State)  # type: ignore[valid-type]
    quote: Annotated[str, Meta(description="What says that the call failed, by the judge")]
    read_by: str
    read_at: Moment | None
    error: Annotated[str, Meta(description="Why the judge did not read it")]
    asked_again_at: Annotated[
        Moment | None,
        Meta(description="When the judge is asked again after an error; null: only on request"),
    ]
    decider: str | None = field(name="decided_by")
    decided_at: Moment | None


def _load(request: Any, rows: Sequence[ReplyForm]) -> None:
    if runs := [row.trajectory_id for row in rows if row.trajectory_id]:
        runs_shown(rows[0].project, runs, to=request.auth, where="tool replies by API")


FORM = Written(json_schema(ReplyFormOut), lambda _, row: filled(ReplyFormOut, row), _load)
SHOWS_RUNS = Disclosure(RUNS)


def _ids(project: Project) -> list[tuple[int, str]]:
    return [(pk, str(pk)) for pk in listed_forms(project).values_list("pk", flat=True)]


class ReplyDecision(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether replies of some forms say that the call failed."""

    forms: Annotated[
        list[int],
        Meta(
            title="Forms",
            min_length=1,
            max_length=MOST_FORMS,
            description="Ids",
            extra={"choices": _ids},
        ),
    ]
    state: Annotated[Literal["confirmed", "dismissed", "undecided"], Meta(title="State")]


class DecidedOut(Struct):
    decided: int


@operation(
    "reply_forms_list",
    rest=Rest("GET", "reply-forms/", "reply_forms"),
    gives=Paged(FORM),
    shows=SHOWS_RUNS,
)
def listed(
    *,
    project: Project,
    state: choice_of(State) | None = None,  # type: ignore[valid-type]
) -> QuerySet[ReplyForm]:
    """The forms that tool replies have in recent runs. `proposed`: according to the judge, they
    tell that the call failed.
    """
    rows = listed_forms(project)
    return rows.filter(state=state) if state else rows


@operation(
    "reply_forms_decide",
    rest=Rest("POST", "reply-forms/decide/", "reply_forms_decide"),
    gives=DecidedOut,
    role=Role.REVIEWER,
    examples=(
        sent("These replies say that the call failed", {"forms": [7], "state": "confirmed"}),
    ),
    says={
        "reply_forms.confirmed": "confirmed that {count|form|forms} of tool replies say “failed”",
        "reply_forms.dismissed": "dismissed {count|form|forms} of tool replies: not a failed call",
        "reply_forms.reopened": "undid the decision on {count|form|forms} of tool replies",
    },
)
@transaction.atomic
def decide(*, project: Project, by: Any, given: ReplyDecision) -> DecidedOut:
    """Says of several forms at once whether they tell that a call failed. A reply of a confirmed
    form is a tool's error for all rules; one of a dismissed form never is a refusal.

    Raises ReplyFormError.
    """
    acquire_in(project.pk, ProjectLock.REPLIES)
    rows = listed_forms(project).filter(pk__in=given.forms)
    if rows.count() < len(set(given.forms)):
        raise ReplyFormError("Some of these forms are no longer there. Reload the page.")
    return DecidedOut(_set(project, rows, given.state, by))


@operation(
    "reply_forms_look",
    rest=Rest("POST", "reply-forms/look/", "reply_forms_look"),
    page=Page(
        "replies/look/",
        "replies_look",
        then="failures:replies",
        follows=True,
    ),
    role=Role.REVIEWER,
    says={"reply_forms.looked": "had the replies of tools in recent runs read"},
)
def look(*, project: Project, by: Any) -> None:
    """Reads the replies of recent runs now, and has the judge say which forms tell that a call
    failed: also those that wait for another try after an error, or had three. New runs are read
    without being asked, within some minutes.
    """
    outbox.post(TASK, project.pk, True, expires_s=600)
    audit("reply_forms.looked", project=project, by=by)


@transaction.atomic
def undo(*, project: Project, by: Any) -> int:
    """Takes back what the person decided last, which may be several forms; returns how many."""
    acquire_in(project.pk, ProjectLock.REPLIES)
    rows = project.reply_forms.filter(decided_by=by)
    last = rows.aggregate(at=Max("decided_at"))["at"]
    return _set(project, rows.filter(decided_at=last), "undecided", by) if last else 0


def _set(project: Project, rows: Iterable[ReplyForm], state: str, by: Any) -> int:
    now, changed = timezone.now(), []
    for row in rows:
        target = (State.PROPOSED if row.quote else State.SEEN) if state == "undecided" else state
        if row.state != target:
            is_decided = target in ReplyForm.DECIDED
            row.state, row.decided_by = target, by if is_decided else None
            row.decided_at = now if is_decided else None
            changed.append(row)
    ReplyForm.objects.bulk_update(changed, ["state", "decided_by", "decided_at"])
    if changed:
        audit(f"reply_forms.{AUDITED[state]}", project=project, by=by, count=len(changed))
        classify_again(project, by)
        Classifier.objects.filter(project=project).update(prompts_of=None)  # tries rules again
    return len(changed)
