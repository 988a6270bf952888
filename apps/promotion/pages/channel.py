"""A channel's page: what is live, where it is served, the deployment that runs, the freeze, and its
whole history.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.core.operations.forms import form_of
from apps.core.paging import page_of
from apps.core.query import PAGE_NUMBER
from apps.promotion import actions, freezing
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment.models import Placement, Target
from apps.promotion.deployment.placements import not_told
from apps.promotion.history import entries_of
from apps.promotion.models import Channel
from apps.promotion.policies import policy_of
from apps.registry.models import ModelKind
from apps.webhooks.models import Format


def _channel(project: Project, name: str) -> Channel:
    return get_object_or_404(
        Channel.objects.select_related("project", "current"), project=project, name=name
    )


@project_view(query={"page": PAGE_NUMBER, "watching": ("deployment", "trial")})
def channel(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    row = _channel(project, name)
    taken = row.targets.current()
    may_manage = request.membership.may(Role.OPERATOR)
    return render(
        request,
        "promotion/channel.html",
        {
            **status_of(row),
            "page": page_of(request, entries_of(row), size=25),
            "earlier": actions.earlier_versions(row),
            "needs_reason": policy_of(row)[0].rollback_needs_reason,
            "policy": policy_of(row),
            "servers": project.servers.exclude(pk__in=taken.values("server")) if may_manage else [],
            "hooks": (
                project.webhooks.filter(format=Format.STANDARD).exclude(
                    pk__in=taken.filter(webhook__isnull=False).values("webhook")
                )
                if may_manage
                else []
            ),
            "freeze_form": form_of(freezing.freeze.operation)(),
            "trials": row.trials.select_related("channel", "project", "version")[:10],
            "candidates": (
                project.model_versions.filter(archived_at=None)
                .exclude(pk=row.current_id)
                .exclude(kind=ModelKind.REWARD)[:200]
                if row.current and not row.archived_at and request.membership.may(Role.ENGINEER)
                else []
            ),
        },
    )


def status_of(row: Channel) -> dict[str, Any]:
    """The data for the part of the page that updates itself."""
    deployments_ = row.deployments.select_related("version", "from_version", "channel").order_by(
        "-created_at"
    )
    active = deployments_.active().first()
    targets = [
        (target, *_live_and_ready(target, row), not_told(target, row)) for target in _targets(row)
    ]
    last = deployments_.first()
    return {
        "channel": row,
        "active": active,
        "failed": last if last and not active and last.state in ("failed", "cancelled") else None,
        "targets": targets,
        "freeze": freezing.freeze_of(row),
        "trial": row.trials.active().select_related("channel", "project", "version").first(),
    }


def _targets(row: Channel) -> list[Target]:
    rows = row.targets.current().select_related("server", "webhook")
    return list(rows.prefetch_related("placements__version"))


def _live_and_ready(target: Target, row: Channel) -> tuple[Placement | None, list[Placement]]:
    """(what serves the live version there, what else is ready)."""
    ready = [found for found in target.placements.all() if found.state == Placement.State.READY]
    now = next((found for found in ready if found.version_id == row.current_id), None)
    return now, [found for found in ready if found is not now]


@project_view(query={"watching": ("deployment", "trial")})
def status(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """Polled while a deployment or a trial is running. When it has ended, the page is reloaded: the
    history has changed, too.
    """
    row = _channel(project, name)
    found = status_of(row)
    response = render(request, "promotion/_channel_status.html", found)
    watched = request.GET.get("watching", "")
    if found["active"] is None and (found["trial"] is None or watched == "deployment"):
        response["HX-Refresh"] = "true"
    return response


@project_view()
def deployment(request: HttpRequest, project: Project, name: str, pk: UUID) -> HttpResponse:
    row = _channel(project, name)
    found = get_object_or_404(
        row.deployments.select_related("version", "from_version", "gate_report", "channel"), pk=pk
    )
    fragment = (
        "promotion/_deployment.html"
        if request.headers.get("HX-Request")
        else "promotion/deployment.html"
    )
    return render(request, fragment, {"channel": row, "deployment": found})


@require_POST
@project_view(Role.ENGINEER)
def stop(request: HttpRequest, project: Project, name: str, pk: UUID) -> HttpResponse:
    row = _channel(project, name)
    found = get_object_or_404(row.deployments, pk=pk)
    if deployments.stop(deployment=found, by=request.user, reason=f"Stopped by {request.user}."):
        messages.success(
            request,
            f"Stopped. {row.current or 'Nothing'} stays live; newly loaded weights were unloaded.",
        )
    else:
        messages.error(request, "This deployment has already finished.")
    return redirect("promotion:channel", project.slug, name)


@require_POST
@project_view(Role.OPERATOR)
def add_target(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    row = _channel(project, name)
    kind, _, chosen = request.POST.get("target", "").partition(":")
    server = project.servers.filter(name=chosen).first() if kind == "server" else None
    webhook = (
        next((hook for hook in project.webhooks.all() if str(hook.pk) == chosen), None)
        if kind == "webhook"
        else None
    )
    now = (
        ""
        if row.current is None
        else (
            f" {row.current} is loaded and proved there."
            if server
            else f" It is asked from the next move on; it was not notified of {row.current}."
        )
    )
    return _done(
        request,
        row,
        lambda: deployments.add_target(
            channel=row, server=server, webhook=webhook, by=request.user
        ),
        f"{server or webhook} is a target of {row} now.{now}",
    )


@require_POST
@project_view(Role.OPERATOR)
def remove_target(request: HttpRequest, project: Project, name: str, pk: int) -> HttpResponse:
    row = _channel(project, name)
    found = get_object_or_404(row.targets.current(), pk=pk)
    removed = f"{found.server or found.webhook} is no longer a target."
    return _done(
        request, row, lambda: deployments.remove_target(target=found, by=request.user), removed
    )


def _done(request: HttpRequest, row: Channel, change: Any, said: str = "") -> HttpResponse:
    try:
        change()
    except Rejected as error:
        messages.error(request, str(error))
    else:
        if said:
            messages.success(request, said)
    return redirect("promotion:channel", request.project.slug, row.name)
