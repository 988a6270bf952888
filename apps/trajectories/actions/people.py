"""What people keep for themselves on the pages of trajectories: saved views."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories.filters import normal
from apps.trajectories.models import SavedView

MAX_QUERY, MAX_VIEWS = 4_000, 100


class ViewError(Exception):
    """A view that cannot be saved; the message is for the person."""


@transaction.atomic
def save_view(
    *,
    project: Project,
    name: str,
    query: str,
    shared: bool,
    by: Any,
    page: SavedView.Page = SavedView.Page.RUNS,
) -> SavedView:
    """Of one name a person has one on a page: saving again replaces it. Raises ViewError."""
    name, query = " ".join(name.split()), normal(query)
    if not 0 < len(name) <= 80:
        raise ViewError("Give the view a name of at most 80 characters.")
    if len(query) > MAX_QUERY:
        raise ViewError("These filters are too long to save.")
    mine = SavedView.objects.filter(project=project, by=by, page=page)
    if mine.exclude(name=name).count() >= MAX_VIEWS:
        raise ViewError(f"You have {MAX_VIEWS} views; delete one first.")
    view, _ = SavedView.objects.update_or_create(
        project=project,
        by=by,
        page=page,
        name=name,
        defaults={"query": query, "shared": shared},
    )
    audit("view.saved", project=project, by=by, target=view, name=name, shared=shared)
    return view


@transaction.atomic
def delete_view(*, view: SavedView, by: Any) -> None:
    audit("view.deleted", project=view.project, by=by, target=view, name=view.name)
    view.delete()
