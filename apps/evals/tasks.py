from __future__ import annotations

from celery import shared_task

from apps.core.models import Project
from apps.evals import traces
from apps.evals.proposals import drafting


@shared_task(name="evals.settle_traces", expires=30)
def settle_traces() -> int:
    return traces.settle()


@shared_task(name=drafting.TASK, expires=600)
def draft_rubrics(project_id: int) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(drafting.draft_due(project)) if project else None


@shared_task(name="evals.draft_rubrics_due", expires=150)
def draft_rubrics_due() -> int:
    """Finds the drafts whose message was lost, or that wait for tomorrow's budget."""
    projects = drafting.due()
    for pk in projects:
        draft_rubrics.apply_async(args=[pk], expires=150)
    return len(projects)
