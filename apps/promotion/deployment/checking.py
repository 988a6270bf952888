"""Checks whether targets still hold what they should: a restarted server has lost its adapters, and
gets them back.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from django.utils import timezone

from apps.core.models import JobState, Stage
from apps.promotion.conditions import PromotionError
from apps.promotion.deployment import actions
from apps.promotion.deployment.models import Deployment, Placement, Target
from apps.promotion.deployment.places import lora_name
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel
from apps.promotion.trials.keeping import keep_candidate
from apps.registry.servers import address_of
from workers.lib.serving import list_models

log = logging.getLogger(__name__)
AGAIN_AFTER = timedelta(minutes=5)  # for which a failed restore is not retried automatically


def to_check() -> list[int]:
    channels = Channel.objects.live().filter(project__stage=Stage.ACTIVE)
    return list(
        Target.objects.current()
        .filter(channel__in=channels, server__isnull=False)
        .values_list("pk", flat=True)
    )


def check(target: Target) -> None:
    """Asks the server what it lists, and has missing adapters loaded again. A server that is down
    is left alone until it is back.
    """
    server, channel = target.server, target.channel
    assert server is not None
    if channel.deployments.active().exists():
        return
    placement = Placement.objects.ready().filter(target=target, version=channel.current_id).first()
    listing = list_models(address_of(server)) if server.base_url else None
    problem, missing = "", placement is None
    if listing is None or listing.health == "down":
        problem, missing = listing.sentence if listing else f"{server} is not up.", False
    elif placement and listing.health == "healthy":
        listed = {row["id"] for row in listing.models}
        missing = not {placement.served_as, lora_name(placement.served_as)} & listed
        problem = f"The server does not list {placement.served_as}." if missing else ""
    if placement:
        _store(placement, problem[:500])
    if missing:
        _restore(target)
    elif listing and listing.health == "healthy":
        keep_candidate(target, {row["id"] for row in listing.models})


def _store(placement: Placement, problem: str) -> None:
    changed = placement.problem != problem
    Placement.objects.filter(pk=placement.pk).update(problem=problem, checked_at=timezone.now())
    if changed:
        notify_listeners(placement.target.channel)


def _restore(target: Target) -> None:
    channel = target.channel
    failed = channel.deployments.filter(
        kind=Deployment.Kind.RESTORE,
        state=JobState.FAILED,
        finished_at__gt=timezone.now() - AGAIN_AFTER,
    )
    if failed.exists():
        return
    try:
        actions.restore(
            channel=channel, by=None, reason=f"{target.server} does not hold {channel.current}"
        )
    except PromotionError as error:
        log.warning("%s is not restored: %s", channel, error)
