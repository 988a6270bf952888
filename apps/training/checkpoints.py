"""The checkpoints of a run: which one it resumes from, and which ones are kept."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from django.conf import settings
from django.db import transaction

from apps.core.runner import job_folder
from apps.training.models import Checkpoint, RunAlarm, TrainingRun

log = logging.getLogger(__name__)
SPARES_WEIGHTS = ("stall", "masked", "tool_failures")  # alarms whose cause is outside of the policy
BEST_BY = (
    "validation/success",
    "validation/reward",
)  # the first of these that the run reports; higher is better


def latest(run: TrainingRun) -> Checkpoint | None:
    """The newest checkpoint whose folder exists: a checkpoint is complete or absent."""
    return next(
        (checkpoint for checkpoint in run.checkpoints.all() if Path(checkpoint.path).is_dir()), None
    )


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
    active alarm: any of them may end the run. Folders are removed after the commit."""
    checkpoints = list(run.checkpoints.order_by("-step"))
    kept = {one.pk for one in checkpoints[: settings.FLYWHEEL_KEPT_CHECKPOINTS]}
    if good := best(run, checkpoints):
        kept.add(good.pk)
    kept |= {safe.pk for step in _first_steps(run).values() if (safe := _before(step, checkpoints))}
    gone = [one for one in checkpoints if one.pk not in kept]
    if gone:
        Checkpoint.objects.filter(pk__in=[one.pk for one in gone]).delete()
        home = job_folder(run)
        transaction.on_commit(lambda: [_remove(Path(one.path), home) for one in gone])


def _remove(folder: Path, home: Path) -> None:
    """Only what the run itself wrote. A folder that cannot be removed costs space, not the run."""
    if not folder.resolve().is_relative_to(home.resolve()):
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("The checkpoint %s could not be removed: %s", folder, error)
