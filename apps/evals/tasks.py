from __future__ import annotations

from celery import shared_task

from apps.evals import designer, importing


@shared_task(name=importing.TASK)
def import_tasks(identity: str) -> None:
    importing.run(identity)


@shared_task(name="evals.resend_imports", expires=60)
def resend_imports() -> int:
    return importing.resend_lost() + designer.settle_lost()


@shared_task(name=designer.TASK)
def design_variants(set_id: str, job_id: str) -> None:
    designer.run(set_id, job_id)
