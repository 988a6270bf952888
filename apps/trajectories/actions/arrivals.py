"""What people decide about batches that could not be digested and traces that could not be
assembled.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from apps.core.actions import audit
from apps.trajectories import digest
from apps.trajectories.models import Arrival, SpanBatch, Trace


@transaction.atomic
def retry(row: Arrival | Trace, *, by: Any) -> bool:
    """Lets the digest, or the assembly, try again. False if more spans came or somebody else has
    decided before.
    """
    waiting = {"due_at": None} if isinstance(row, Trace) else {}
    changes = {"due_at": Now()} if isinstance(row, Trace) else {}
    rows = type(row)._default_manager.set_aside().filter(pk=row.pk, **waiting)  # type: ignore[attr-defined]
    if not rows.update(problem="", **changes):
        return False
    kind = row._meta.model_name
    audit(f"{kind}.retried", project=row.project, by=by, target=row, problem=row.problem)
    transaction.on_commit(digest.wake)
    return True


@transaction.atomic
def discard(arrival: Arrival, *, by: Any) -> bool:
    """Forgets what the batch would have added to totals and search; the trajectories stay. False as
    above.
    """
    detail = {
        "problem": arrival.problem,
        "n": len(arrival.trajectories),
        "first": [str(pk) for pk in arrival.trajectories[:10]],
    }
    audit("arrival.discarded", project=arrival.project, by=by, target=arrival, **detail)
    return bool(Arrival.objects.set_aside().filter(pk=arrival.pk).delete()[0])


@transaction.atomic
def discard_trace(trace: Trace, *, by: Any) -> bool:
    """Removes the trace's spans; runs that were assembled of it before stay. False as above."""
    if not Trace.objects.set_aside().filter(pk=trace.pk, due_at=None).forget(problem=""):
        return False
    SpanBatch.objects.filter(project=trace.project, trace_id=trace.trace_id).delete()
    audit("trace.discarded", project=trace.project, by=by, target=trace, problem=trace.problem)
    return True
