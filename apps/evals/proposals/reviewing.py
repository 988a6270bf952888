"""A person's decisions on proposed tasks: confirm, edit, reject, undo; one or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from msgspec import Meta, Struct, field

from apps.core.actions import audit
from apps.core.models import ApiKey, Project
from apps.core.openapi import sent
from apps.core.operations import Moment, Paged, Rest, Written, choice_of, operation
from apps.core.routes import RUNS, SIDES, Disclosure
from apps.evals import actions
from apps.evals.editing import fingerprint
from apps.evals.formats.rows import Bad, checked_expected
from apps.evals.from_failures import free_key, open_draft
from apps.evals.holdout.view_log import record_refusal
from apps.evals.later_turns import (
    LEFT_OUT,
    MOST_SAID,
    SAYS,
    TURNS,
    USER_BY,
    standing_of,
    with_says,
    without_user,
)
from apps.evals.models import ProposalJob, ProposalState, Task, TaskKind, TaskProposal
from apps.evals.proposals import drafting, making
from apps.evals.proposals.rubric import rubric_of, without_number
from apps.evals.proposals.same import move_occurrences, other_of, record_occurrences, seen_in
from apps.evals.suggestions import BY_HAND, JUDGE, UNWRITTEN, kind_of
from apps.failures.actions.decisions import Refused, decide
from apps.failures.models import Failure, FailureState
from apps.trajectories.shown import runs_shown
from workers.lib.typed import Text, json_schema

MOST = 200  # at once
MOST_POINTS, MAX_POINT = 20, 1_000
GONE = "Somebody else has decided on this proposal already."
NOT_READY = "It does not say yet what is expected. Write the rubric first."
LIKE_NONE = "There is no other request that it looks like."
SHOWS = Disclosure(f"{RUNS}; {SIDES}")
ProposalIds = Annotated[list[UUID], Meta(title="Proposals", min_length=1, max_length=MOST)]


class ProposalError(actions.EvalSetError):
    """What cannot be done with a proposal, as a sentence."""


class ProposalOut(Struct):
    """A proposed task. `expected` is empty while the judge is drafting, or until a person writes
    it; `unknown` are tools of which nobody knows whether they change something; `warnings` are what
    the run itself says against what is expected; `seen_in` is in how many failures the same request
    was seen; `looks_like` is the hash of another request that may be the same. Of an episode,
    `user_says` is what the user says once it has begun, besides the standing answer
    `user_agrees`, and `left_out` are the user's turns (message indices) that are not replayed,
    since they answer the failed run.
    """

    id: UUID
    state: str
    kind: str
    trajectory: str
    cut: int
    reason: str
    source: str
    messages: list[dict[str, Any]]
    expected: dict[str, Any]
    demonstration: str
    unknown: list[str]
    warnings: list[str]
    is_drafting: bool
    draft_error: str
    seen_in: int
    looks_like: str
    looks_like_why: str
    user_says: list[str]
    user_agrees: str
    left_out: list[int]
    task: UUID | None
    created_at: Moment
    decided_at: Moment | None


def load(request: Any, rows: Sequence[TaskProposal]) -> None:
    """Where they were seen. Counts as a view of their runs."""
    if not rows:
        return
    project = rows[0].project
    runs_shown(project, [row.trajectory_id for row in rows], to=request.auth, where="API")
    seen = seen_in(project, [row.canonical_hash for row in rows])
    for row in rows:
        row.seen_in = seen.get(row.canonical_hash, 0)


def as_json(request: Any, row: TaskProposal) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "state": row.state,
        "kind": row.kind,
        "trajectory": row.trajectory.external_id,
        "cut": row.cut,
        "reason": row.reason,
        "source": row.source,
        "messages": row.messages,
        "expected": row.expected,
        "demonstration": row.demonstration,
        "unknown": row.unknown,
        "warnings": row.warnings,
        "is_drafting": row.is_drafting,
        "draft_error": row.draft_error,
        "seen_in": row.seen_in,
        "looks_like": row.looks_like,
        "looks_like_why": row.looks_like_why,
        "user_says": row.metadata.get(SAYS, []),
        "user_agrees": standing_of(row.metadata),
        "left_out": row.metadata.get(LEFT_OUT, []),
        "task": str(row.task_id) if row.task_id else None,
        "created_at": row.created_at,
        "decided_at": row.decided_at,
    }


PROPOSAL = Written(json_schema(ProposalOut), as_json, load)


class ProposalJobOut(Struct):
    """`result` is {made, known, rejected, held, without_request, drafting, to_write}: requests that
    are known are counted on their task, not proposed again.
    """

    pk: UUID = field(name="id")
    state: str
    done: int
    total: int
    error: str
    result: dict[str, int]
    created_at: Moment


class ConfirmedOut(Struct):
    """`left` says of each proposal that was not confirmed why."""

    confirmed: int
    left: dict[str, str]


@operation(
    "eval_proposals_list",
    rest=Rest("GET", "eval-proposals/", "proposals"),
    gives=Paged(PROPOSAL, 100),
    shows=SHOWS,
)
def proposals(
    *,
    project: Project,
    state: choice_of(ProposalState) | None = None,  # type: ignore[valid-type]
    kind: choice_of(TaskKind) | None = None,  # type: ignore[valid-type]
) -> QuerySet[TaskProposal]:
    """Proposed tasks, newest first. They count nowhere until they are confirmed."""
    rows = project.task_proposals.select_related("project", "trajectory")
    given = {"state": state, "kind": kind}
    return rows.filter(**{name: value for name, value in given.items() if value})


@operation(
    "eval_proposals_read",
    rest=Rest("GET", "eval-proposals/<uuid:pk>/", "proposal"),
    gives=PROPOSAL,
    shows=SHOWS,
)
def proposal(*, proposal: TaskProposal) -> TaskProposal:
    """A proposed task."""
    return proposal


class Propose(Struct, forbid_unknown_fields=True, kw_only=True):
    """Of the newest failures of a `cluster`, or of failed runs by their ids (`trajectories`)."""

    cluster: UUID | None = None
    trajectories: Annotated[list[Text], Meta(max_length=making.MOST)] = []


@operation(
    "eval_proposals_make",
    rest=Rest("POST", "eval-proposals/", "proposals", 202),
    gives=ProposalJobOut,
    examples=(sent("Of two runs", {"trajectories": ["run-17", "run-18"]}),),
    says={"proposals.made": "proposed {made|task|tasks}[: {what}]"},
    shows=SHOWS,
)
def propose(*, project: Project, by: Any, given: Propose) -> ProposalJob:
    """Proposes the task of each of up to 200 failures; poll the job until its state is final. The
    judge drafts the rubrics within its daily budget; without one a person writes them.

    Raises ProposalError, Http404.
    """
    if (given.cluster is None) == (not given.trajectories):
        raise ProposalError("Send either “cluster” or “trajectories”.")
    what = f"of {len(given.trajectories):,} chosen failures"
    rows = project.failures.standing()
    if given.cluster:
        cluster = project.failure_clusters.filter(pk=given.cluster).first()
        if cluster is None:
            raise Http404("No cluster of this project has this id.")
        rows, what = rows.filter(cluster=cluster), f"of the cluster {cluster.name}"
    else:
        rows = rows.filter(trajectory__external_id__in=given.trajectories)
    return of_failures(project=project, rows=rows, by=by, what=what)


def of_failures(*, project: Project, rows: QuerySet[Failure], by: Any, what: str) -> ProposalJob:
    """The tasks of the newest of these failures. Raises ProposalError if there is none, or if some
    are being proposed already.
    """
    newest = list(rows.order_by("-trajectory_id").values_list("pk", flat=True)[: making.MOST])
    if not newest:
        raise ProposalError("None of these runs is a failure of this project.")
    try:
        return making.start(project=project, failures=newest, by=by, what=what)
    except IntegrityError as error:
        raise ProposalError(
            "Tasks are being proposed already. Wait until that has ended."
        ) from error


@operation(
    "eval_proposals_job",
    rest=Rest("GET", "eval-proposals/jobs/<uuid:pk>/", "proposal_job"),
    gives=ProposalJobOut,
    shows=SHOWS,
)
def proposal_job(*, job: ProposalJob) -> ProposalJob:
    """How far the proposing of tasks has come, and what came of it."""
    return job


@operation(
    "eval_proposals_confirm",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/confirm/", "proposal_confirm"),
    gives=PROPOSAL,
    says={"proposal.confirmed": "confirmed {=a proposed task@evals.evalset:set_id} for {set}"},
    shows=SHOWS,
)
@transaction.atomic
def confirm(*, proposal: TaskProposal, by: Any, key: ApiKey | None = None) -> None:
    """Makes it a training task of the open draft, and confirms its failure if that is open. 409 if
    it says nothing yet, was decided on, or is too close to a hold-out.

    Raises EvalSetError, Refused.
    """
    ours = _locked(proposal)
    if not ours.is_ready:
        raise ProposalError(NOT_READY)
    draft = open_draft(project=ours.project, by=by)
    name = free_key(draft, ours.trajectory.external_id)
    task = making.unsaved_task(ours, key=name, eval_set=draft, confirmed_by=by)
    stored = actions.store_tasks(
        eval_set=draft, tasks=[task], by=by, what="a confirmed proposal", viewer=key
    )
    if stored.crossings:
        raise actions.HoldoutLeak(str(stored.crossings[0]), stored.crossings[0])
    if stored.duplicates:
        error = ProposalError(f"{draft} already has this request. Reject the proposal.")
        same = draft.tasks.holdout().filter(canonical_hash=ours.canonical_hash)
        error.held = list(same.values_list("canonical_hash", flat=True))
        raise error
    _decided(ours, ProposalState.CONFIRMED, by, task)
    record_occurrences(ours.project, {ours.canonical_hash: [ours.trajectory_id]})
    failure = ours.failure
    if failure and failure.state == FailureState.OPEN:
        decide(failure=failure, by=by)
    audit(
        "proposal.confirmed",
        project=ours.project,
        by=by,
        target=ours,
        set=str(draft),
        set_id=str(draft.pk),
        kind=ours.kind,
    )


@operation(
    "eval_proposals_reject",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/reject/", "proposal_reject"),
    gives=PROPOSAL,
    says={"proposal.rejected": "rejected a proposed task"},
    shows=SHOWS,
)
@transaction.atomic
def reject(*, proposal: TaskProposal, by: Any) -> None:
    """It becomes no task, and the same request is not proposed again.

    Raises ProposalError.
    """
    ours = _locked(proposal)
    _decided(ours, ProposalState.REJECTED, by)
    audit("proposal.rejected", project=ours.project, by=by, target=ours, kind=ours.kind)


@operation(
    "eval_proposals_merge",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/merge/", "proposal_merge"),
    gives=PROPOSAL,
    says={"proposal.merged": "said that a proposed task is the same as another"},
    shows=SHOWS,
)
@transaction.atomic
def merge(*, proposal: TaskProposal, by: Any) -> None:
    """It becomes no task, and its run counts as a failure of the request that it looks like; so do
    later ones with the same request.

    Raises ProposalError.
    """
    ours = _locked(proposal)
    if other_of(ours) is None:
        raise ProposalError(LIKE_NONE)
    move_occurrences(ours.project, ours.canonical_hash, ours.looks_like)
    _decided(ours, ProposalState.MERGED, by)
    audit("proposal.merged", project=ours.project, by=by, target=ours, kind=ours.kind)


class EditProposal(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is expected: the `points` of a rubric, or any form that a task may expect
    (`expected`). Of an episode also what the user says once it has begun (`user_says`), and the
    standing answer. What is left out stays.
    """

    points: Annotated[
        list[Annotated[str, Meta(max_length=MAX_POINT)]], Meta(max_length=MOST_POINTS)
    ] = []
    expected: dict[str, Any] | None = None
    demonstration: Annotated[str, Meta(max_length=60_000)] | None = None
    user_says: (
        Annotated[list[Annotated[str, Meta(max_length=MAX_POINT)]], Meta(max_length=MOST_SAID)]
        | None
    ) = None
    user_agrees: Annotated[str, Meta(max_length=MAX_POINT)] | None = None


