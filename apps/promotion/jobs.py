"""The jobs of the promotion layer: deployments, and the fingerprints that identify a version."""

from __future__ import annotations

from apps.core.kinds import ChildProcess, InProcess, Needs, register
from apps.promotion.deployment import fingerprints, running
from apps.promotion.models import Deployment, FingerprintJob
from apps.registry.bases import needed_base

register(
    Deployment,
    InProcess(
        queue="default",
        steps=running.steps,
        ended=running.ended,
        if_lost=(
            "The previous version keeps serving everywhere; newly loaded weights were unloaded."
        ),
    ),
)
register(
    FingerprintJob,
    ChildProcess(
        queue="eval",
        child_spec=fingerprints.job_spec,
        needs=lambda job: Needs(things=needed_base(job.version)),
        complete=fingerprints.complete,
        time_limit_s=1800.0,
    ),
)
