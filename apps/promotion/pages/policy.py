"""The policy of a channel: its form, its versions and what changed between them, and the file."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.diffing import changed_lines
from apps.core.errors import Rejected
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.operations import NOT_DONE, submitted
from apps.core.query import whole_number
from apps.promotion.channels import create_channel as create
from apps.promotion.forms import PolicyFileForm, PolicyForm, in_words
from apps.promotion.gate.policy import Policy, as_toml
from apps.promotion.models import Channel, PromotionPolicy
from apps.promotion.policies import (
    approve_policy,
    policy_of,
    save_policy,
    values_of,
    withdraw_policy,
)
from apps.promotion.proposals import rule_of
from apps.teamwork.models import Proposal
from apps.teamwork.proposals import WAITING, page_context
from workers.lib.typed import convert

MOST = 50  # versions on the page


@require_POST
@project_view(Role.OWNER)
def create_channel(request: HttpRequest, project: Project) -> HttpResponse:
    form, created = submitted(request, create)
    if created is NOT_DONE:
        messages.error(
            request, " ".join(problem for field in form.errors.values() for problem in field)
        )
        return redirect("promotion:models", project.slug)
    channel, _ = created
    return redirect("promotion:policy", project.slug, channel.name)


@project_view()
def policy(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    channel = get_object_or_404(Channel, project=project, name=name)
    return _page(request, channel, PolicyForm(policy_of(channel)[0]), PolicyFileForm())


@require_POST
@project_view(Role.OWNER)
def policy_save(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    channel = get_object_or_404(Channel, project=project, name=name)
    form = PolicyForm(policy_of(channel)[0], request.POST)
    if form.is_valid():
        return _saved(request, channel, form.policy, form.cleaned_data["reason"])
    return _page(request, channel, form, PolicyFileForm(), status=400)


@require_POST
@project_view(Role.OWNER)
def policy_import(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    channel = get_object_or_404(Channel, project=project, name=name)
    form = PolicyFileForm(request.POST, request.FILES)
    if form.is_valid():
        return _saved(request, channel, form.cleaned_data["file"], form.cleaned_data["reason"])
    return _page(request, channel, PolicyForm(policy_of(channel)[0]), form, status=400)


@project_view(query={"version": whole_number(0, 2**31 - 1)})
def policy_file(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The policy as TOML: the current one, or `?version=`."""
    channel = get_object_or_404(Channel, project=project, name=name)
    found, version = policy_of(channel)
    if asked := request.GET.get("version"):
        row = get_object_or_404(PromotionPolicy, channel=channel, version=whole(asked))
        found, version = values_of(row), row.version
    headers = {
        "Content-Disposition": f'attachment; filename="{channel.name}-policy-{version}.toml"'
    }
    return HttpResponse(
        as_toml(found), content_type="application/toml; charset=utf-8", headers=headers
    )


@require_POST
@project_view(Role.ENGINEER)
def policy_approve(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The second person's consent to a change that loosens the policy."""
    channel = get_object_or_404(Channel, project=project, name=name)
    try:
        row = approve_policy(
            channel=channel, proposal=whole(request.POST.get("proposal")) or 0, by=request.user
        )
    except (Rejected, PermissionDenied) as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"Version {row.version} applies to {channel} from now on.")
    return redirect("promotion:policy", project.slug, name)


@require_POST
@project_view(Role.OWNER)
def policy_withdraw(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    channel = get_object_or_404(Channel, project=project, name=name)
    proposal = whole(request.POST.get("proposal")) or 0
    try:
        withdraw_policy(channel=channel, proposal=proposal, by=request.user)
    except Rejected as error:
        messages.error(request, str(error))
    else:
        messages.success(request, "Withdrawn: the policy stays as it is.")
    return redirect("promotion:policy", project.slug, name)


def _saved(request: HttpRequest, channel: Channel, wanted: Policy, reason: str) -> HttpResponse:
    try:
        row = save_policy(channel=channel, policy=wanted, reason=reason, by=request.user)
    except Rejected as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _said(channel, row))
    return redirect("promotion:policy", request.project.slug, channel.name)


def _said(channel: Channel, row: PromotionPolicy | Proposal | None) -> str:
    if row is None:
        return "Nothing changed."
    if isinstance(row, Proposal):
        return WAITING
    return f"Version {row.version} applies to {channel} from now on."


def _page(
    request: HttpRequest,
    channel: Channel,
    form: PolicyForm,
    upload: PolicyFileForm,
    status: int = 200,
) -> HttpResponse:
    now, version = policy_of(channel)
    rows = list(channel.policies.select_related("by")[: MOST + 1])
    texts = [as_toml(values_of(row)).splitlines() for row in rows]
    earlier = [*texts[1:], as_toml(Policy()).splitlines()]
    proposed = page_context(rule_of(channel, now), request.membership)
    context = {
        "channel": channel,
        **proposed,
        "may_approve": proposed["may_approve"] and not channel.archived_at,
        "lines": _changes(now, proposed["proposal"]),
        "form": form,
        "upload": upload,
        "version": version,
        "may_write": request.membership.may(Role.OWNER) and not channel.archived_at,
        "values": in_words(now),
        "versions": [
            (row, list(changed_lines(before, after, around=0)))
            for row, before, after in list(zip(rows, earlier, texts, strict=False))[:MOST]
        ],
    }
    return render(request, "promotion/policy.html", context, status=status)


def _changes(now: Policy, proposal: Proposal | None) -> list[tuple[str, str]]:
    """Like `changed_lines`, of the proposed policy."""
    if proposal is None:
        return []
    after = convert(proposal.values, Policy, "policy")
    return list(changed_lines(as_toml(now).splitlines(), as_toml(after).splitlines(), around=0))
