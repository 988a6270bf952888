"""What people, webhooks and the audit log are told about a trial. Numbers and links, no
conversation content.
"""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from apps.core.actions import audit
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.promotion.trials.models import Trial, TrialState
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

ENDINGS = {
    TrialState.PROMOTED: "was promoted",
    TrialState.ROLLED_BACK: "was rolled back",
    TrialState.STOPPED: "was stopped",
    TrialState.UNDECIDED: "ended undecided",
    TrialState.FAILED: "failed",
}


def trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "id": str(trial.pk),
        "channel": trial.channel.name,
        "kind": trial.kind,
        "version": str(trial.version),
        "baseline": str(trial.baseline),
        "gate_report": str(trial.gate_report_id) if trial.gate_report_id else None,
        "deployment": str(trial.deployment_id) if trial.deployment_id else None,
        "state": trial.state,
        "step": trial.step,
        "share": trial.share,
        "steps": [
            {name: step[name] for name in ("share", "min_sessions", "min_minutes")}
            for step in trial.steps
        ],
        "alpha": trial.alpha,
        "margin": trial.margin,
        "max_days": trial.max_days,
        "max_harmed": trial.max_harmed,
        "outcome_minutes": trial.outcome_minutes,
        "then": trial.then,
        "reason": trial.reason,
        "by": trial.by_name,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "step_at": trial.step_at,
        "ended_at": trial.ended_at,
        "ended_because": trial.ended_because,
        "passed": trial.has_passed,
        "report": trial.report,
        "decisions": trial.decisions,
    }


def announce_started(trial: Trial) -> None:
    audit(
        "trial.started",
        project=trial.project,
        by=trial.by,
        actor_label=trial.by_name,
        target=trial,
        about=[trial.channel, trial.version],
        kind=trial.kind,
        version=str(trial.version),
        channel=trial.channel.name,
        share=f"{trial.share:.0%}",
        reason=trial.reason,
    )
    _announce(trial, Event.TRIAL_STARTED, f"{trial.channel}: {trial.title} started", by=trial.by)


def announce_advanced(trial: Trial, why: str, *, by: Any = None, actor_label: str = "") -> None:
    audit(
        "trial.advanced",
        project=trial.project,
        by=by,
        actor_label=actor_label,
        target=trial,
        about=[trial.channel, trial.version],
        kind=trial.kind,
        version=str(trial.version),
        channel=trial.channel.name,
        share=f"{trial.share:.0%}",
        reason=why,
    )
    _announce(
        trial,
        Event.TRIAL_ADVANCED,
        f"{trial.channel}: {trial.kind} of {trial.version} at {trial.share:.0%}",
        by=by,
    )


def announce_passed(trial: Trial, why: str) -> None:
    """The last step is passed and a person has to decide."""
    audit(
        "trial.passed",
        project=trial.project,
        by=None,
        target=trial,
        about=[trial.channel, trial.version],
        kind=trial.kind,
        version=str(trial.version),
        channel=trial.channel.name,
        reason=why,
    )
    _announce(
        trial,
        Event.TRIAL_ADVANCED,
        f"{trial.channel}: {trial.kind} of {trial.version} passed its last step",
    )


def announce_ended(trial: Trial, *, by: Any = None, actor_label: str = "") -> None:
    ending = ENDINGS[TrialState(trial.state)]
    audit(
        "trial.ended",
        project=trial.project,
        by=by,
        actor_label=actor_label,
        target=trial,
        about=[trial.channel, trial.version],
        kind=trial.kind,
        version=str(trial.version),
        channel=trial.channel.name,
        ending=ending,
        reason=trial.ended_because,
    )
    _announce(
        trial,
        Event.TRIAL_ENDED,
        f"{trial.channel}: {trial.kind} of {trial.version} {ending}",
        by=by,
    )


def _announce(trial: Trial, event: Event, subject: str, by: Any = None) -> None:
    page = trial.get_absolute_url()
    announce(
        project=trial.project,
        event=event,
        subject=subject,
        data={
            "trial": trial_json(trial),
            "page": page,
            "api": reverse("promotion_api:trial", args=[trial.channel.name, trial.pk]),
        },
    )
    notify(
        topic=Topic(event.value),
        project=trial.project,
        by=by,
        subject=subject,
        page=page,
        key=f"trial:{trial.pk}:{event}:{trial.step}:{trial.has_passed}",
        excerpt=trial.ended_because,
    )
