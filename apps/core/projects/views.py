"""Settings → Project: rename, archive, delete."""

from __future__ import annotations

from datetime import timedelta

from django.apps import apps
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.auditing.words import page_of
from apps.core.forms import RenameProjectForm
from apps.core.models import Project, ProjectDeletion, Role
from apps.core.nouns import lists, noun, title_of
from apps.core.projects import lifecycle
from apps.core.projects.deletion import active_jobs, rows_of
from apps.core.projects.lifecycle import LifecycleError


def _named(project: Project) -> list[tuple[int, str, str]]:
    """(how many, of what, address of the list) of what goes with a project and has a list."""
    found = []
    for label, page in lists().items():
        model = apps.get_model(label)
        if n := rows_of(model, project).count():
            found.append((n, noun(model, n), reverse(page, args=[project.slug])))
    return found


@project_view(Role.OWNER)
def project(request: HttpRequest, project: Project) -> HttpResponse:
    form = RenameProjectForm(request.POST or None, instance=project)
    if request.method == "POST" and form.is_valid():
        try:
            renamed = lifecycle.rename(project=project, by=request.user, **form.cleaned_data)
        except LifecycleError as error:
            form.add_error(error.field, str(error))
        else:
            messages.success(request, "Saved.")
            return redirect("core:project", renamed.slug)
    project.refresh_from_db()  # the form has written into it
    return render(request, "core/project.html", {"form": form, "jobs": _listed(project)})


def _listed(project: Project) -> list[tuple[str, str]]:
    """(name, address) of the jobs under way."""
    found = active_jobs(project)
    return [
        (title_of(job), page_of(job._meta.label_lower, str(job.pk), project.slug)) for job in found
    ]


@require_POST
@project_view(Role.OWNER, archived=True)
def archive(request: HttpRequest, project: Project) -> HttpResponse:
    try:
        if "back" in request.POST:
            lifecycle.unarchive(project=project, by=request.user)
            messages.success(request, f"{project} is active again.")
        else:
            lifecycle.archive(project=project, by=request.user)
            messages.success(request, f"{project} is archived.")
    except LifecycleError as error:
        messages.error(request, str(error))
    return redirect("core:project", project.slug)


@project_view(Role.OWNER, archived=True)
def delete(request: HttpRequest, project: Project) -> HttpResponse:
    """Says first what goes, and what notices."""
    problem = ""
    if request.method == "POST":
        try:
            lifecycle.delete(
                project=project, confirm=request.POST.get("confirm", ""), by=request.user
            )
            return redirect("core:deletion", project.slug)
        except LifecycleError as error:
            problem = str(error)
    week = timezone.now() - timedelta(days=7)
    context = {
        "named": _named(project),
        "keys": project.api_keys.live().filter(last_used_at__gte=week).order_by("-last_used_at"),
        "jobs": _listed(project),
        "members": project.memberships.count(),
        "problem": problem,
    }
    return render(request, "core/delete_project.html", context)


@project_view(archived=True, deleted=True)
def deletion(request: HttpRequest, project: Project) -> HttpResponse:
    """How far it is; of a deleted project, what is left."""
    job = ProjectDeletion.objects.filter(project=project).order_by("-created_at").first()
    if job is None:
        return redirect(project)
    page = "core/_deletion.html" if request.htmx else "core/deletion.html"  # type: ignore[attr-defined]
    return render(request, page, {"job": job})


@require_POST
@project_view(Role.OWNER, archived=True, deleted=True)
def try_again(request: HttpRequest, project: Project) -> HttpResponse:
    job = ProjectDeletion.objects.filter(project=project).order_by("-created_at").first()
    if job and lifecycle.try_again(deletion=job, by=request.user):
        messages.success(request, "The deletion continues.")
    return redirect("core:deletion", project.slug)
