"""Comments and assignments. Access is in the lookup: what somebody may not open has no comments for
them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.http import go, uuid_of
from apps.core.models import Project, Role
from apps.core.routes import shows
from apps.teamwork import actions, assigning
from apps.teamwork.models import Comment
from apps.teamwork.targets import Kind, Unknown, kind_named, kind_of
from apps.teamwork.threads import SHOWN, thread_of

NOT_YOURS = "This comment belongs to someone else, or has been deleted."
NAMES = 8  # that are suggested after an @


def _target(
    request: HttpRequest, project: Project, name: str, pk: str, *, see: bool
) -> tuple[Kind, Any]:
    """`see`: only what this person may see now. Raises Http404."""
    try:
        kind = kind_named(name)
        target = kind.find(project, pk)
    except Unknown as error:
        raise Http404 from error
    if not kind.takes_comments or (
        see and not kind.may_see(target, request.user, request.membership.role)
    ):
        raise Http404
    return kind, target


def _read(
    request: HttpRequest, project: Project, name: str, pk: str, *, see: bool
) -> tuple[Kind, Any]:
    """Like `_target`, for views that show comments: reading them is a view of their object."""
    kind, target = _target(request, project, name, pk, see=see)
    actions.record_read(kind, target, by=request.user)
    return kind, target


def _comment(request: HttpRequest, project: Project, pk: Any) -> tuple[Comment, Kind, Any]:
    """One that this person may see now. Raises Http404."""
    row = Comment.objects.filter(project=project, pk=pk).select_related("project", "by").first()
    if row is None:
        raise Http404
    try:
        kind = kind_of(row.target_type)
        target = kind.find(project, row.target_id)
    except Unknown as error:
        raise Http404 from error
    if not kind.may_see(target, request.user, request.membership.role):
        raise Http404
    actions.record_read(kind, target, by=request.user)
    return row, kind, target


def _thread(request: HttpRequest, kind: Kind, target: Any, **more: Any) -> HttpResponse:
    return render(
        request,
        "teamwork/_thread.html",
        thread_of(request.user, request.membership, kind, target, **more),
    )


@shows("comments on a hold-out, once the person has opened it")
@project_view(query={"until": UUID})
def thread(request: HttpRequest, project: Project, kind: str, target: str) -> HttpResponse:
    """A separate page, up to one comment (`until`); for htmx the fragment."""
    found, row = _read(request, project, kind, target, see=False)
    until = (
        Comment.objects.filter(project=project, pk=uuid_of(request.GET.get("until")))
        .about(row)
        .first()
    )
    context = thread_of(request.user, request.membership, found, row, until=until)
    if request.htmx:
        return render(request, "teamwork/_thread.html", context)
    return render(
        request,
        "teamwork/thread.html",
        context | {"title": found.title(row), "page": row.get_absolute_url()},
    )


@project_view()
def comment(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The link of one comment: to its object's page, or, for an old one, to the comments up to it.
    If it may not be seen yet, to a page that says so."""
    row = Comment.objects.filter(project=project, pk=pk).first()
    if row is None:
        raise Http404
    try:
        kind = kind_of(row.target_type)
        target = kind.find(project, row.target_id)
    except Unknown as error:
        raise Http404 from error
    own = reverse("teamwork:thread", args=[project.slug, kind.name, row.target_id])
    if not kind.may_see(target, request.user, request.membership.role):
        return redirect(own)
    later = (
        Comment.objects.filter(project=project, created_at__gt=row.created_at).about(target).count()
    )
    page = target.get_absolute_url()
    return redirect(
        f"{own}?until={row.pk}#comment-{row.pk}" if later >= SHOWN else f"{page}#comment-{row.pk}"
    )


@shows("comments on a hold-out, once the person has opened it")
@require_POST
@project_view(Role.REVIEWER)
def add(request: HttpRequest, project: Project, kind: str, target: str) -> HttpResponse:
    found, row = _read(request, project, kind, target, see=True)
    text = request.POST.get("text", "")
    try:
        made = actions.add_comment(
            project=project, kind=found, target=row, text=text, by=request.user
        )
    except actions.CommentError as error:
        if request.htmx:
            return _thread(request, found, row, error=str(error), draft=text)
        messages.error(request, str(error))
        return redirect(row.get_absolute_url())
    return (
        _thread(request, found, row)
        if request.htmx
        else redirect(f"{row.get_absolute_url()}#comment-{made.pk}")
    )


@shows("comments on a hold-out, once the person has opened it")
@project_view(Role.REVIEWER)
def edit(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The form in place of the comment; a POST saves. Only its author's."""
    row, kind, target = _comment(request, project, pk)
    if row.by_id != request.user.pk or row.deleted_at:
        messages.error(request, NOT_YOURS)
        return go(request, actions.page_of_comment(row))
    text, error = row.text, ""
    if request.method == "POST":
        text = request.POST.get("text", "")
        try:
            actions.edit_comment(comment=row, kind=kind, target=target, text=text, by=request.user)
        except actions.CommentError as refused:
            error = str(refused)
        else:
            return (
                _thread(request, kind, target)
                if request.htmx
                else redirect(actions.page_of_comment(row))
            )
    context = {
        "row": row,
        "text": text,
        "error": error,
        "kind": kind.name,
        "target": target,
        "project": project,
    }
    template = "_edit" if request.htmx else "edit"
    return render(
        request, f"teamwork/{template}.html", context | {"page": target.get_absolute_url()}
    )


@shows("comments on a hold-out, once the person has opened it")
@require_POST
@project_view(Role.REVIEWER)
def delete(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    row, kind, target = _comment(request, project, pk)
    if not actions.delete_comment(comment=row, kind=kind, target=target, by=request.user):
        messages.error(request, NOT_YOURS)
        return go(request, actions.page_of_comment(row))
    return _thread(request, kind, target) if request.htmx else redirect(target.get_absolute_url())


@project_view(Role.REVIEWER, query={"q": None})
def people(request: HttpRequest, project: Project, kind: str, target: str) -> HttpResponse:
    """Who may be mentioned: [{name, full}] of those whose name begins with `q`, or contains it."""
    found, row = _target(request, project, kind, target, see=True)
    q = request.GET.get("q", "")[:150].casefold()
    users = actions.readers_of(found, row, project).values_list("username", "first_name")
    hits = [
        (not name.casefold().startswith(q), name, full)
        for name, full in users
        if q in f"{name} {full}".casefold()
    ]
    return JsonResponse(
        {"people": [{"name": name, "full": full} for _, name, full in sorted(hits)[:NAMES]]}
    )


@require_POST
@project_view(Role.REVIEWER)
def assign(request: HttpRequest, project: Project, kind: str, target: str) -> HttpResponse:
    """`user`: the id; `on`: empty takes it back. Returns to the form's page."""
    try:
        found = kind_named(kind)
        row = found.find(project, target)
    except Unknown as error:
        raise Http404 from error
    if found.worker is None:
        raise Http404
    members = project.memberships.select_related("user")
    member = members.filter(user=whole(request.POST.get("user")) or 0).first()
    if member is None:
        raise Http404
    try:
        assigning.assign(
            project=project,
            kind=found,
            target=row,
            to=member.user,
            by=request.user,
            on=bool(request.POST.get("on")),
        )
    except assigning.AssignmentError as error:
        messages.error(request, str(error))
    back = request.POST.get("back", "")
    ours = url_has_allowed_host_and_scheme(back, allowed_hosts=None) and back.startswith("/")
    return go(request, back if ours else row.get_absolute_url())
