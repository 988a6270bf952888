"""What people decide about batches that could not be digested and traces that could not be assembled."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from apps.core.actions import audit
from apps.trajectories import digest
from apps.trajectories.models import Arrival, SpanBatch, Trace


@transaction.atomic
def retry(*, arrival: Arrival, by: Any) -> bool:
    """Lets the digest try again. False where somebody else has decided before."""
    if not Arrival.objects.set_aside().filter(pk=arrival.pk).update(problem=""):
        return False
    audit("arrival.retried", project=arrival.project, by=by, target=arrival, problem=arrival.problem)
    transaction.on_commit(digest.wake)
    return True


@transaction.atomic
def discard(*, arrival: Arrival, by: Any) -> bool:
    """Forgets what the batch would have added to totals and search; the trajectories stay. False as above."""
    detail = {
        "problem": arrival.problem,
        "n": len(arrival.trajectories),
        "first": [str(pk) for pk in arrival.trajectories[:10]],
    }
    audit("arrival.discarded", project=arrival.project, by=by, target=arrival, **detail)
    return bool(Arrival.objects.set_aside().filter(pk=arrival.pk).delete()[0])


@transaction.atomic
def retry_trace(*, trace: Trace, by: Any) -> bool:
    """Lets the assembly try again. False where more spans came or somebody else has decided before."""
    if not Trace.objects.set_aside().filter(pk=trace.pk, due_at=None).update(problem="", due_at=Now()):
        return False
    audit("trace.retried", project=trace.project, by=by, target=trace, problem=trace.problem)
    transaction.on_commit(digest.wake)
    return True


@transaction.atomic
def discard_trace(*, trace: Trace, by: Any) -> bool:
    """Removes the trace's spans; runs that were assembled of it before stay. False as above."""
    if not Trace.objects.set_aside().filter(pk=trace.pk, due_at=None).update(problem="", forgotten=True, links=[]):
        return False
    SpanBatch.objects.filter(project=trace.project, trace_id=trace.trace_id).delete()
    audit("trace.discarded", project=trace.project, by=by, target=trace, problem=trace.problem)
    return True
