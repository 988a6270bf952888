from __future__ import annotations

from celery import shared_task

from apps.core.models import Project
from apps.failures.clusters import store
from apps.failures.judge import judging


@shared_task(name=store.TASK, expires=3600)
def recluster(project_id: int) -> dict[str, int] | None:
    project = Project.objects.filter(pk=project_id).first()
    return store.recluster(project) if project else None


@shared_task(name="failures.recluster_due", expires=600)
def recluster_due() -> int:
    return sum(store.request(pk) for pk in store.due())


@shared_task(name="failures.judge_new", expires=150)
def judge_new() -> int:
    """Every few minutes, one small batch for each project whose judge is on."""
    projects = Project.objects.running().filter(rubrics__is_on=True).values_list("pk", flat=True)
    for pk in projects:
        judge_project.apply_async(args=[pk], expires=150)
    return len(projects)


@shared_task(name="failures.judge_project")
def judge_project(project_id: int) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(judging.judge_new(project)) if project else None
