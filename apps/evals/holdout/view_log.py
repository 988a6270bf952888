"""Every view of a hold-out is recorded: a hold-out wears out by being seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apps.core.forms import whole
from apps.core.models import Project
from apps.evals.holdout.leaks import Leak
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Split


def record_view(
    *, eval_set: EvalSet, by: Any, detail: str = "", kind: HoldoutView.Kind = HoldoutView.Kind.VIEW
) -> HoldoutView:
    return HoldoutView.objects.create(eval_set=eval_set, kind=kind, by=by, detail=detail[:200])


def record_leak_views(project: Project, leaks: Iterable[Leak], *, by: Any) -> None:
    """One view of each set whose held-out requests these leaks show."""
    for name in {leak.theirs_set.partition(",")[0] for leak in leaks}:
        slug, _, version = name.rpartition("@")
        found = EvalSet.objects.filter(project=project, slug=slug, version=whole(version))
        for eval_set in found:
            record_view(eval_set=eval_set, by=by, detail="a leak, side by side")


def record_output_view(run: EvalRun, *, by: Any) -> bool:
    """A page with outputs on held-out tasks is a view: one for each person and evaluation, however often.

    Returns whether the run's tasks are held out.
    """
    if run.split != Split.HOLDOUT:
        return False
    detail = f"outputs of {run.name} ({run.pk})"[:200]
    if not run.eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW, by=by, detail=detail).exists():
        record_view(eval_set=run.eval_set, by=by, detail=detail)
    return True
