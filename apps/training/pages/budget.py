"""The estimate next to the form of a new run, and the measurement that it is based on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.registry.actions import ModelError
from apps.training import reused_samples
from apps.training.budget import measuring
from apps.training.budget.asked import Asked, asked_of
from apps.training.budget.estimate import Estimate, estimate
from apps.training.budget.learning import teaching
from apps.training.comparison import runs_of
from apps.training.forking import ForkForm, spec_of_fork
from apps.training.picks import PickForm
from apps.training.teachers import teacher_of
from workers.lib.typed import FormError

PARTS = {
    "loading": "Loading",
    "sampling": "Sampling",
    "updates": "Updates",
    "validation": "Validation",
}


@require_POST
@project_view(Role.ENGINEER)
def panel(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment next to the form of a new run, requested again whenever the form changes."""
    form = PickForm(project, request.POST)
    return shown(
        request,
        form.asked if form.is_valid() else None,
        reverse("training:budget", args=[project.slug]),
        "#new-run",
    )


@require_POST
@project_view(Role.ENGINEER)
def of_fork(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    """The same for a fork: the cost of the remaining steps."""
    run = get_object_or_404(runs_of(project), pk=pk)
    form, samples = ForkForm(run, request.POST), dict[str, str]()

    def asked() -> Asked:
        spec = spec_of_fork(run, form.cleaned_data["config"], form.cleaned_data["seed"])
        reused, samples["samples"] = reused_samples.of_fork(run, spec, form.cleaned_data["step"])
        return asked_of(
            project=project,
            method=run.method,
            parent=run.parent,
            environment=run.environment,
            dataset=run.dataset,
            config=spec["config"],
            start=form.cleaned_data["step"],
            rollouts=run.spec.get("rollouts"),
            teacher=teacher_of(run),
            teacher_engine=spec.get("teacher_engine"),
            sampled=reused,
        )

    address = reverse("training:fork_budget", args=[project.slug, pk])
    return shown(request, asked if form.is_valid() else None, address, "#fork", samples)


def shown(
    request: HttpRequest,
    ask: Callable[[], Asked] | None,
    address: str,
    form: str,
    more: Mapping[str, str] | None = None,
) -> HttpResponse:
    """`ask` is None while the form is incomplete. `form`: the selector of the form that is sent
    when the fragment is requested again. `more`: context that `ask` fills.
    """
    context: dict[str, Any] = {"address": address, "form_id": form, "incomplete": ask is None}
    if ask is not None:
        try:
            asked = ask()
            if request.POST.get("measure"):
                measuring.measure_for(asked, by=request.user)
            context |= numbers(asked) | dict(more or {})
        except (Rejected, ModelError, FormError) as error:
            context["problem"] = str(error)
    return render(request, "training/_budget.html", context)


def numbers(asked: Asked) -> dict[str, Any]:
    found, where = estimate(asked), (asked.parent, asked.config, asked.rollouts)
    return {
        "found": found,
        "parts": parts_of(found),
        "teaching": teaching(asked),
        "measuring": measuring.under_way(*where),
        "failed": measuring.failed(*where),
    }


def parts_of(found: Estimate) -> list[tuple[str, float, float]]:
    """(activity, seconds, percent of the total), largest first."""
    total = sum(found.parts.values()) or 1
    return [
        (PARTS.get(name, name), seconds, 100 * seconds / total)
        for name, seconds in sorted(found.parts.items(), key=lambda one: -one[1])
    ]
