"""Gives a trial's candidate its first share of the traffic."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from apps.promotion.deployment.models import Deployment
from apps.promotion.effects.windows import Window, count, label_of
from apps.promotion.freezing import require_not_frozen
from apps.promotion.listeners import notify_listeners
from apps.promotion.trials.announcing import announce_started
from apps.promotion.trials.deciding import MEASURES
from apps.promotion.trials.models import Trial, TrialState
from apps.registry.models import ModelVersion
from workers.lib.errors import JobError

KNOWN_RUNS = 100  # sessions of the last week from which on their rate is the first step's centre


def start(deployment: Deployment) -> None:
    """Once its deployment has verified the candidate everywhere; a running trial gets it back where it was lost, also during a freeze.
    Raises JobError if the trial has ended meanwhile, PromotionError if the channel was frozen before it began."""
    trial = Trial.objects.active().select_for_update(of=("self",)).filter(deployment=deployment).first()
    if trial is None:
        raise JobError("The trial has already finished.")
    if trial.state == TrialState.PREPARING:
        require_not_frozen(trial.channel)
        run(trial)
    else:
        notify_listeners(trial.channel)


def run(trial: Trial) -> None:
    """In the caller's transaction, with the row locked or new."""
    now = timezone.now()
    trial.steps[0]["centre"] = dict.fromkeys(MEASURES, 1.0) | {"success": usual_rate(trial.project_id, trial.baseline)}
    trial.state, trial.started_at, trial.step_at, trial.step = TrialState.RUNNING, now, now, 0
    trial.save(update_fields=["steps", "state", "started_at", "step_at", "step"])
    announce_started(trial)
    notify_listeners(trial.channel)


def usual_rate(project: int, version: ModelVersion) -> float:
    """The rate of a version's runs in the last week that did not fail; 0.5 if there are few."""
    now = timezone.now()
    found = count(project, Window(now - timedelta(days=7), now, label_of(version)))
    return 1 - found.failed / found.runs if found.runs >= KNOWN_RUNS else 0.5
