"""Fragments of eval sets' pages: what the next comparison can show, and how worn the hold-out
is.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project
from apps.core.query import whole_number
from apps.core.routes import TOTALS, WHEN_EVALUATED, shows
from apps.evals.models import EvalSet, Split
from apps.promotion.gate.planning import EFFECTS
from apps.promotion.policies import PRODUCTION, find_channel, policy_of
from apps.promotion.wear import plan_for, wear_of


@shows(TOTALS, WHEN_EVALUATED)
@project_view(
    query={"split": Split.values, "samples_per_task": whole_number(1, 64), "channel": None}
)
def plan(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    if request.GET.get("split", "holdout") != "holdout":
        return HttpResponse("")
    samples = whole(request.GET.get("samples_per_task"), 1, 64) or 8
    policy = policy_of(find_channel(project, request.GET.get("channel") or PRODUCTION))[0]
    found = plan_for(eval_set, policy, samples)
    return render(
        request,
        "promotion/_plan.html",
        {"plan": found, "effects": EFFECTS, "policy": policy, "rows": found.needed.items()},
    )


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def wear(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    eval_set = get_object_or_404(EvalSet, project=project, pk=pk)
    policy = policy_of(find_channel(project, PRODUCTION))[0]
    return render(
        request, "promotion/_wear.html", {"wear": wear_of(eval_set, policy), "policy": policy}
    )
