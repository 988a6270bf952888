"""The last check before anything is optimised on tasks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from apps.evals.actions import HoldoutLeak
from apps.evals.holdout import groups, leaks
from apps.evals.holdout.view_log import record_membership
from apps.evals.models import Task
from apps.training.models import PromptSearch, TrainingRun


def refuse_leaks(
    run: TrainingRun | PromptSearch, tasks: list[Task], rows: Iterable[tuple[str, dict]], prompt: dict | None = None
) -> None:
    """The last check before anything trains, over (task, row as it is written into the job's spec): hold-outs may have been
    frozen since the dataset was. `prompt`: a prompt version's, which stands in place of the harness's. Raises HoldoutLeak."""
    if refused := groups.refusal(run.project, tasks):
        record_membership(run.project, refused.held, by=run.created_by, detail=f"a refusal to train: {run}")
        raise HoldoutLeak(f"Nothing was trained. {refused.sentence}")
    for leak in leaks.of_rows(run.project, chain(leaks.harness_rows(run.environment, prompt), rows)):
        record_membership(run.project, [leak.theirs_hash], by=run.created_by, detail=f"a refusal to train: {run}")
        raise HoldoutLeak(f"Nothing was trained. {leak}")