@operation(
    "eval_proposals_edit",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/edit/", "proposal_edit"),
    gives=PROPOSAL,
    examples=(sent("A rubric", {"points": ["Says that order 17 cannot be returned"]}),),
    says={"proposal.edited": "edited a proposed task"},
    shows=SHOWS,
)
@transaction.atomic
def edit(*, proposal: TaskProposal, by: Any, given: EditProposal) -> None:
    """Changes what is expected, which is then a person's, unless it is the judge's draft with fewer
    points. A draft of the judge that arrives later
    is dropped.

    Raises ProposalError.
    """
    ours = _locked(proposal)
    points = [line for point in given.points if (line := " ".join(point.split()))]
    if points and given.expected is not None:
        raise ProposalError("Send either “points” or “expected”.", "points")
    expected = {"rubric": rubric_of(points)} if points else given.expected
    if expected is not None and (expected != ours.expected or not expected):
        quotes = _left_of_draft(ours, points)
        source = BY_HAND if quotes is None else JUDGE
        ours.kind, ours.source = kind_of(expected), source
        ours.expected = _checked(expected)
        ours.is_drafting, ours.draft_error, ours.warnings = False, "", []
        ours.metadata = {
            name: value for name, value in ours.metadata.items() if name != drafting.POINTS
        } | {"source": source, **({drafting.POINTS: quotes} if quotes else {})}
        if ours.kind != TaskKind.EPISODE:
            ours.metadata = without_user(ours.metadata)
    if given.demonstration is not None:
        ours.demonstration = given.demonstration
    if ours.kind == TaskKind.EPISODE and (given.user_says is not None or given.user_agrees):
        _edit_user(ours, given)
    ours.save()
    audit("proposal.edited", project=ours.project, by=by, target=ours, kind=ours.kind)


