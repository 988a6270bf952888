"""Our own attributes: of which sample of an evaluation a run is. Baggage that a processor writes on
spans has the same names.
"""

from __future__ import annotations

from apps.trajectories.otlp.conventions.base import Convention

RUN, TASK, SAMPLE = "flywheel.eval.run", "flywheel.eval.task", "flywheel.eval.sample"

FLYWHEEL = Convention(
    name="flywheel",
    namespaces=("flywheel",),
    fields={"eval_run": (RUN,), "eval_task": (TASK,), "eval_sample": (SAMPLE,)},
)
