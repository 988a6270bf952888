from __future__ import annotations

from celery import shared_task

from apps.core.models import Project
from apps.failures import actions, clustering, reclassify
from apps.failures import tasks_judge as tasks_judge  # so that it is found


@shared_task(name="failures.classify")
def classify(project_id: int) -> dict[str, int] | None:
    project = Project.objects.filter(pk=project_id).first()
    if project is None:
        return None
    done = actions.classify_project(project=project)
    clustering.place_new(project)
    return done


@shared_task(name=clustering.TASK, expires=3600)
def recluster(project_id: int) -> dict[str, int] | None:
    project = Project.objects.filter(pk=project_id).first()
    return clustering.recluster(project) if project else None


@shared_task(name="failures.recluster_due", expires=600)
def recluster_due() -> int:
    return sum(clustering.request(pk) for pk in clustering.due())


@shared_task(name=reclassify.TASK)
def reclassify_past(pk: str) -> None:
    reclassify.run(pk)


@shared_task(name="failures.resend_reclassifications", expires=60)
def resend_reclassifications() -> int:
    return reclassify.resend_lost()
