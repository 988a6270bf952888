from __future__ import annotations

from celery import shared_task

from apps.evals import importing
from apps.evals.variants import model_job


@shared_task(name=importing.TASK)
def import_tasks(identity: str) -> None:
    importing.run(identity)


@shared_task(name="evals.resend_imports", expires=60)
def resend_imports() -> int:
    return importing.resend_lost() + model_job.settle_lost()


@shared_task(name=model_job.TASK)
def write_variants(set_id: str, job_id: str) -> None:
    model_job.run(set_id, job_id)
