"""What the project asks of a verifier before it may train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.diffing import changed_lines
from apps.core.errors import Rejected
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.reviews.forms import PolicyForm
from apps.reviews.models import ReviewPolicy
from apps.reviews.policy import (
    approve_policy,
    policy_in_force,
    policy_of,
    rule_of,
    set_policy,
    withdraw_policy,
)
from apps.teamwork.models import Proposal
from apps.teamwork.proposals import WAITING, page_context

SAVED = "Saved. It now applies to every verifier in the project."


@project_view()
def policy(request: HttpRequest, project: Project) -> HttpResponse:
    return _page(request, project, PolicyForm(initial=policy_of(project)))


@require_POST
@project_view(Role.OWNER)
def policy_save(request: HttpRequest, project: Project) -> HttpResponse:
    form = PolicyForm(request.POST)
    if form.is_valid():
        try:
            row = set_policy(project=project, by=request.user, **form.cleaned_data)
        except Rejected as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, WAITING if isinstance(row, Proposal) else SAVED)
            return redirect("reviews:policy", project.slug)
    return _page(request, project, form, status=400)


@require_POST
@project_view(Role.REVIEWER)
def policy_approve(request: HttpRequest, project: Project) -> HttpResponse:
    """The second person's consent to a change that lets fewer people review."""
    return _decided(request, project, approve_policy, SAVED)


@require_POST
@project_view(Role.OWNER)
def policy_withdraw(request: HttpRequest, project: Project) -> HttpResponse:
    return _decided(request, project, withdraw_policy, "Withdrawn: the policy stays as it is.")


def _decided(
    request: HttpRequest, project: Project, decide: Callable[..., Any], done: str
) -> HttpResponse:
    proposal = whole(request.POST.get("proposal")) or 0
    try:
        decide(project=project, proposal=proposal, by=request.user)
    except Rejected as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)
    return redirect("reviews:policy", project.slug)


def _page(
    request: HttpRequest, project: Project, form: PolicyForm, status: int = 200
) -> HttpResponse:
    row = ReviewPolicy.objects.filter(project=project).select_related("updated_by").first()
    changes = list(
        project.audit_events.filter(action="review.policy_changed").select_related("actor")[:10]
    )
    for event in changes:
        event.rows = list(changed(event.detail))
    may_write = request.membership.may(Role.OWNER)
    policy = policy_in_force(project)
    proposed = page_context(rule_of(project), request.membership)
    context = {
        **proposed,
        "lines": _lines(policy_of(project), proposed["proposal"]),
        "form": form,
        "row": row,
        "may_write": may_write,
        "policy": policy,
        "alone": policy["alone"],
        "changes": changes,
    }
    return render(request, "reviews/policy.html", context, status=status)


def _lines(now: dict[str, Any], proposal: Proposal | None) -> list[tuple[str, str]]:
    """Like `changed_lines`, of the proposed policy."""
    if proposal is None:
        return []
    before, after = (
        [
            f"{str(PolicyForm.base_fields[name].label).partition(':')[0]}: {_shown(value)}"
            for name, value in values.items()
        ]
        for values in (now, {name: proposal.values[name] for name in now})
    )
    return list(changed_lines(before, after, around=0))


def changed(detail: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(field's label, what it was, what it became) of a change in the audit log."""
    for name, now in detail["after"].items():
        was = detail["before"].get(name)
        if was != now:
            yield PolicyForm.base_fields[name].label, _shown(was), _shown(now)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
