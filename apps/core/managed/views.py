"""One page for the objects of `managed`: rename, archive, delete, with what depends on them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.auditing.words import page_of_row
from apps.core.bus import first
from apps.core.managed import objects as managed
from apps.core.managed.objects import ManagedError
from apps.core.models import Project, Role


@project_view(Role.ENGINEER)
def manage(request: HttpRequest, project: Project, kind: str, pk: str) -> HttpResponse:
    how, row = managed.find(project, kind, pk)
    return _page(request, project, how, row)


def _page(
    request: HttpRequest, project: Project, how: managed.Managed, row: Any, **more: Any
) -> HttpResponse:
    request.section = how.listing.split(":")[0]  # type: ignore[attr-defined]
    context = {
        "how": how,
        "row": row,
        "name": getattr(row, how.name),
        "page": page_of_row(row, project.slug),
        "depends": managed.dependents(row),
        "instead": managed.instead_of_deletion(row),
        "not_renamed": first(managed.WhyNotRename(row)),
        "not_archived": first(managed.WhyNotArchive(row)),
        "may_archive": request.membership.may(how.archivers),  # type: ignore[attr-defined]
    }
    return render(request, "core/manage.html", context | more)


@require_POST
@project_view(Role.ENGINEER)
def rename(request: HttpRequest, project: Project, kind: str, pk: str) -> HttpResponse:
    how, row = managed.find(project, kind, pk)
    name = request.POST.get("name", "")
    try:
        managed.rename(managed=how, row=row, name=name, by=request.user)
    except ManagedError as error:
        return _page(request, project, how, row, problem=str(error), name=name)
    messages.success(request, f"Renamed to {row}.")
    return redirect("core:manage", project.slug, kind, pk)


@require_POST
@project_view(Role.ENGINEER)
def archive(request: HttpRequest, project: Project, kind: str, pk: str) -> HttpResponse:
    how, row = managed.find(project, kind, pk)
    back = "back" in request.POST
    try:
        managed.archive(managed=how, row=row, back=back, by=request.user)
        messages.success(request, f"{row} is {'active again' if back else 'archived'}.")
    except ManagedError as error:
        messages.error(request, str(error))
    return redirect("core:manage", project.slug, kind, pk)


@require_POST
@project_view(Role.OWNER)
def delete(request: HttpRequest, project: Project, kind: str, pk: str) -> HttpResponse:
    how, row = managed.find(project, kind, pk)
    try:
        managed.delete(managed=how, row=row, by=request.user)
    except ManagedError as error:
        messages.error(request, str(error))
        return redirect("core:manage", project.slug, kind, pk)
    messages.success(request, f"{row} is deleted.")
    return redirect(how.listing, project.slug)