def _edit_user(ours: TaskProposal, given: EditProposal) -> None:
    """Raises ProposalError if the task has no user who says anything."""
    if TURNS not in ours.metadata:
        raise ProposalError("Only the user of an episode says something.", "user_says")
    says = ours.metadata[SAYS] if given.user_says is None else given.user_says
    lines = [line for text in says if (line := " ".join(text.split()))]
    agrees = " ".join((given.user_agrees or standing_of(ours.metadata)).split())
    if (lines, agrees) == (ours.metadata[SAYS], standing_of(ours.metadata)):
        return
    ours.metadata = with_says(ours.metadata, lines, agrees) | {USER_BY: BY_HAND}
    ours.is_drafting, ours.draft_error = False, ""


def _left_of_draft(proposal: TaskProposal, points: Sequence[str]) -> list[str] | None:
    """The quotes of the points that are left of the judge's draft; None if these are others."""
    drafted = [without_number(point) for point in proposal.points]
    if proposal.source != JUDGE or not points or not set(points) <= set(drafted):
        return None
    quotes = dict(zip(drafted, proposal.metadata.get(drafting.POINTS, []), strict=False))
    return [quotes.get(point, "") for point in points]


def _checked(expected: dict[str, Any]) -> dict[str, Any]:
    try:
        return checked_expected(expected)
    except Bad as error:
        raise ProposalError(f"{error.field}: {error.message}", "expected") from error


