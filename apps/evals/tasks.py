from __future__ import annotations

from celery import shared_task

from apps.evals import traces


@shared_task(name="evals.settle_traces", expires=30)
def settle_traces() -> int:
    return traces.settle()
