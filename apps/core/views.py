from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core import actions
from apps.core.access import project_view
from apps.core.attempts import locks_of
from apps.core.forms import KeyForm, MemberForm, ProjectForm
from apps.core.models import ApiKey, Membership, Project, Role
from apps.core.paging import page_of


@login_required
def projects(request: HttpRequest) -> HttpResponse:
    rows = Project.objects.visible_to(request.user)
    if len(rows) == 1 and "all" not in request.GET and request.method == "GET":
        return redirect("dashboard:home", rows[0].slug)
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        project = actions.create_project(by=request.user, **form.cleaned_data)
        return redirect("dashboard:home", project.slug)
    return render(request, "core/projects.html", {"projects": rows, "form": form})


@project_view(Role.OWNER)
def settings(request: HttpRequest, project: Project) -> HttpResponse:
    events = project.audit_events.select_related("actor")
    members = list(project.memberships.select_related("user").order_by("user__username"))
    actions_seen = list(project.audit_events.order_by("action").values_list("action", flat=True).distinct())
    if (action := request.GET.get("action")) in actions_seen:
        events = events.filter(action=action)
    return render(
        request,
        "core/settings.html",
        {
            "roles": Role,
            "members": members,
            "locked": locks_of([member.user.get_username() for member in members]),
            "page": page_of(request, events, 30),
            "actions": actions_seen,
        },
    )


@project_view(Role.OPERATOR)
def keys(request: HttpRequest, project: Project) -> HttpResponse:
    """The project's API keys; a POST makes one, whose secret is shown on the next page and never again."""
    form = KeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = actions.create_api_key(project=project, by=request.user, **form.fields_of_key())
        _, request.session["new_key"] = made
        return redirect("core:keys", project.slug)
    rows = project.api_keys.select_related("created_by").order_by(F("revoked_at").asc(nulls_first=True), "-created_at")
    context = {
        "page": page_of(request, rows, 50),
        "expiring": project.api_keys.expiring(),
        "members": set(project.memberships.filter(user__is_active=True).values_list("user", flat=True)),
        "form": form,
        "new_key": request.session.pop("new_key", None),
    }
    return render(request, "core/keys.html", context)


@require_POST
@project_view(Role.OPERATOR)
def revoke_key(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    key = get_object_or_404(ApiKey, project=project, pk=pk)
    actions.revoke_api_key(key=key, by=request.user)
    messages.success(request, f"The key {key.prefix}… no longer works.")
    return redirect("core:keys", project.slug)


@require_POST
@project_view(Role.OWNER)
def set_member(request: HttpRequest, project: Project) -> HttpResponse:
    form = MemberForm(request.POST)
    if form.is_valid():
        try:
            actions.set_member(project=project, user=form.user, role=Role(form.cleaned_data["role"]), by=request.user)
        except actions.MembershipError as error:
            messages.error(request, str(error))
    else:
        messages.error(request, " ".join(error for errors in form.errors.values() for error in errors))
    return redirect("core:settings", project.slug)


@require_POST
@project_view(Role.OWNER)
def unlock_member(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    membership = get_object_or_404(Membership.objects.select_related("user"), project=project, pk=pk)
    if actions.unlock_account(username=membership.user.get_username(), project=project, by=request.user):
        messages.success(request, f"{membership.user} may log in again.")
    else:
        messages.info(request, f"{membership.user} was not locked.")
    return redirect("core:settings", project.slug)


@require_POST
@project_view(Role.OWNER)
def remove_member(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    membership = get_object_or_404(Membership, project=project, pk=pk)
    try:
        actions.remove_member(membership=membership, by=request.user)
    except actions.MembershipError as error:
        messages.error(request, str(error))
    return redirect("core:settings", project.slug)
