"""Gives a trial's candidate its first share of the traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import DurationField, ExpressionWrapper, F
from django.utils import timezone

from apps.promotion.conditions import PromotionError
from apps.promotion.deployment.models import Deployment
from apps.promotion.effects.windows import Window, count, label_of
from apps.promotion.freezing import require_not_frozen
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel
from apps.promotion.trials.announcing import announce_started
from apps.promotion.trials.harm import Course, Harm, forecast
from apps.promotion.trials.models import Trial, TrialState
from apps.promotion.trials.plans import Plan
from apps.registry.models import ModelVersion
from workers.lib.errors import JobError

ASSUMED_FAILING = 0.1  # if few runs are known
KNOWN_FAILURES, KNOWN_FAILURES_MOST = (
    20,
    10_000,
)  # from which on, and of how many, delays of outcomes are read
MOST_WAITED = 2 * 24 * 60  # minutes that outcomes are waited for, unless somebody chooses more
KNOWN_RUNS = 100  # sessions of the last week from which on their rate is known


def start(deployment: Deployment) -> None:
    """Once its deployment has verified the candidate everywhere; a running trial gets it back where
    it was lost, also during a freeze. Raises JobError if the trial has ended meanwhile,
    PromotionError if the channel was frozen before it began.
    """
    trial = (
        Trial.objects.active().select_for_update(of=("self",)).filter(deployment=deployment).first()
    )
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
    trial.state, trial.started_at, trial.step_at, trial.step = TrialState.RUNNING, now, now, 0
    trial.save(update_fields=["state", "started_at", "step_at", "step"])
    announce_started(trial)
    notify_listeners(trial.channel)


def usual_rate(project: int, version: ModelVersion) -> float | None:
    """The rate of a version's runs in the last week that did not fail; None if there are few."""
    now = timezone.now()
    found = count(project, Window(now - timedelta(days=7), now, label_of(version)))
    return 1 - found.failed / found.runs if found.runs >= KNOWN_RUNS else None


@dataclass(frozen=True)
class Forecast:
    """What a canary may cost, for a plan. `known`: the current version's failure rate is last
    week's, not an assumption.
    """

    failing: float
    known: bool
    outcome_minutes: int
    harm: list[Harm]


def forecast_of(channel: Channel, plan: Plan) -> Forecast:
    """Raises PromotionError if nothing is live, or the plan cannot be followed."""
    if channel.current is None:
        raise PromotionError(f"Nothing is live in {channel} yet, so there is no baseline.")
    if problem := plan.problem("canary"):
        raise PromotionError(problem)
    rate = usual_rate(channel.project_id, channel.current)
    failing = ASSUMED_FAILING if rate is None else 1 - rate
    course = Course(plan.steps_for("canary"), plan.alpha, plan.margin, plan.max_harmed)
    return Forecast(
        failing, rate is not None, outcome_minutes(channel, plan), forecast(course, failing)
    )


def outcome_minutes(channel: Channel, plan: Plan) -> int:
    """For how long outcomes are waited for."""
    if plan.outcome_minutes is not None or channel.current is None:
        return plan.outcome_minutes or 0
    return usual_outcome_minutes(channel.project_id, channel.current)


def usual_outcome_minutes(project: int, version: ModelVersion) -> int:
    """How long outcomes took last week: within so many minutes after a run was received, nine of
    ten failures of the version were known. 0 if few failed."""
    now = timezone.now()
    rows = Window(now - timedelta(days=7), now, label_of(version)).failures(project)
    took = ExpressionWrapper(
        F("created_at") - F("trajectory__received_at"), output_field=DurationField()
    )
    waited = sorted(rows.values_list(took, flat=True)[:KNOWN_FAILURES_MOST])
    if len(waited) < KNOWN_FAILURES:
        return 0
    longest = waited[math.ceil(0.9 * len(waited)) - 1]
    return max(0, min(MOST_WAITED, math.ceil(longest / timedelta(minutes=1))))
