from __future__ import annotations

from celery import shared_task

from apps.promotion import watched
from apps.promotion.deployment import checking, unloading
from apps.promotion.models import Target
from apps.promotion.trials import running


@shared_task(name=unloading.UNLOAD, expires=60)
def unload() -> int:
    return unloading.unload_leaving()


@shared_task(name="promotion.check_targets", expires=30)
def check_targets() -> int:
    """One message per target, so that a server that hangs does not delay others."""
    pks = checking.to_check()
    for pk in pks:
        check_target.apply_async(args=[pk], expires=60)
    return len(pks)


@shared_task(name="promotion.check_target")
def check_target(pk: int) -> None:
    target = (
        Target.objects.current().filter(pk=pk).select_related("server", "channel__current").first()
    )
    if target is not None and not target.channel.not_served:
        checking.check(target)


@shared_task(name="promotion.check_live_servers", expires=20)
def check_live_servers() -> int:
    return watched.check_soon()


@shared_task(name="promotion.look_at_trials", expires=15)
def look_at_trials() -> int:
    """One message per trial, so that a large one does not delay others."""
    pks = running.to_look_at()
    for pk in pks:
        look_at_trial.apply_async(args=[str(pk)], expires=30)
    return len(pks)


@shared_task(name="promotion.look_at_trial")
def look_at_trial(pk: str) -> None:
    running.look(pk)
