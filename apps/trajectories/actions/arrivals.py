"""What people decide about batches that could not be digested."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.trajectories import digest
from apps.trajectories.models import Arrival


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
