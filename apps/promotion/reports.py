"""How gate reports are looked up."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from apps.core.http import uuid_of
from apps.core.models import Project
from apps.promotion.models import GateReport


def reports_of(project: Project) -> QuerySet[GateReport]:
    return GateReport.objects.filter(project=project).select_related(
        "project",
        "channel",
        "baseline__model_version",
        "candidate__model_version",
        "candidate__eval_set",
    )


def find_report(project: Project, name: UUID | str) -> GateReport:
    """Raises Http404."""
    report = reports_of(project).filter(pk=uuid_of(str(name))).first()
    if report is None:
        raise Http404("No gate report of this project has this id.")
    return report
