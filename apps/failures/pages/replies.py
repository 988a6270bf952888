"""The forms that tool replies have in recent runs: people say which tell that a call failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.following import ASKED, asked_at
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import reply_decisions
from apps.failures.actions.reply_decisions import ReplyDecision, ReplyFormError
from apps.failures.judge import rubrics
from apps.failures.models import ReplyForm
from apps.failures.replies import State, listed_forms
from apps.failures.rules.findings import cut
from apps.failures.rules.statements import RECENT
from apps.trajectories.models import Trajectory, with_content
from apps.trajectories.shown import runs_shown
from workers.lib.messages import text_of
from workers.lib.typed import FormError, convert

LONGEST_EXAMPLE = 300


@shows(RUNS)
@project_view(query={"state": list(State), "page": PAGE_NUMBER} | ASKED)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    """All forms, or `?state=` those in one state."""
    state = request.GET.get("state", "")
    rows, alike = listed_forms(project), defaultdict(list)
    for row in rows.filter(state__in=(State.SEEN, State.PROPOSED)):
        alike[_known_by(row)].append(row.pk)
    shown = page_of(request, rows.filter(state=state) if state in State else rows)
    runs = {row.trajectory_id for row in shown if row.trajectory_id}
    runs_shown(project, runs, to=request.user, where="tool replies")
    texts = _replies(shown)
    context = {
        "page": shown,
        "rows": [(row, texts.get(row.pk), alike.get(_known_by(row), [])) for row in shown],
        "proposed": [row.pk for row in rows.filter(state=State.PROPOSED)],
        "state": state,
        "states": [(value.value, value.label) for value in State],
        "recent": RECENT,
        "there": rows.exists(),
        "may_write": request.membership.may(Role.REVIEWER),
    } | _to_review(project)
    context["is_looking"] = _is_looking(request, project, has_judge=bool(context["judge"]))
    return render(request, "failures/replies.html", context)


def _is_looking(request: HttpRequest, project: Project, *, has_judge: bool) -> bool:
    """Whether the look that this page asked for is not done: the judge's answer ends it."""
    if not (asked := asked_at(request)):
        return False
    rows = listed_forms(project)
    unread = rows.filter(read_at=None, state=State.SEEN).exclude(error__gt="", asked_at__gte=asked)
    return unread.exists() if has_judge and rows.exists() else not rows.exists()


def _to_review(project: Project) -> dict[str, Any]:
    """With a judge, those that it proposes; without one, all that nobody has decided on."""
    judge = rubrics.current(project)
    open_states = (State.PROPOSED,) if judge else (State.PROPOSED, State.SEEN)
    return {"judge": judge, "waiting": listed_forms(project).filter(state__in=open_states).count()}


def _known_by(row: ReplyForm) -> tuple[str, str, str]:
    """The same for the same form of several tools."""
    return row.kind, row.structure, str(row.values)


def _replies(rows: Iterable[ReplyForm]) -> dict[int, str]:
    """{form: the reply that is its example}"""
    those = {row.trajectory_id for row in rows}
    runs = {run.pk: run for run in with_content(list(Trajectory.objects.filter(pk__in=those)))}
    found = {}
    for row in rows:
        said = runs[row.trajectory_id].content["messages"] if row.trajectory_id in runs else []
        if row.reply_index is not None and row.reply_index < len(said):
            found[row.pk] = cut(text_of(said[row.reply_index]), LONGEST_EXAMPLE)
    return found


@require_POST
@project_view(Role.REVIEWER)
def decide(request: HttpRequest, project: Project) -> HttpResponse:
    """Answers htmx with the row's new state alone: the page moves on to the next row."""
    sent, error = {"state": request.POST.get("state", "")}, ""
    try:
        given = convert(sent | {"forms": _numbers(request.POST.getlist("form"))}, ReplyDecision)
        decided = reply_decisions.decide(project=project, by=request.user, given=given).decided
    except (ReplyFormError, FormError) as refused:
        decided, error = 0, str(refused)
    if request.htmx:
        row = listed_forms(project).filter(pk__in=_numbers(request.POST.getlist("form"))).first()
        context = {"row": row, "error": error, "may_write": True} | _to_review(project)
        return render(request, "failures/_reply_decided.html", context | {"swap": True})
    if error:
        messages.error(request, error)
    else:
        messages.success(request, f"Decided on {decided} forms. Runs are classified again.")
    return redirect("failures:replies", project.slug)


def _numbers(given: Iterable[str]) -> list[int]:
    return [int(text) for text in given if text.isascii() and text.isdecimal() and len(text) < 19]


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    count = reply_decisions.undo(project=project, by=request.user)
    messages.info(request, "Your last decision was undone." if count else "Nothing to undo.")
    return redirect("failures:replies", project.slug)
