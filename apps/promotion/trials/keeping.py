"""A restarted server has lost the candidate of a trial: it is loaded and verified there again."""

from __future__ import annotations

import logging
from collections.abc import Collection

from django.db import transaction

from apps.promotion.conditions import PromotionError
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment.models import Deployment, Placement, Target
from apps.promotion.deployment.places import lora_name
from apps.promotion.moves import locked
from apps.promotion.trials.models import Trial, TrialState

log = logging.getLogger(__name__)


def keep_candidate(target: Target, listed: Collection[str]) -> None:
    """`listed`: what its healthy server says that it serves. Until the candidate is back, the
    current version answers its requests, and they count against it; if it cannot be loaded, the
    trial ends."""
    trial = Trial.objects.filter(channel=target.channel_id, state=TrialState.RUNNING).first()
    if trial is None:
        return
    held = Placement.objects.ready().filter(target=target, version=trial.version_id).first()
    if held and {held.served_as, lora_name(held.served_as)} & set(listed):
        return
    try:
        _load_again(trial, f"{target.server} does not hold {trial.version}")
    except PromotionError as error:
        log.warning("%s is not loaded again: %s", trial, error)


@transaction.atomic
def _load_again(trial: Trial, why: str) -> None:
    channel = locked(trial.channel)
    row = Trial.objects.select_for_update(of=("self",)).get(pk=trial.pk)
    if row.state != TrialState.RUNNING:
        return
    given = {"kind": Deployment.Kind.TRIAL, "version": row.version, "by": None, "reason": why}
    row.deployment = deployments.begin(channel=channel, **given)
    row.save(update_fields=["deployment"])
