"""A freeze: until a time, or until somebody lifts it, nobody promotes to a channel. A rollback
stays possible.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import ApiKey, Role
from apps.promotion.announcing import announce_freeze
from apps.promotion.conditions import PromotionError, checked_reason
from apps.promotion.models import Channel, Freeze
from apps.promotion.moves import locked, name_of
from apps.promotion.policies import label_of, policy_of, require_keys_allowed

FREEZES = Role.OPERATOR
MOST = timedelta(days=3650)


def freeze_of(channel: Channel) -> Freeze | None:
    return channel.freezes.active().first()


def in_words(row: Freeze) -> str:
    until = f"until {row.until:%Y-%m-%d %H:%M} UTC" if row.until else "until it is lifted"
    return f"frozen {until} by {row.by_name}: {row.reason}"


def require_not_frozen(channel: Channel) -> None:
    """Raises PromotionError."""
    if row := freeze_of(channel):
        raise PromotionError(
            f"{channel} is {in_words(row)}. A rollback is possible; an operator can lift the"
            " freeze."
        )


@transaction.atomic
def freeze(
    *,
    channel: Channel,
    reason: str,
    by: Any,
    until: datetime | None = None,
    key: ApiKey | None = None,
) -> Freeze:
    """Replaces an active freeze. Needs an operator and a reason. Raises PromotionError,
    PermissionDenied.
    """
    channel = locked(channel)
    _require_right(channel, by, key)
    reason = checked_reason(reason, "Enter a reason: it is shown to anyone who tries to promote.")
    if until is not None and until <= timezone.now():
        raise PromotionError("The end of the freeze must be in the future.")
    if until is not None and until > timezone.now() + MOST:
        raise PromotionError(
            f"A freeze can last at most {MOST.days // 365} years. Without an end date, it lasts"
            " until someone lifts it."
        )
    who = label_of(key) or name_of(by)
    channel.freezes.active().update(lifted_at=timezone.now(), lifted_by_name=who)
    row = Freeze.objects.create(channel=channel, reason=reason, until=until, by=by, by_name=who)
    audit(
        "channel.frozen",
        project=channel.project,
        by=by,
        actor_label=label_of(key),
        target=channel,
        channel=channel.name,
        reason=row.reason,
        until=until.isoformat() if until else None,
    )
    announce_freeze(row)
    return row


@transaction.atomic
def unfreeze(*, channel: Channel, by: Any, key: ApiKey | None = None) -> None:
    """Raises PromotionError if it is not frozen; PermissionDenied."""
    channel = locked(channel)
    _require_right(channel, by, key)
    row = freeze_of(channel)
    if row is None:
        raise PromotionError(f"{channel} is not frozen.")
    row.lifted_at, row.lifted_by_name = timezone.now(), label_of(key) or name_of(by)
    row.save(update_fields=["lifted_at", "lifted_by_name"])
    audit(
        "channel.unfrozen",
        project=channel.project,
        by=by,
        actor_label=label_of(key),
        target=channel,
        channel=channel.name,
        reason=row.reason,
    )
    announce_freeze(row)


def _require_right(channel: Channel, by: Any, key: ApiKey | None) -> None:
    require_keys_allowed(channel, policy_of(channel)[0], key)
    get_membership(by, channel.project.slug, FREEZES)
