"""Renaming, archiving and deleting eval sets and evaluations: a hold-out is in the way."""

from __future__ import annotations

from apps.core.bus import on
from apps.core.managed.objects import Managed, WhyNotDelete, register
from apps.evals.models import EvalRun, EvalSet, Split

register(
    Managed(
        kind="set",
        noun="the eval set",
        plural="Eval sets",
        model=EvalSet,
        name="slug",
        versioned=True,
        warning="Flows, CI jobs and API clients that use the old name must be updated.",
    )
)
register(
    Managed(
        kind="evaluation",
        noun="the evaluation",
        plural="Eval sets",
        model=EvalRun,
        name="name",
        versioned=False,
    )
)


@on(WhyNotDelete[EvalSet])
def holds_out_tasks(question: WhyNotDelete[EvalSet]) -> str | None:
    """Deleting a frozen hold-out would be a way to train on it."""
    eval_set = question.row
    held = eval_set.tasks.holdout().count() if eval_set.is_frozen else 0
    if not held:
        return None
    return (
        f"It is frozen and keeps {held:,} tasks out of training; deleting it would let them be"
        " trained on."
    )


@on(WhyNotDelete[EvalRun])
def counts_as_comparison(question: WhyNotDelete[EvalRun]) -> str | None:
    """The number of evaluations on a hold-out affects every comparison on it, so deleting one must
    not reduce it.
    """
    if question.row.split != Split.HOLDOUT or question.row.started_at is None:
        return None
    return "It ran on a hold-out, and counts towards the number of comparisons made there."
