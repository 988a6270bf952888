"""What an edit of a verifier did to its agreement with people, on samples that they have judged."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.query import KEY
from apps.core.routes import shows
from apps.environments.models import Verifier
from apps.evals.holdout.view_log import record_sample_views
from apps.evals.models import Sample
from apps.reviews.agreement import Change
from apps.reviews.edit_effect import effect_of


def named(changes: dict[str, Change]) -> list[tuple[str, Change]]:
    return [("agreement", changes["agreement"]), ("κ", changes["kappa"])]


@shows("scores on labelled held-out tasks")
@project_view(query={"before": KEY})
def effect(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Of the version at this address against an earlier one: `?before=` its pk, or the version just
    before.
    """
    after = get_object_or_404(Verifier, project=project, pk=pk)
    others = list(project.verifiers.filter(name=after.name).exclude(pk=pk).order_by("-version"))
    chosen = request.GET.get("before", "")
    before = next((row for row in others if str(row.pk) == chosen), None)
    if chosen and before is None:
        raise Http404
    before = before or next((row for row in others if row.version < after.version), None)
    found = effect_of(before, after) if before else None
    context = {"before": before, "after": after, "others": others, "found": found}
    if found:
        samples = Sample.objects.filter(pk__in=found.samples).only("task")
        record_sample_views(
            project, samples, by=request.user, detail=f"effect of {before} to {after}"
        )
        context["parts"] = [
            ("open to the editor", named(found.effect.fitted)),
            ("held out", named(found.effect.held_out)),
        ]
    return render(request, "reviews/effect.html", context)
