"""The last check against the hold-outs before a job trains or optimises on tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from apps.core.models import Project
from apps.evals.actions import HoldoutLeak
from apps.evals.holdout import groups, leaks
from apps.evals.holdout.view_log import record_membership
from apps.evals.models import Task
from apps.training.judged import Example
from apps.training.models import PromptSearch, TrainingRun
from apps.training.sources import leak_row
from apps.trajectories.models import Trajectory, with_content


def refuse_leaks(
    run: TrainingRun | PromptSearch,
    tasks: list[Task],
    rows: Iterable[tuple[str, dict]],
    prompt: dict | None = None,
) -> None:
    """Raises HoldoutLeak if any (task, row as written into the job's spec) is held out: hold-outs
    may have been frozen after the dataset. `prompt`: that of a prompt version, which replaces the
    harness's.
    """
    if refused := groups.refusal(run.project, tasks):
        record_membership(
            run.project, refused.held, by=run.created_by, detail=f"a refusal to train: {run}"
        )
        raise HoldoutLeak(f"Nothing was trained. {refused.sentence}")
    refuse_held_runs(run)
    for leak in chain(leaks.of_harness(run.environment, prompt), leaks.of_rows(run.project, rows)):
        record_membership(
            run.project, [leak.theirs_hash], by=run.created_by, detail=f"a refusal to train: {run}"
        )
        raise HoldoutLeak(f"Nothing was trained. {leak}")


def refuse_held_runs(run: TrainingRun | PromptSearch) -> None:
    """Raises HoldoutLeak if a production run that it learns from now belongs to a held-out
    group.
    """
    pks = run.dataset.examples.exclude(trajectory=None).values_list("trajectory", flat=True)
    if held := _held_runs(run.project, pks):
        raise HoldoutLeak(f"Nothing was trained. {held}")


def refusal_of(project: Project, examples: Sequence[Example]) -> tuple[str, list[str]] | None:
    """(a sentence, canonical hashes of what is held out) if examples may not train; None if nothing
    prevents it.
    """
    if held := _held_runs(
        project, {example.trajectory for example in examples if example.trajectory}
    ):
        return held, []
    tasks = Task.objects.in_bulk({example.task for example in examples if example.task})
    rows = ((example.source, leak_row(example, tasks.get(example.task))) for example in examples)
    leak = next(leaks.of_rows(project, rows), None)
    return (str(leak), [leak.theirs_hash]) if leak else None


def _held_runs(project: Project, pks: Iterable[Any]) -> str:
    runs = list(Trajectory.objects.filter(project=project, pk__in=list(pks)))
    held = groups.held_out_runs(project, with_content(runs))
    return (
        f"{len(held)} of these production runs belong to the hold-out. Start a new run, which"
        " leaves them out."
        if held
        else ""
    )
