"""Saved views of the list."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.query import Query, refuse_invalid
from apps.trajectories.actions import people
from apps.trajectories.filters import OF_LISTS, without
from apps.trajectories.models import SavedView
from apps.trajectories.pages.steps import QUERY

PAGES: dict[SavedView.Page, tuple[Query, str]] = {
    SavedView.Page.RUNS: (OF_LISTS, "trajectories:list"),
    SavedView.Page.STEPS: (QUERY, "trajectories:steps"),
}


@require_POST
@project_view(Role.REVIEWER)
def save(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.POST
    page = (
        SavedView.Page.STEPS if given.get("page") == SavedView.Page.STEPS else SavedView.Page.RUNS
    )
    known, route = PAGES[page]
    address = reverse(route, args=[project.slug])
    refuse_invalid(QueryDict(given.get("query", "")), known, by_form=True)
    try:
        view = people.save_view(
            project=project,
            name=given.get("name", ""),
            query=given.get("query", ""),
            shared="shared" in given,
            by=request.user,
            page=page,
        )
    except people.ViewError as error:
        messages.error(request, str(error))
        return redirect(f"{address}?{without(QueryDict(given.get('query', '')))}")
    return redirect(f"{address}?{view.query}")


@require_POST
@project_view(Role.REVIEWER)
def delete(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """One's own; an owner also deletes what others share."""
    seen = SavedView.objects.filter(Q(by=request.user) | Q(shared=True), project=project)
    view = get_object_or_404(seen, pk=pk)
    if view.by_id == request.user.pk or request.membership.may(Role.OWNER):
        people.delete_view(view=view, by=request.user)
        messages.success(request, f"The view “{view.name}” is deleted.")
    else:
        messages.error(
            request, f"The view “{view.name}” is {view.by}'s; they or an owner can delete it."
        )
    return redirect(PAGES[SavedView.Page(view.page)][1], project.slug)
