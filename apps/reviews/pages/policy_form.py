"""What the project asks of a verifier before it may train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.reviews.forms import PolicyForm
from apps.reviews.models import ReviewPolicy
from apps.reviews.policy import PolicyError, policy_in_force, policy_of, set_policy


@project_view()
def policy(request: HttpRequest, project: Project) -> HttpResponse:
    return _page(request, project, PolicyForm(initial=policy_of(project)))


@require_POST
@project_view(Role.OWNER)
def policy_save(request: HttpRequest, project: Project) -> HttpResponse:
    form = PolicyForm(request.POST)
    if form.is_valid():
        try:
            set_policy(project=project, by=request.user, **form.cleaned_data)
        except PolicyError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "Saved. It now applies to every verifier in the project.")
            return redirect("reviews:policy", project.slug)
    return _page(request, project, form, status=400)


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
    context = {
        "form": form,
        "row": row,
        "may_write": may_write,
        "policy": policy,
        "alone": policy["alone"],
        "changes": changes,
    }
    return render(request, "reviews/policy.html", context, status=status)


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
