"""The jobs of the reviews layer: probes of a verifier, and rescoring stored samples."""

from __future__ import annotations

from apps.core.kinds import ChildProcess, register
from apps.reviews import rescoring
from apps.reviews.models import ProbeRun, Rescore

# Someone waits for both, and evaluations take long: not in their queue.
register(
    ProbeRun,
    ChildProcess(
        queue="default",
        child_spec=rescoring.probe_spec,
        complete=rescoring.complete_probe,
    ),
)
register(
    Rescore,
    ChildProcess(
        queue="default",
        child_spec=rescoring.rescore_spec,
        complete=rescoring.complete_rescore,
    ),
)
