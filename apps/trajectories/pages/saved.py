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
from apps.core.query import refuse_invalid
from apps.trajectories.actions import people
from apps.trajectories.filters import OF_LISTS, without
from apps.trajectories.models import SavedView


@require_POST
@project_view(Role.REVIEWER)
def save(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.POST
    refuse_invalid(QueryDict(given.get("query", "")), OF_LISTS, by_form=True)
    try:
        view = people.save_view(
            project=project,
            name=given.get("name", ""),
            query=given.get("query", ""),
            shared="shared" in given,
            by=request.user,
        )
    except people.ViewError as error:
        messages.error(request, str(error))
        return redirect(
            f"{reverse('trajectories:list', args=[project.slug])}?{without(QueryDict(given.get('query', '')))}"  # noqa: E501
        )
    return redirect(f"{reverse('trajectories:list', args=[project.slug])}?{view.query}")


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
    return redirect("trajectories:list", project.slug)
