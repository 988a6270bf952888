"""What a run would cost, beside its form; and the measurement that says so."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.registry.actions import ModelError
from apps.training.budget import measuring
from apps.training.budget.asked import Asked
from apps.training.budget.estimate import Estimate, estimate
from apps.training.budget.learning import teaching
from apps.training.picks import PickForm

PARTS = {"loading": "Loading", "sampling": "Sampling", "updates": "Updates", "validation": "Validation"}


@require_POST
@project_view(Role.ENGINEER)
def panel(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment beside the form of a new run: asked for again whenever the form changes."""
    form = PickForm(project, request.POST)
    if not form.is_valid():
        return render(request, "training/_budget.html", {"project": project, "incomplete": True})
    try:
        asked = form.asked()
        if request.POST.get("measure"):
            measuring.measure_for(asked, by=request.user)
    except (Rejected, ModelError) as error:
        return render(request, "training/_budget.html", {"project": project, "problem": str(error)})
    return render(request, "training/_budget.html", {"project": project} | shown(asked))


def shown(asked: Asked) -> dict[str, Any]:
    found, where = estimate(asked), (asked.parent, asked.config, asked.rollouts)
    return {
        "found": found,
        "parts": parts_of(found),
        "teaching": teaching(asked),
        "measuring": measuring.under_way(*where),
        "failed": measuring.failed(*where),
        "several": found.runs > 1,
        "asked": asked,
    }


def parts_of(found: Estimate) -> list[tuple[str, float, float]]:
    """(what, seconds, percent of all), the largest first."""
    total = sum(found.parts.values()) or 1
    return [(PARTS.get(name, name), seconds, 100 * seconds / total)
            for name, seconds in sorted(found.parts.items(), key=lambda one: -one[1])]  # fmt: skip
