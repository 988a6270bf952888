"""Gives a trial's candidate its first share of the traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import DurationField, ExpressionWrapper, F
from django.utils import timezone

from apps.promotion.conditions import PromotionError
from apps.promotion.deployment.models import Deployment
from apps.promotion.effects.windows import Counted, Window, count, label_of
from apps.promotion.freezing import require_not_frozen
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel
from apps.promotion.trials.announcing import announce_started
from apps.promotion.trials.harm import Course, Harm, forecast
from apps.promotion.trials.models import Trial, TrialState
from apps.promotion.trials.plans import Plan
from apps.registry.models import ModelVersion
from workers.lib.errors import JobError

WEEK = timedelta(days=7)
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
    if trial.kind == Trial.Kind.CANARY:
        trial.room, trial.room_at = trial.max_harmed, now
    trial.save(update_fields=["state", "started_at", "step_at", "step", "room", "room_at"])
    announce_started(trial)
    notify_listeners(trial.channel)


def last_week(project: int, version: ModelVersion) -> Counted:
    now = timezone.now()
    return count(project, Window(now - WEEK, now, label_of(version)))


@dataclass(frozen=True)
class Forecast:
    """What a canary may cost, for a plan. `known`: the current version's failure rate is last
    week's, not an assumption. `unseen`: how many runs of the candidate begin in the first step
    before the outcome of the first is known, at last week's traffic. `pauses`: in some step so many
    would that intake will pause, which `harm` allows for.
    """

    failing: float
    known: bool
    outcome_minutes: int
    unseen: int
    pauses: bool
    harm: list[Harm]


def forecast_of(channel: Channel, plan: Plan) -> Forecast:
    """Raises PromotionError if nothing is live, or the plan cannot be followed."""
    if channel.current is None:
        raise PromotionError(f"Nothing is live in {channel} yet, so there is no baseline.")
    if problem := plan.problem("canary"):
        raise PromotionError(problem)
    week = last_week(channel.project_id, channel.current)
    known = week.runs >= KNOWN_RUNS
    failing = week.failed / week.runs if known else ASSUMED_FAILING
    steps, minutes = plan.steps_for("canary"), outcome_minutes(channel, plan)
    delay = week.runs * (timedelta(minutes=minutes) / WEEK)
    course = Course(
        steps,
        plan.alpha,
        plan.margin,
        plan.max_harmed,
        delay=delay,
        longest=week.runs * (timedelta(days=plan.max_days) / WEEK) if known else math.inf,
    )
    unseen = round(steps[0]["share"] * delay)
    pauses = max(step["share"] for step in steps) * delay >= plan.max_harmed
    return Forecast(failing, known, minutes, unseen, pauses, forecast(course, failing))


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
