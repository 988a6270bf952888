"""The checkpoints of a run: which one it resumes from, and which ones are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from django.conf import settings
from django.db import transaction

from apps.core import job_files, jobs
from apps.core.job_files import job_folder
from apps.training.models import Checkpoint, RunAlarm, TrainingRun
from workers.lib.sampled_tasks import SAMPLED
from workers.lib.teacher_server import LEDGER

SPARES_WEIGHTS = (
    "stall",
    "masked",
    "tool_failures",
    "bypasses",
)  # alarms whose cause is outside of the policy
BEST_BY = (
    "validation/success",
    "validation/reward",
)  # the first of these that the run reports; higher is better


def available(run: TrainingRun) -> list[Checkpoint]:
    """The checkpoints that a later attempt can have, newest first."""
    return [one for one in run.checkpoints.all() if job_files.has(run, one.folder)]


def latest(run: TrainingRun) -> Checkpoint | None:
    return next(iter(available(run)), None)


def kept_names(run: TrainingRun) -> list[str]:
    """What a later attempt continues from; nothing of a cluster's job, which goes on by itself."""
    if run.on_cluster:
        return []
    checkpoints = [one.folder for one in run.checkpoints.all()]
    return [*checkpoints, *(f"out/{name}" for name in (SAMPLED, LEDGER))]


def bring(run: TrainingRun) -> Path | None:
    """The newest checkpoint as a folder of this machine, for the attempt that begins, and the other
    files that it goes on with; None if it begins at the start. Says in the run's log how many steps
    are done again. Raises OSError.
    """
    for name in (SAMPLED, LEDGER):
        job_files.bring(run, f"out/{name}")
    checkpoint = latest(run)
    folder = job_files.bring(run, checkpoint.folder) if checkpoint else None
    if run.attempt > 1:
        jobs.note(run, _goes_on(run, checkpoint.step if checkpoint else 0))
    return folder


def _goes_on(run: TrainingRun, step: int) -> str:
    last = run.metrics.order_by("-at", "-step").values_list("step", flat=True).first() or 0
    lost = max(0, last - step)
    begins = f"continues from the checkpoint at step {step:,}" if step else "begins at the start"
    again = (
        f"{lost:,} step{'s were' if lost > 1 else ' was'} lost and {'are' if lost > 1 else 'is'}"
        " trained again"
        if lost
        else "no step was lost"
    )
    return f"Attempt {run.attempt}, on {run.worker.partition(':')[0]}, {begins}: {again}."


def best(run: TrainingRun, checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """The one whose last validation at or before its step was best, the newest among equals."""
    for name in BEST_BY:
        values = dict(run.metrics.filter(name=name).values_list("step", "value"))
        found = [
            (values[max(before)], checkpoint.step, checkpoint)
            for checkpoint in checkpoints
            if (before := [step for step in values if step <= checkpoint.step])
        ]
        if found:
            return max(found, key=lambda one: one[:2])[2]
    return None


def before_alarm(run: TrainingRun, checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """The newest checkpoint from before the first sign of whatever ended the run, or else before
    the first active alarm: a warning that has been active from the beginning says nothing about a
    later explosion. `checkpoints` are newest first.
    """
    first = _first_steps(run)
    acted = run.alarms.filter(cleared_step=None, action__in=("pause", "stop")).values_list(
        "name", flat=True
    )
    steps = [first[name] for name in acted if name in first] or list(first.values())
    return _before(min(steps), checkpoints) if steps else None


def spoiling_alarm(run: TrainingRun) -> RunAlarm | None:
    """The alarm that ended the run, where the newest checkpoint has what it is about: such a run is
    forked, rather than resumed.
    """
    ended = run.alarms.filter(cleared_step=None, action__in=("pause", "stop"))
    return ended.exclude(name__in=SPARES_WEIGHTS).first()


def _first_steps(run: TrainingRun) -> dict[str, int]:
    """{active alarm: the step of its first sign}"""
    rows = run.alarms.filter(cleared_step=None).order_by("-step").values_list("name", "step")
    return dict(rows)  # the first step wins


def _before(step: int, checkpoints: list[Checkpoint]) -> Checkpoint | None:
    return next((one for one in checkpoints if one.step < step), None)


def prune(run: TrainingRun) -> None:
    """Removes all but the newest FLYWHEEL_KEPT_CHECKPOINTS, the best, and the last one before each
    active alarm: any of them may end the run. Their folders go after the commit, what is kept of
    them with the keeper's next round."""
    checkpoints = list(run.checkpoints.order_by("-step"))
    kept = {one.pk for one in checkpoints[: settings.FLYWHEEL_KEPT_CHECKPOINTS]}
    if good := best(run, checkpoints):
        kept.add(good.pk)
    kept |= {safe.pk for step in _first_steps(run).values() if (safe := _before(step, checkpoints))}
    gone = [one for one in checkpoints if one.pk not in kept]
    if gone:
        Checkpoint.objects.filter(pk__in=[one.pk for one in gone]).delete()
        home = job_folder(run)
        transaction.on_commit(
            lambda: [shutil.rmtree(home / one.folder, ignore_errors=True) for one in gone]
        )
