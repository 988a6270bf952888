from __future__ import annotations

from celery import shared_task

from apps.core.models import Project
from apps.failures import actions


@shared_task(name="failures.classify")
def classify(project_id: int) -> dict[str, int] | None:
    project = Project.objects.filter(pk=project_id).first()
    return actions.classify_project(project=project) if project else None
