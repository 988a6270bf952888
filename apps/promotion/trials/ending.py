"""How a trial ends: by its own decision, by a person, by a change of its channel, or because its
candidate cannot be served.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from apps.core.models import JobState
from apps.promotion.deployment.models import Deployment, Placement
from apps.promotion.deployment.unloading import leave
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Promotion
from apps.promotion.trials import looks
from apps.promotion.trials.announcing import announce_ended
from apps.promotion.trials.models import ACTIVE_TRIAL, Trial, TrialState


def end(
    trial: Trial, state: TrialState, because: str, *, by: Any = None, actor_label: str = ""
) -> bool:
    """In the caller's transaction. False if it has already ended. What was loaded for it is
    unloaded, unless the channel runs it.
    """
    ended = Trial.objects.filter(pk=trial.pk, state__in=ACTIVE_TRIAL)
    if not ended.update(state=state, ended_at=timezone.now(), ended_because=because):
        return False
    trial.refresh_from_db()
    if trial.report:  # its page and the API keep both sides as they were at the end
        trial.report["sides"] = looks.sides_of(trial)
        trial.save(update_fields=["report"])
    if state != TrialState.PROMOTED:
        loaded = Placement.objects.filter(
            target__channel=trial.channel_id,
            version=trial.version_id,
            deployment__kind=Deployment.Kind.TRIAL,
        )
        leave(loaded.exclude(state=Placement.State.LEAVING))
    announce_ended(trial, by=by, actor_label=actor_label)
    notify_listeners(trial.channel)
    return True


def channel_moved(move: Promotion) -> None:
    """The channel runs something else now, whoever moved it: the trial's baseline is gone."""
    trial = Trial.objects.active().filter(channel=move.channel_id).select_related("channel").first()
    if trial is None:
        return
    if move.to_version_id == trial.version_id:
        end(trial, TrialState.PROMOTED, f"{move.to_name} was promoted: {move.reason}", by=move.by)
        return
    did = "rolled back to" if move.kind == Promotion.Kind.ROLLBACK else "promoted"
    end(trial, TrialState.STOPPED, f"{move.by_name} {did} {move.to_name} meanwhile.", by=move.by)


def deployment_ended(job: Deployment) -> None:
    """A deployment that loads a trial's candidate, or that promotes it, failed."""
    stopped = job.state == JobState.CANCELLED
    state = TrialState.STOPPED if stopped else TrialState.FAILED
    why = job.error or ("Its deployment was stopped." if stopped else "Its deployment failed.")
    trials = Trial.objects.active().filter(channel=job.channel_id).select_related("channel")
    if job.kind == Deployment.Kind.TRIAL:
        trial, what = trials.filter(deployment=job).first(), "It could not be loaded"
    else:
        trial, what = (
            trials.filter(state=TrialState.PROMOTING, version=job.version_id).first(),
            "It passed, but was not promoted",
        )
    if trial is not None:
        end(trial, state, f"{what}: {why}")
