"""What an evaluation is compared with: the newest evaluation on the same tasks of what its model
was made from.
"""

from __future__ import annotations

from django.db.models import Case, When

from apps.core.models import JobState
from apps.evals.models import EvalRun, EvalSet, Split
from apps.registry.models import ModelVersion


def baseline_of(version: ModelVersion, eval_set: EvalSet, split: str = "") -> EvalRun | None:
    """The newest finished evaluation of the nearest ancestor that has one, on this split of the
    set, or else on any split, hold-out first."""
    rows = (
        EvalRun.objects.current()
        .filter(eval_set=eval_set, state=JobState.SUCCEEDED)
        .select_related("model_version")
    )
    rows = (
        rows.filter(split=split)
        if split
        else rows.order_by(Case(When(split=Split.HOLDOUT, then=0), default=1), "-created_at")
    )
    for ancestor in version.ancestors():
        if found := rows.filter(model_version=ancestor).first():
            return found
    return None


def like(baseline: EvalRun) -> dict:
    """The form settings that make a new evaluation comparable with this one, answer by answer."""
    return {
        "environment": baseline.environment_id,
        "split": baseline.split,
        "samples_per_task": baseline.samples_per_task,
        "seed": baseline.spec.get("seed", 0),
        "played_by": baseline.spec.get("harness", {}).get("agent"),
    }
