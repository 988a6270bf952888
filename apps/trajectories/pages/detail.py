"""One trajectory: what was said, when, what was wrong, what people think of it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.operations import form_of
from apps.core.query import whole_number
from apps.core.routes import RUNS, shows
from apps.core.timeouts import TooLong, patience
from apps.trajectories import schema
from apps.trajectories.actions import feedback as feedback_actions
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.actions.scores import give
from apps.trajectories.api import as_json
from apps.trajectories.decoding import RowError
from apps.trajectories.filters import OF_LISTS, apply_filters, without
from apps.trajectories.models import Outcome, Score, Step, Trajectory
from apps.trajectories.notices import by_kind, notices_of
from apps.trajectories.pages.parts import Reader
from apps.trajectories.pages.transcript import fit
from apps.trajectories.pages.waterfall import waterfall
from apps.trajectories.schema import Feedback
from apps.trajectories.shown import runs_shown
from workers.lib.messages import functions_of

NEIGHBOURS_MS = 500
SHOWN_WARNINGS = 20
SHOWN_SCORES = 100
SHOWN_REVISION = 100_000  # characters
MAX_WORDS = 20_000


def find(project: Project, pk: UUID) -> Trajectory:
    return get_object_or_404(
        Trajectory.objects.select_related("failure__mode", "eval_claim"), project=project, pk=pk
    )


def blamed_of(row: Trajectory) -> int | None:
    failure = getattr(row, "failure", None)
    return failure.blamed_message if failure else None


@shows(RUNS)
@project_view(query=OF_LISTS)
def detail(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    row = find(project, pk)
    runs_shown(project, [pk], to=request.user, where="run")
    reader, blamed = Reader(row), blamed_of(row)
    opened = reader.opened_at(0, blamed)  # first: the head is in what it reads
    newer, older = neighbours(apply_filters(project.trajectories.all(), request.GET), row)
    return render(
        request,
        "trajectories/detail.html",
        {
            "row": row,
            "failure": getattr(row, "failure", None),
            "claim": getattr(row, "eval_claim", None),
            "blamed": blamed,
            "last_index": max(0, row.message_count - 1),
            "tools": [
                (name, tool.get("x-dangerous") is True)
                for name, tool in functions_of(reader.head["tools"])
            ],
            "warnings": by_kind(reader.head["warnings"])[:SHOWN_WARNINGS],
            "metadata": {
                key: value for key, value in reader.head["metadata"].items() if key != "steps"
            },
            "notices": notices_of(row, reader.head["metadata"]),
            "waterfall": waterfall(reader.head["metadata"]),
            "newer": newer,
            "older": older,
            "query": without(request.GET),
            "revisions": row.revisions.defer("content")[:20],
            "tasks": row.tasks.select_related("eval_set")[:20],
            "scores": _scores(row),
            "score_form": form_of(give.operation)(target=row),
            "outcomes": Outcome.choices,
            "may_write": request.membership.may(Role.REVIEWER),
            "replay": pk if request.membership.may(Role.ENGINEER) else None,
            **opened,
        },
    )


def _scores(row: Trajectory) -> list[tuple[Score, str]]:
    """With the names of the steps that they are of."""
    scores = list(row.scores()[:SHOWN_SCORES])
    steps = Step.objects.filter(project=row.project_id, trajectory_id=row.pk)
    keys = {score.step for score in scores if score.step}
    names = dict(steps.filter(key__in=keys).values_list("key", "name")) if keys else {}
    return [(score, names.get(score.step, score.step)) for score in scores]


def neighbours(rows: QuerySet[Trajectory], row: Trajectory) -> tuple[UUID | None, UUID | None]:
    """(newer, older) within the filters; none where looking for them takes too long."""
    try:
        with patience(NEIGHBOURS_MS):
            ids = rows.values_list("pk", flat=True)
            return (
                ids.filter(pk__gt=row.pk).order_by("pk").first(),
                ids.filter(pk__lt=row.pk).order_by("-pk").first(),
            )
    except TooLong:
        return None, None


@shows(RUNS)
@project_view()
def part(request: HttpRequest, project: Project, pk: UUID, first: int) -> HttpResponse:
    row = find(project, pk)
    return show_part(request, row, first, where="run", blamed=blamed_of(row))


def show_part(
    request: HttpRequest,
    row: Trajectory,
    first: int,
    *,
    where: str,
    blamed: int | None,
    **context: Any,
) -> HttpResponse:
    """The messages of one part of a long run; pages of higher layers that show the run add to the
    context.
    """
    reader = Reader(row)
    if first not in reader.firsts:
        raise Http404
    runs_shown(request.project, [row.pk], to=request.user, where=where)
    context |= {
        "turns": fit(reader.turns(reader.firsts.index(first), blamed)),
        "first": first,
        "replay": row.pk if request.membership.may(Role.ENGINEER) else None,
    }
    return render(request, "trajectories/_part.html", context)


@shows(RUNS)
@project_view(query={"message": whole_number(0)})
def raw(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    """The trajectory as JSON, as it can be sent again; with `?message=` one message."""
    row = get_object_or_404(Trajectory, project=project, pk=pk)
    runs_shown(project, [pk], to=request.user, where="run")
    reader = Reader(row)
    if (index := whole(request.GET.get("message"))) is not None:
        message = reader.message(index)
        if message is None:
            raise Http404
        return JsonResponse(message, json_dumps_params={"indent": 2, "ensure_ascii": False})
    row.content = reader.head | {"messages": []}
    return StreamingHttpResponse(reader.as_json(as_json(row)), content_type="application/json")


@shows(RUNS)
@project_view()
def revision(request: HttpRequest, project: Project, pk: UUID, number: int) -> HttpResponse:
    row = get_object_or_404(Trajectory, project=project, pk=pk)
    found = get_object_or_404(row.revisions, pk=number)
    runs_shown(project, [pk], to=request.user, where="run")
    text = json.dumps(found.content, indent=2, ensure_ascii=False)
    context = {"text": text[:SHOWN_REVISION], "cut": max(0, len(text) - SHOWN_REVISION)}
    return render(request, "trajectories/_revision.html", context)


@require_POST
@project_view(Role.REVIEWER, query=OF_LISTS)
def feedback(request: HttpRequest, project: Project, pk: UUID) -> HttpResponse:
    row = get_object_or_404(Trajectory, project=project, pk=pk)
    back = redirect(
        f"{reverse('trajectories:detail', args=[project.slug, pk])}?{request.GET.urlencode()}"
    )
    try:
        news = schema.parse(redactor_of(project).redact(_news(request.POST, row))[0], Feedback)
    except RowError as error:
        messages.error(request, f"The feedback is invalid: {error}")
        return back
    if not (news.outcome or news.comment or news.corrected is not None):
        messages.error(request, "Enter an outcome, a comment or an expected answer.")
        return back
    try:
        feedback_actions.give(trajectory=row, news=news, by=request.user)
    except feedback_actions.DeletedError as error:
        raise Http404 from error
    messages.success(request, "Feedback saved.")
    return back


def _news(given: Any, row: Trajectory) -> dict[str, Any]:
    """What the form says as the API's feedback; what was right may be JSON or words."""
    news: dict[str, Any] = {"comment": given.get("comment", "").strip()[:MAX_WORDS]}
    if outcome := given.get("outcome"):
        # The reasons for another outcome are none for this one.
        reset = {} if outcome == row.outcome_status else {"reward": None, "label": "", "reason": ""}
        news["outcome"] = {"status": outcome, **reset}
    if corrected := given.get("corrected", "").strip()[:MAX_WORDS]:
        try:
            news["corrected"] = json.loads(corrected)
        except (ValueError, RecursionError):
            news["corrected"] = corrected
    if (index := whole(given.get("message_index", "").strip())) is not None:
        news["message_index"] = min(index, row.message_count - 1)
    return news
