"""Changes of many trajectories from the list, and taking the last one back."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.routes import RUNS, shows
from apps.trajectories.actions import bulk
from apps.trajectories.actions.bulk import BulkError
from apps.trajectories.filters import without
from apps.trajectories.models import BulkChange
from apps.trajectories.pages.listing import UNDO, selection, undo_of
from apps.trajectories.shown import runs_shown


@shows(RUNS)
@require_POST
@project_view(Role.REVIEWER)
def change_many(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.POST
    back = redirect(
        f"{reverse('trajectories:list', args=[project.slug])}?{without(QueryDict(given.get('query', '')))}"  # noqa: E501
    )
    ids = selection(given, project)
    if not ids:
        messages.error(request, "No trajectories selected.")
        return back
    if given.get("do") == "delete":
        return _delete(request, project, ids, back)
    try:
        change = _do(project, given, ids, request.user)
    except BulkError as error:
        messages.error(request, str(error))
        return back
    request.session[UNDO] = change.pk
    if not change.n:
        messages.success(request, str(change))
    return back


def _do(project: Project, given: QueryDict, ids: list, by: object) -> BulkChange:
    if given.get("do") == "outcome":
        return bulk.set_outcome(project=project, ids=ids, outcome=given.get("outcome", ""), by=by)
    if given.get("do") not in ("tag", "untag"):
        raise BulkError("Choose an action.")
    act = getattr(bulk, given["do"])
    return act(project=project, ids=ids, tag=given.get("tag", ""), by=by)


def _delete(request: HttpRequest, project: Project, ids: list, back: HttpResponse) -> HttpResponse:
    """Asks first: the person confirms the number."""
    if not request.membership.may(Role.OWNER):
        raise PermissionDenied("Only project owners can delete trajectories.")
    if request.POST.get("confirm") != str(len(ids)):
        runs_shown(project, ids[:5], to=request.user, where="deletion", previews=True)
        context = {
            "n": len(ids),
            "ids": ",".join(map(str, ids)),
            "query": request.POST.get("query", ""),
            "some": project.trajectories.filter(pk__in=ids[:5]),
        }
        return render(request, "trajectories/delete.html", context)
    n = bulk.delete(project=project, ids=ids, by=request.user)
    messages.success(
        request, "1 trajectory deleted." if n == 1 else f"{n:,} trajectories are deleted."
    )
    return back


@require_POST
@project_view(Role.REVIEWER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    change = undo_of(request, project)
    if change is None:
        messages.info(request, "Nothing to undo.")
    else:
        n = bulk.undo(project=project, change=change, by=request.user)
        messages.success(
            request, f"Undone for {n:,} of {change.n:,}." if n < change.n else "Undone."
        )
        del request.session[UNDO]
    query = without(QueryDict(request.POST.get("query", "")))
    return redirect(f"{reverse('trajectories:list', args=[project.slug])}?{query}")


@require_POST
@project_view(Role.REVIEWER)
def keep(request: HttpRequest, project: Project) -> HttpResponse:
    """The last change stays: its offer to undo goes away."""
    request.session.pop(UNDO, None)
    query = without(QueryDict(request.POST.get("query", "")))
    return redirect(f"{reverse('trajectories:list', args=[project.slug])}?{query}")
