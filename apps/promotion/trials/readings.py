"""What is known about a stored trial now, for `deciding`."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from apps.promotion.trials.deciding import Reading, Rules, read
from apps.promotion.trials.models import Trial
from apps.promotion.trials.sessions import lanes_of, mature_sessions, waiting_sessions


def rules_of(trial: Trial) -> Rules:
    return Rules(
        trial.kind,
        trial.steps,
        trial.step,
        trial.alpha,
        trial.margin,
        trial.step_at,
        trial.ends_by,
        trial.has_passed,
        trial.max_harmed,
        trial.paused_for,
    )


def reading_of(trial: Trial, now: datetime | None = None) -> Reading:
    now = now or timezone.now()
    return read(
        rules_of(trial), lanes_of(trial), mature_sessions(trial, now), waiting_sessions(trial, now)
    )