@operation(
    "eval_proposals_undo",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/undo/", "proposal_undo"),
    gives=PROPOSAL,
    says={"proposal.undone": "took back a decision on a proposed task"},
    shows=SHOWS,
)
@transaction.atomic
def undo(*, proposal: TaskProposal, by: Any) -> None:
    """Proposes it again. Its task is removed from the draft; 409 if the task was changed,
    evaluated or frozen since. A failure that was confirmed with it stays confirmed.

    Raises EvalSetError.
    """
    ours = TaskProposal.objects.select_for_update(of=("self",)).get(pk=proposal.pk)
    if ours.state == ProposalState.PROPOSED:
        raise ProposalError("Nothing was decided on this proposal.")
    same = ours.project.task_proposals.filter(
        canonical_hash=ours.canonical_hash, state=ProposalState.PROPOSED
    )
    if same.exists():
        raise ProposalError("The same request has been proposed again since.")
    if task := Task.objects.select_related("eval_set", "project").filter(pk=ours.task_id).first():
        if fingerprint(task) != fingerprint(
            making.unsaved_task(ours, key=task.key, eval_set=task.eval_set)
        ):
            raise ProposalError("Its task was changed since. Remove the task in its set instead.")
        actions.remove_task(task=task, by=by)
    if ours.state == ProposalState.MERGED:
        back = [ours.trajectory_id]
        move_occurrences(ours.project, ours.looks_like, ours.canonical_hash, back)
    ours.state, ours.task, ours.decided_by, ours.decided_at = (
        ProposalState.PROPOSED,
        None,
        None,
        None,
    )
    ours.save(update_fields=["state", "task", "decided_by", "decided_at"])
    audit("proposal.undone", project=ours.project, by=by, target=ours, kind=ours.kind)


