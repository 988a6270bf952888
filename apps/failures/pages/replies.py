"""The forms that tool replies have in recent runs: people say which tell that a call failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.following import ASKED, asked_at
from apps.core.models import Project, Role
from apps.core.operations.pages import NOT_DONE, submitted
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.core.routes import RUNS, shows
from apps.failures.actions import reply_decisions
from apps.failures.judge import rubrics
from apps.failures.models import ReplyForm
from apps.failures.replies import State, listed_forms
from apps.failures.rules.findings import cut
from apps.failures.rules.statements import RECENT
from apps.failures.unconfirmed import unconfirmed
from apps.trajectories.models import with_content
from apps.trajectories.shown import runs_shown
from workers.lib.messages import text_of

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
    examples = {row.pk: row.examples for row in shown}
    runs = {run for those in examples.values() for run, _ in those}
    runs_shown(project, runs, to=request.user, where="tool replies")
    texts = _replies(project, examples)
    context = {
        "page": shown,
        "rows": [(row, texts[row.pk], alike.get(_known_by(row), [])) for row in shown],
        "proposed": [row.pk for row in rows.filter(state=State.PROPOSED)],
        "state": state,
        "states": [(value.value, value.label) for value in State],
        "recent": RECENT,
        "there": rows.exists(),
        "unconfirmed": unconfirmed(project),
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


Example = tuple[UUID, int]


def _replies(
    project: Project, examples: Mapping[int, Sequence[Example]]
) -> dict[int, list[tuple[UUID, int, str]]]:
    """{form: (run, message, text) of the replies that are its examples}"""
    those = {run for of_form in examples.values() for run, _ in of_form}
    runs = {run.pk: run for run in with_content(list(project.trajectories.filter(pk__in=those)))}
    found: dict[int, list[tuple[UUID, int, str]]] = {}
    for pk, of_form in examples.items():
        found[pk] = []
        for run, at in of_form:
            said = runs[run].content["messages"] if run in runs else []
            if at < len(said):
                found[pk].append((run, at, cut(text_of(said[at]), LONGEST_EXAMPLE)))
    return found


@require_POST
@project_view(Role.REVIEWER)
def decide(request: HttpRequest, project: Project) -> HttpResponse:
    """Answers htmx with the row's new state alone: the page moves on to the next row."""
    form, returned = submitted(request, reply_decisions.decide)
    error = " ".join(problem for field in form.errors.values() for problem in field)
    if request.htmx:
        row = listed_forms(project).filter(pk__in=form.cleaned_data.get("forms", ())).first()
        context = {"row": row, "error": error, "may_write": True} | _to_review(project)
        return render(request, "failures/_reply_decided.html", context | {"swap": True})
    if returned is NOT_DONE:
        messages.error(request, error)
    else:
        messages.success(
            request, f"Decided on {returned.decided} forms. Runs are classified again."
        )
    return redirect("failures:replies", project.slug)


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    count = reply_decisions.undo(project=project, by=request.user)
    messages.info(request, "Your last decision was undone." if count else "Nothing to undo.")
    return redirect("failures:replies", project.slug)
