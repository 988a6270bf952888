"""Proposed tasks: their list, and one after another by keyboard. Each response has the next one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Case, Q, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.http import go
from apps.core.models import JobState, Project, Role
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER, TYPES, selection_of
from apps.core.routes import RUNS, SIDES, shows
from apps.evals import actions
from apps.evals.formats.rows import Bad, parsed_object
from apps.evals.holdout.view_log import record_refusal
from apps.evals.later_turns import LEFT_OUT, MOST_SAID, SAYS, standing_of
from apps.evals.models import ProposalJob, ProposalState, TaskProposal
from apps.evals.proposals import drafting, reviewing
from apps.evals.proposals.making import Proposed
from apps.evals.proposals.reviewing import EditProposal, ProposalError
from apps.evals.proposals.rubric import without_number
from apps.evals.proposals.same import occurrences, other_of, seen_in
from apps.failures.actions.decisions import Refused
from apps.failures.judge import rubrics
from apps.failures.models import FailureCluster
from apps.failures.pages import listing as failures
from apps.trajectories.pages.parts import Reader
from apps.trajectories.shown import runs_shown
from workers.lib.verifiers.by_task import form_of

REFUSALS = (actions.EvalSetError, Refused)
SHOWN_FOR = timedelta(minutes=10)  # after its end, what came of a job
DECISIONS = {"reject": reviewing.reject, "same": reviewing.merge}
MOST_SHOWN = 60  # messages of the failed run after the cut
WRITTEN = ("points", "expected", "user_says", "user_agrees")
CHANGED = (
    "Somebody else has changed this proposal in the meantime: it is shown above. What you wrote is"
    " still in the form; save again to replace theirs."
)
NOTHING_LEFT = "No proposed tasks are left to review."


@shows(f"{RUNS}; {SIDES}")
@project_view(query={"state": ProposalState.values, "page": PAGE_NUMBER})
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    state = request.GET.get("state") or ProposalState.PROPOSED
    rows = project.task_proposals.filter(state=state).select_related("trajectory", "task")
    page = page_of(request, rows.order_by("-created_at", "pk"))
    runs_shown(
        project,
        [row.trajectory_id for row in page],
        to=request.user,
        where="proposed tasks",
        previews=True,
    )
    judge = rubrics.current(project)
    drafting = sum(row.is_drafting and not row.draft_error for row in page) if judge else 0
    context = {
        "page": page,
        "state": state,
        "drafting": f"The judge is drafting {drafting} of these." if drafting else "",
        "states": ProposalState.choices,
        "left": reviewing.open_count(project),
        "seen": seen_in(project, [row.canonical_hash for row in page]),
        "may_write": request.membership.may(Role.ENGINEER),
        "without_judge": not judge,
        "last": reviewing.last_decision(project, request.user),
    } | _last_job(request)
    return render(request, "evals/proposals.html", context)


@shows(f"{RUNS}; {SIDES}")
@project_view()
def review(request: HttpRequest, project: Project) -> HttpResponse:
    """The first that is ready to be confirmed, or else the first."""
    found = _next(project)
    if found is None:
        return finished(request, project)
    return redirect(found.get_absolute_url())


@shows(f"{RUNS}; {SIDES}")
@project_view(query={"back": FLAG})
def step(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """The next proposal, or with `?back=1` the previous one."""
    here = _find(project, pk)
    other = _next(project, here, back=bool(request.GET.get("back")))
    if not request.htmx:
        return redirect((other or here).get_absolute_url())
    return show(request, other or here, note="" if other else "No other proposals.")


@shows(f"{RUNS}; {SIDES}")
@project_view()
def proposal(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    return show(request, _find(project, pk))


@shows(f"{RUNS}; {SIDES}")
@require_POST
@project_view(Role.ENGINEER)
def decide(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """Confirms, rejects, or says that it is the same as another, and shows the next."""
    found = _find(project, pk)
    act = next((act for name, act in DECISIONS.items() if name in request.POST), reviewing.confirm)
    return _after(request, found, lambda: act(proposal=found, by=request.user))


@shows(f"{RUNS}; {SIDES}")
@require_POST
@project_view(Role.ENGINEER)
def edit(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """Stores what is expected; with `confirm` it is confirmed as well."""
    found = _find(project, pk)

    def act() -> None:
        is_open, now = found.state == ProposalState.PROPOSED, _stamp(found)
        if is_open and request.POST.get("seen", now) != now:
            raise ProposalError(CHANGED)
        reviewing.edit(proposal=found, by=request.user, given=_edited(request))
        if "confirm" in request.POST:
            reviewing.confirm(proposal=found, by=request.user)

    return _after(request, found, act, stay="confirm" not in request.POST)


def _stamp(proposal: TaskProposal) -> str:
    """Differs once somebody has changed what the form of a proposal shows."""
    shown = (proposal.expected, proposal.metadata.get(SAYS), standing_of(proposal.metadata))
    return blake2b(json.dumps(shown, sort_keys=True).encode(), digest_size=8).hexdigest()


def _edited(request: HttpRequest) -> EditProposal:
    """Raises ProposalError."""
    user: dict[str, Any] = {}
    if "user_says" in request.POST:
        says = [line for line in request.POST["user_says"].splitlines() if line.strip()]
        if len(says) > MOST_SAID:
            raise ProposalError(f"The user says at most {MOST_SAID} sentences, one on each line.")
        user = {"user_says": says, "user_agrees": request.POST.get("user_agrees", "")}
    if "points" in request.POST:
        points = [line for line in request.POST["points"].splitlines() if line.strip()]
        if not points or len(points) > reviewing.MOST_POINTS:
            raise ProposalError(f"Write 1 to {reviewing.MOST_POINTS} points, one on each line.")
        return EditProposal(points=[without_number(line) for line in points], **user)
    try:
        expected = parsed_object(request.POST.get("expected", ""))
    except Bad as error:
        raise ProposalError(str(error)) from error
    return EditProposal(expected=expected, **user)


@shows(f"{RUNS}; {SIDES}")
@require_POST
@project_view(Role.ENGINEER)
def draft(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """Has the judge draft the rubric."""
    found = _find(project, pk)
    act = lambda: reviewing.ask_for_draft(proposal=found, by=request.user)  # noqa: E731
    return _after(request, found, act, stay=True)


@shows(f"{RUNS}; {SIDES}")
@require_POST
@project_view(Role.ENGINEER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    """Takes back this person's last decision, and shows what it was about."""
    last = reviewing.last_decision(project, request.user)
    if last is None:
        return finished(request, project, "Nothing to undo.")
    return _after(
        request,
        _find(project, last.pk),
        lambda: reviewing.undo(proposal=last, by=request.user),
        stay=True,
        note="Your last decision was undone.",
    )


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def confirm_many(request: HttpRequest, project: Project) -> HttpResponse:
    """Confirms the selected ones."""
    ids, _ = selection_of(request.POST, TYPES[UUID], {}, ())
    if ids:
        done = reviewing.confirm_many(
            project=project, by=request.user, ids=[UUID(pk) for pk in ids][: reviewing.MOST]
        )
        messages.success(request, str(done))
    return redirect("evals:proposals", project.slug)


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def of_cluster(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """Proposes the tasks of a cluster's newest failures."""
    cluster = get_object_or_404(FailureCluster, project=project, pk=pk)
    rows, what = cluster.failures.standing(), f"of the cluster {cluster.name}"
    return _propose(request, rows, what, reverse("failures:cluster", args=[project.slug, pk]))


@shows(SIDES)
@require_POST
@project_view(Role.ENGINEER)
def of_selection(request: HttpRequest, project: Project) -> HttpResponse:
    """Proposes the tasks of the failures that are selected in their list."""
    ids = failures.selection(request, project, request.POST)
    rows = project.failures.filter(pk__in=ids).standing()
    what = f"of {len(ids):,} chosen failures"
    return _propose(request, rows, what, reverse("failures:list", args=[project.slug]))


def _propose(request: HttpRequest, rows: Any, what: str, back: str) -> HttpResponse:
    project = request.project
    try:
        reviewing.of_failures(project=project, rows=rows, by=request.user, what=what)
    except actions.EvalSetError as error:
        record_refusal(project, error, by=request.user)
        messages.error(request, str(error))
        return redirect(back)
    return redirect("evals:proposals", project.slug)


def _last_job(request: HttpRequest) -> dict[str, Any]:
    """What this person had proposed last, if that has not ended long ago."""
    own = ProposalJob.objects.filter(project=request.project, created_by=request.user)
    job = own.order_by("-created_at").first()
    if job is None or (job.finished_at and job.finished_at < timezone.now() - SHOWN_FOR):
        return {"job": None}
    is_done = job.state == JobState.SUCCEEDED
    return {"job": job, "proposed": str(Proposed(**job.result)) if is_done else ""}


# Building the responses


def _find(project: Project, pk: Any) -> TaskProposal:
    rows = TaskProposal.objects.select_related("project", "trajectory", "failure__mode", "task")
    return get_object_or_404(rows, project=project, pk=pk)


def _open(project: Project) -> Any:
    return project.task_proposals.filter(state=ProposalState.PROPOSED)


def _next(
    project: Project, here: TaskProposal | None = None, *, back: bool = False
) -> TaskProposal | None:
    """The next one to review, or from the last one the first: those that say what is expected, then
    those that are still to be written, then those with warnings, each in the order in which they
    were proposed.
    """
    rank = Case(When(expected={}, then=1), When(warnings__len__gt=0, then=2), default=0)
    rows = _open(project).annotate(rank=rank).order_by("rank", "created_at", "pk")
    if here is None:
        return rows.first()
    at, created = 1 if not here.expected else 2 if here.warnings else 0, here.created_at
    after = Q(rank__gt=at) | Q(rank=at) & (
        Q(created_at__gt=created) | Q(created_at=created, pk__gt=here.pk)
    )
    others = rows.exclude(pk=here.pk)
    if back:
        return others.exclude(after).last() or others.last()
    return others.filter(after).first() or others.first()


def _after(
    request: HttpRequest,
    found: TaskProposal,
    act: Callable[[], Any],
    *,
    stay: bool = False,
    note: str = "",
) -> HttpResponse:
    """Runs the action and responds with the next proposal; if it is refused, with the same one and
    the reason.
    """
    try:
        act()
    except REFUSALS as error:
        record_refusal(found.project, error, by=request.user)
        return show(request, _find(found.project, found.pk), error=str(error), kept=request.POST)
    if stay:
        return show(request, _find(found.project, found.pk), note=note)
    other = _next(found.project, found)
    if other is None:
        return finished(request, found.project)
    return show(request, _find(found.project, other.pk))


def finished(request: HttpRequest, project: Project, said: str = NOTHING_LEFT) -> HttpResponse:
    if request.htmx:
        return render(request, "evals/_proposals_none.html", {"said": said})
    messages.success(request, said)
    return go(request, reverse("evals:proposals", args=[project.slug]))


def show(
    request: HttpRequest,
    found: TaskProposal,
    *,
    note: str = "",
    error: str = "",
    kept: Mapping[str, Any] = MappingProxyType({}),
) -> HttpResponse:
    """A proposal: the page, or for htmx its fragment."""
    project, form = found.project, form_of(found.expected)
    like = other_of(found)
    runs = [row.trajectory_id for row in (found, like) if row and row.trajectory_id]
    runs_shown(project, runs, to=request.user, where="a proposed task")
    reader, failure = Reader(found.trajectory), found.failure
    blamed, quotes = failure and failure.blamed_message, found.metadata.get(drafting.POINTS) or []
    context = {
        "proposal": found,
        "row": found.trajectory,
        "failure": failure,
        "prompt": reader.prompt(),
        "went_on": reader.turns_from(found.cut, MOST_SHOWN, blamed),
        "not_shown": max(0, found.trajectory.message_count - found.cut - MOST_SHOWN),
        "goes_on_at": found.cut + MOST_SHOWN,
        "blamed": blamed,
        "shows_blamed": blamed in range(found.cut, found.cut + MOST_SHOWN),
        "evidence": failure.evidence if failure else [],
        "left": reviewing.open_count(project),
        "seen": seen_in(project, [found.canonical_hash]).get(found.canonical_hash, 0),
        "occurrences": list(occurrences(project, found.canonical_hash)),
        "like": like,
        "points": list(enumerate(_with_quotes(found.points, quotes), 1)),
        "is_rubric": form in (None, "rubric"),
        "calls": _calls(found.expected),
        "lookups": found.expected.get("lookups"),
        "says": found.metadata.get(SAYS),
        "says_text": "\n".join(found.metadata.get(SAYS, ())),
        "agrees": standing_of(found.metadata),
        "left_out": found.metadata.get(LEFT_OUT, []),
        "numbered_from": found.cut - len(found.messages),
        "may_write": request.membership.may(Role.ENGINEER),
        "tried_again_at": drafting.tried_again_at(found),
        "judge": rubrics.current(project),
        "note": note,
        "error": error,
        "kept": {name: text for name in WRITTEN if (text := kept.get(name, "").strip())},
        "stamp": _stamp(found),
        "is_open": found.state == ProposalState.PROPOSED,
    }
    template = "_proposal" if request.htmx else "proposal"
    response = render(request, f"evals/{template}.html", context, status=200)
    if request.htmx:
        response["HX-Replace-Url"] = found.get_absolute_url()
    response["Cache-Control"] = "private, no-cache"
    patch_vary_headers(response, ["HX-Request"])
    return response


def _with_quotes(points: list[str], quotes: list[str]) -> list[tuple[str, str]]:
    padded = [*quotes, *[""] * len(points)]
    return [(without_number(point), padded[at]) for at, point in enumerate(points)]


def _calls(expected: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The expected calls, with each argument in one line; None if something else is expected."""
    if "calls" not in expected and "tool" not in expected:
        return None
    return [
        call | {"lines": [(name, _in_one_line(value)) for name, value in call["args"].items()]}
        for call in expected.get("calls", [expected])
    ]


def _in_one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
