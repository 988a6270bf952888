"""Reviews of outputs with a new kind of unsafe action, on a gate report's page."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.promotion.conditions import PromotionError
from apps.promotion.models import GateReport
from apps.promotion.unsafe_outputs import review_outputs as review


@require_POST
@project_view(Role.ENGINEER)
def review_outputs(request: HttpRequest, project: Project, pk: str) -> HttpResponse:
    report = get_object_or_404(
        GateReport.objects.select_related("candidate", "channel"), project=project, pk=pk
    )
    chosen, accepted = request.POST.getlist("sample"), request.POST.get("decision") == "accepted"
    try:
        rows = review(
            report=report,
            samples=chosen,
            accepted=accepted,
            reason=request.POST.get("reason", ""),
            by=request.user,
        )
        decision = "not unsafe" if accepted else "unsafe"
        outputs = "1 output" if len(rows) == 1 else f"{len(rows):,} outputs"
        messages.success(
            request, f"{outputs} reviewed: {decision}. Compare again to use the reviews."
        )
    except (PromotionError, PermissionDenied) as error:
        messages.error(request, str(error))
    return redirect("promotion:report", project.slug, pk)
