"""Looks at a hold-out that come about beside its own page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apps.core.models import Project
from apps.evals import actions
from apps.evals.leaks import Leak
from apps.evals.models import EvalRun, EvalSet, HoldoutLook, Split


def count_shown(project: Project, leaks: Iterable[Leak], *, by: Any) -> None:
    """Counts one look at each set whose held-out requests stand in these leaks."""
    for name in {leak.theirs_set.partition(",")[0] for leak in leaks}:
        slug, _, version = name.rpartition("@")
        found = EvalSet.objects.filter(project=project, slug=slug, version=version) if version.isdecimal() else []
        for eval_set in found:
            actions.look(eval_set=eval_set, kind=HoldoutLook.Kind.VIEW, by=by, detail="a leak, side by side")


def count_outputs_shown(run: EvalRun, *, by: Any) -> bool:
    """A page with outputs on held-out tasks is a look at them: one for each person and evaluation, however often.

    Returns whether it is one.
    """
    if run.split != Split.HOLDOUT:
        return False
    detail = f"outputs of {run.name} ({run.pk})"[:200]
    if not run.eval_set.looks.filter(kind=HoldoutLook.Kind.VIEW, by=by, detail=detail).exists():
        actions.look(eval_set=run.eval_set, kind=HoldoutLook.Kind.VIEW, by=by, detail=detail)
    return True