@operation(
    "eval_proposals_draft",
    rest=Rest("POST", "eval-proposals/<uuid:pk>/draft/", "proposal_draft", 202),
    gives=PROPOSAL,
    says={"proposal.draft_asked": "asked the judge for the rubric of a proposed task"},
    shows=SHOWS,
)
@transaction.atomic
def ask_for_draft(*, proposal: TaskProposal, by: Any) -> None:
    """Has the judge write a new draft of the rubric, within its daily budget. What was expected is
    replaced.

    Raises ProposalError.
    """
    ours = _locked(proposal)
    if drafting.judge_of(ours.project) is None:
        raise ProposalError(drafting.NO_JUDGE)
    ours.kind, ours.expected, ours.source = TaskKind.RUBRIC, {}, UNWRITTEN
    ours.metadata = without_user(ours.metadata)
    ours.warnings, ours.drafts_asked = [], ours.drafts_asked + 1
    ours.is_drafting, ours.draft_tries, ours.draft_error = True, 0, ""
    ours.drafted_at = None  # at once: a question that is under way is not asked twice
    ours.save()
    drafting.request(ours.project)
    audit("proposal.draft_asked", project=ours.project, by=by, target=ours, kind=ours.kind)


@dataclass(frozen=True)
class Confirmed:
    confirmed: int
    left: dict[str, str]

    def __str__(self) -> str:
        text = f"{self.confirmed:,} task{'' if self.confirmed == 1 else 's'} confirmed."
        reasons = list(dict.fromkeys(self.left.values()))
        return f"{text} {len(self.left):,} left: {' '.join(reasons[:3])}" if reasons else text


@operation(
    "eval_proposals_confirm_many",
    rest=Rest("POST", "eval-proposals/confirm/", "proposals_confirm"),
    gives=ConfirmedOut,
    shows=SHOWS,
)
def confirm_many(
    *, project: Project, by: Any, ids: ProposalIds, key: ApiKey | None = None
) -> Confirmed:
    """Confirms up to 200 proposals. One that cannot be confirmed is left, with the reason, which
    counts as a view if it says something about a hold-out.
    """
    rows = project.task_proposals.filter(pk__in=ids, state=ProposalState.PROPOSED)
    count, left = 0, {}
    for row in rows.select_related("project", "trajectory", "failure__mode"):
        try:
            confirm(proposal=row, by=by, key=key)
        except (actions.EvalSetError, Refused) as error:
            record_refusal(project, error, by=key or by)
            left[str(row.pk)] = str(error)
        else:
            count += 1
    return Confirmed(count, left)


def open_count(project: Project) -> int:
    """How many proposals wait for a person."""
    return project.task_proposals.filter(state=ProposalState.PROPOSED).count()


def last_decision(project: Project, by: Any) -> TaskProposal | None:
    """What this person's next undo takes back."""
    rows = project.task_proposals.filter(decided_by=by).exclude(state=ProposalState.PROPOSED)
    return rows.order_by("-decided_at").first()


def _locked(proposal: TaskProposal) -> TaskProposal:
    """Raises ProposalError unless it is still open."""
    rows = TaskProposal.objects.select_for_update(of=("self",))
    ours = rows.select_related("project", "trajectory", "failure__mode").get(pk=proposal.pk)
    if ours.state != ProposalState.PROPOSED:
        raise ProposalError(GONE)
    return ours


def _decided(
    proposal: TaskProposal, state: ProposalState, by: Any, task: Task | None = None
) -> None:
    proposal.state, proposal.task, proposal.decided_by = state, task, by
    proposal.decided_at = timezone.now()
    proposal.is_drafting = False
    proposal.save(update_fields=["state", "task", "decided_by", "decided_at", "is_drafting"])
