"""Trials, their answers and the runs behind them, as actions and the endpoint would have made
them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from apps.failures.models import Failure, FailureMode
from apps.promotion.models import Channel, Trial, TrialAnswer, TrialSession
from apps.registry.models import ModelVersion
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trace, Trajectory, TrajectoryKey
from tests.factories import row

STEPS = [{"share": share, "min_sessions": 10, "min_minutes": 0} for share in (0.05, 0.25, 0.5)]


def make_trial(channel: Channel, version: ModelVersion, **fields: Any) -> Trial:
    """A canary that runs."""
    now = timezone.now() - timedelta(hours=1)
    given = {
        "kind": "canary",
        "state": "running",
        "steps": STEPS,
        "started_at": now,
        "step_at": now,
        "by_name": "ana",
        "project": channel.project,
        "channel": channel,
        "version": version,
        "baseline": channel.current,
    }
    return Trial.objects.create(**given | fields)


def answer(trial: Trial, unit: str, lane: str = "current", **fields: Any) -> TrialAnswer:
    """Unsaved, a quarter of an hour ago."""
    given = {
        "step": trial.step,
        "trace_id": secrets.token_hex(16),
        "span_id": secrets.token_hex(8),
        "answered": True,
        "ms": 200.0,
        "first_ms": 50.0,
        "tokens": 100,
        "at": timezone.now() - timedelta(minutes=15),
    }
    return TrialAnswer(trial=trial, unit=unit, lane=lane, **given | fields)


def asked(
    trial: Trial, unit: str, lane: str = "current", *, failed: str = "", **fields: Any
) -> TrialAnswer:
    """A stored answer whose run is stored, too. `failed`: the slug of the mode of the run's
    failure.
    """
    found = answer(trial, unit, lane, **fields)
    store(trial, [found])
    if failed:
        fail(trial, found.trace_id, failed)
    return found


def store(trial: Trial, answers: Sequence[TrialAnswer]) -> None:
    """With the runs behind them."""
    TrialAnswer.objects.bulk_create(answers)
    project, names = trial.project, list(dict.fromkeys(one.trace_id for one in answers))
    stored = Trace.objects.filter(project=project, trace_id__in=names)
    known = set(stored.values_list("trace_id", flat=True))
    new = [name for name in names if name not in known]
    done = ingest(project=project, rows=[row(name=name) for name in new])
    assert not done.rejected, done.rejected
    now = timezone.now()
    Trace.objects.bulk_create(
        Trace(project=project, trace_id=name, first_at=now, touched_at=now, runs=[name])
        for name in new
    )


def fail(trial: Trial, trace_id: str, mode: str = "bad_planning") -> Failure:
    key = TrajectoryKey.objects.get(
        project=trial.project, external_id=Trace.objects.get(trace_id=trace_id).runs[0]
    )
    run = Trajectory.objects.get(pk=key.trajectory_id)
    named = {"name": mode, "safety_relevant": mode == "unsafe_action"}
    row = FailureMode.objects.get_or_create(project=trial.project, slug=mode, defaults=named)[0]
    return Failure.objects.create(project=trial.project, trajectory=run, mode=row)


def add_sessions(
    trial: Trial,
    lane: str,
    good: int,
    bad: int = 0,
    what: Sequence[str] = ("success",),
    **fields: Any,
) -> None:
    """Settled ones of the present step; the bad ones are bad in `what`."""
    now: datetime = timezone.now()
    rows = []
    for number in range(good + bad):
        verdicts = {
            name: number < good or name not in what for name in ("success", "safety", "answered")
        }
        given = {
            "step": trial.step,
            "requests": 1,
            "began_at": now,
            "ended_at": now,
            "trace_id": secrets.token_hex(16),
        }
        rows.append(
            TrialSession(
                trial=trial, lane=lane, **{"unit": secrets.token_hex(8)} | given | verdicts | fields
            )
        )
    TrialSession.objects.bulk_create(rows)
