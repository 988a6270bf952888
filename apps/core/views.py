from __future__ import annotations

import logging

from django.conf import settings as django_settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.mail import send_mail
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core import actions
from apps.core.access import project_view, takes
from apps.core.attempts import locks_of
from apps.core.forms import InviteForm, KeyForm, MemberForm, ProjectForm, RotateForm
from apps.core.models import ApiKey, Invitation, Membership, Project, Role, Stage
from apps.core.paging import page_of
from apps.core.query import FLAG, PAGE_NUMBER

log = logging.getLogger(__name__)
STAGES_SHOWN = {
    "": [Stage.ACTIVE],
    "archived": [Stage.ARCHIVED],
    "deleted": [Stage.DELETING, Stage.DELETED],
}


@login_required
@takes({"show": list(filter(None, STAGES_SHOWN)), "all": FLAG})
def projects(request: HttpRequest) -> HttpResponse:
    shown = request.GET.get("show") if request.GET.get("show") in STAGES_SHOWN else ""
    every = Project.objects.visible_to(request.user)
    rows = every.filter(stage__in=STAGES_SHOWN[shown])
    if len(rows) == 1 and not shown and "all" not in request.GET and request.method == "GET":
        return redirect(rows[0])
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        project = actions.create_project(by=request.user, **form.cleaned_data)
        return redirect(project)
    context = {
        "projects": rows,
        "form": form,
        "shown": shown,
        "others": [
            name
            for name in ("archived", "deleted")
            if every.filter(stage__in=STAGES_SHOWN[name]).exists()
        ],
    }
    return render(request, "core/projects.html", context)


@project_view(Role.OWNER)
def settings(request: HttpRequest, project: Project) -> HttpResponse:
    members = list(project.memberships.select_related("user").order_by("user__username"))
    return render(
        request,
        "core/settings.html",
        {
            "roles": Role,
            "invitations": project.invitations.open().select_related("created_by"),
            "invited": request.session.pop("invited", None),
            "mail": django_settings.FLYWHEEL_MAIL,
            "members": members,
            "locked": locks_of([member.user.get_username() for member in members]),
        },
    )


@project_view(Role.OPERATOR, query={"page": PAGE_NUMBER})
def keys(request: HttpRequest, project: Project) -> HttpResponse:
    """The project's API keys; a POST makes one, whose secret is shown on the next page and never
    again.
    """
    form = KeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = actions.create_api_key(project=project, by=request.user, **form.fields_of_key())
        _, request.session["new_key"] = made
        return redirect("core:keys", project.slug)
    rows = project.api_keys.select_related("created_by", "replaced_by").order_by(
        F("revoked_at").asc(nulls_first=True), "-created_at"
    )
    context = {
        "page": page_of(request, rows, 50),
        "expiring": project.api_keys.expiring(),
        "members": set(
            project.memberships.filter(user__is_active=True).values_list("user", flat=True)
        ),
        "form": form,
        "new_key": request.session.pop("new_key", None),
    }
    return render(request, "core/keys.html", context)


@project_view(Role.OPERATOR)
def rotate_key(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Asks how long the old one stays valid; the new secret is shown once, on the next page."""
    key = get_object_or_404(ApiKey, project=project, pk=pk)
    form = RotateForm(request.POST or None, initial={"expires_on": key.same_expiry})
    if request.method == "POST" and form.is_valid():
        try:
            _, request.session["new_key"] = actions.rotate_api_key(
                key=key, by=request.user, **form.wanted()
            )
        except actions.KeyRejected as error:
            messages.error(request, str(error))
        return redirect("core:keys", project.slug)
    return render(request, "core/rotate_key.html", {"key": key, "form": form})


@require_POST
@project_view(Role.OPERATOR)
def revoke_key(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    key = get_object_or_404(ApiKey, project=project, pk=pk)
    actions.revoke_api_key(key=key, by=request.user)
    messages.success(request, f"The key {key.prefix}… no longer works.")
    return redirect("core:keys", project.slug)


@require_POST
@project_view(Role.OWNER)
def invite(request: HttpRequest, project: Project) -> HttpResponse:
    """The link is sent if there is a mail server, and shown once on the next page, so that people
    can send it themselves.
    """
    form = InviteForm(request.POST)
    if not form.is_valid():
        messages.error(
            request, " ".join(error for errors in form.errors.values() for error in errors)
        )
        return redirect("core:settings", project.slug)
    email, role = form.cleaned_data["email"], Role(form.cleaned_data["role"])
    try:
        invitation, token = actions.invite(project=project, email=email, role=role, by=request.user)
    except actions.InvitationError as error:
        messages.error(request, str(error))
        return redirect("core:settings", project.slug)
    link = request.build_absolute_uri(f"{reverse('join')}?token={token}")
    sent = django_settings.FLYWHEEL_MAIL and send_invitation(invitation, link)
    request.session["invited"] = {"email": email, "link": link, "sent": sent}
    return redirect("core:settings", project.slug)


def send_invitation(invitation: Invitation, link: str) -> bool:
    """False if the mail server does not take it."""
    text = render_to_string("core/invitation.txt", {"invitation": invitation, "link": link})
    try:
        send_mail(f"[Flywheel] Join {invitation.project}", text, None, [invitation.email])
    except (OSError, ValueError):
        log.warning("The invitation %s could not be sent", invitation.pk, exc_info=True)
        return False
    return True


@require_POST
@project_view(Role.OWNER)
def revoke_invitation(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    invitation = get_object_or_404(Invitation, project=project, pk=pk)
    if actions.revoke_invitation(invitation=invitation, by=request.user):
        messages.success(request, f"The link for {invitation.email} no longer works.")
    return redirect("core:settings", project.slug)


@require_POST
@project_view(Role.OWNER)
def set_member(request: HttpRequest, project: Project) -> HttpResponse:
    form = MemberForm(request.POST)
    if form.is_valid():
        try:
            actions.set_member(
                project=project,
                user=form.user,
                role=Role(form.cleaned_data["role"]),
                by=request.user,
            )
        except actions.MembershipError as error:
            messages.error(request, str(error))
    else:
        messages.error(
            request, " ".join(error for errors in form.errors.values() for error in errors)
        )
    return redirect("core:settings", project.slug)


@require_POST
@project_view(Role.OWNER)
def unlock_member(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    membership = get_object_or_404(
        Membership.objects.select_related("user"), project=project, pk=pk
    )
    if actions.unlock_account(
        username=membership.user.get_username(), project=project, by=request.user
    ):
        messages.success(request, f"{membership.user} may log in again.")
    else:
        messages.info(request, f"{membership.user} was not locked.")
    return redirect("core:settings", project.slug)


@project_view(Role.OWNER)
def remove_member(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Asks first, with what of the person's work stays. Access is in the lookup, so it ends with
    the membership.
    """
    membership = get_object_or_404(
        Membership.objects.select_related("user"), project=project, pk=pk
    )
    if request.method != "POST":
        keys = project.api_keys.live().filter(created_by=membership.user)
        context = {
            "member": membership,
            "work": actions.work_of(project, membership.user),
            "keys": keys,
        }
        return render(request, "core/remove_member.html", context)
    try:
        actions.remove_member(membership=membership, by=request.user)
    except actions.MembershipError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{membership.user} is removed from {project}. Their work stays.")
    return redirect("core:settings", project.slug)
