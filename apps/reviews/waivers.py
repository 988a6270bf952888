"""Findings of the probes that a person accepts, with a reason: they no longer keep training
locked.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.urls import reverse

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import Role
from apps.notifications.actions import tell_of_override
from apps.reviews.lock import ReviewError
from apps.reviews.models import ProbeRun, ProbeWaiver
from workers.lib.probes import locking


@transaction.atomic
def waive(*, run: ProbeRun, probe: str, reason: str, by: Any) -> ProbeWaiver:
    """Accepts the findings of one probe, in this run only: a new run needs a new decision. Needs
    the role owner and a reason; recorded in the audit log. Raises ReviewError."""
    get_membership(by, run.project.slug, Role.OWNER)
    run = ProbeRun.objects.select_for_update().get(pk=run.pk)
    found = [item["severity"] for item in run.result.get("failed", []) if item["probe"] == probe]
    if not found:
        raise ReviewError(f"These probes have no finding of “{probe[:80]}” to accept.")
    if not reason.strip():
        raise ReviewError("Enter a reason for accepting these findings.")
    waiver, made = ProbeWaiver.objects.get_or_create(
        run=run, probe=probe, defaults={"reason": reason.strip(), "by": by}
    )
    if not made:
        raise ReviewError(
            f"The findings of “{probe}” have been accepted before, by"
            f" {waiver.by or 'a former member'}."
        )
    ProbeRun.objects.filter(pk=run.pk).update(failed=still_locking(run))
    audit(
        "probes.waived",
        project=run.project,
        by=by,
        target=run,
        verifier=str(run.verifier),
        probe=probe,
        findings=len(found),
        reason=waiver.reason,
    )
    tell_of_override(
        project=run.project,
        by=by,
        subject=f"Findings of the probe “{probe}” on {run.verifier} were accepted",
        page=reverse("reviews:probe", args=[run.project.slug, run.pk]),
        key=f"probe_waiver:{waiver.pk}",
    )
    return waiver


def still_locking(run: ProbeRun) -> int:
    """Findings that keep training locked, without those that were accepted."""
    accepted = set(run.waivers.values_list("probe", flat=True))
    left = [
        item["severity"] for item in run.result.get("failed", []) if item["probe"] not in accepted
    ]
    return locking(left, run.result.get("many_medium", 5))
