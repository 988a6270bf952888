"""A freeze: until a time, or until somebody lifts it, nobody promotes to a channel. A rollback
stays possible.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from django.db import transaction
from django.utils import timezone
from msgspec import Meta

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import ApiKey, Role
from apps.core.openapi import sent, told
from apps.core.operations import Page, Rest, Written, operation
from apps.core.scopes import Scope
from apps.promotion import schema
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


FREEZE = Written(
    schema.FREEZE, lambda request, channel: schema.freeze_json(channel, freeze_of(channel))
)


@operation(
    "channels_freeze_read",
    rest=Rest("GET", "channels/<slug:name>/freeze/", "freeze"),
    gives=FREEZE,
    scope=(Scope.READ, Scope.EVALUATE),
    examples=(told("Frozen", schema.FROZEN),),
)
def read_freeze(*, channel: Channel) -> Channel:
    """Whether a channel is frozen, until when, and why."""
    return channel


@operation(
    "channels_freeze",
    rest=Rest("PUT", "channels/<slug:name>/freeze/", "freeze"),
    page=Page(
        "channels/<slug:name>/freeze/",
        "freeze",
        done="{target} is frozen. Rollbacks are still possible.",
    ),
    gives=schema.FREEZING,
    role=FREEZES,
    examples=(
        sent("Over the holidays", {"reason": "Holidays", "until": "2026-12-28T08:00:00Z"}),
        told("Frozen", schema.FROZEN),
    ),
    says={"channel.frozen": "froze {channel@}[ until {until}][: “{reason}”]"},
)
@transaction.atomic
def freeze(
    *,
    channel: Channel,
    reason: Annotated[
        schema.Reason,
        Meta(extra={"missing": "Enter a reason: it is shown to anyone who tries to promote."}),
    ],
    until: Annotated[
        datetime,
        Meta(title="Until (UTC)", description="Without it, somebody has to lift the freeze"),
    ]
    | None = None,
    by: Any,
    key: ApiKey | None = None,
) -> Freeze:
    """Freezes a channel: promotions are blocked, rollbacks are still possible. Requires an
    operator's key.

    Replaces an active freeze. A time without an offset is in UTC. Raises PromotionError,
    PermissionDenied.
    """
    channel = locked(channel)
    _require_right(channel, by, key)
    reason = checked_reason(reason, "Enter a reason: it is shown to anyone who tries to promote.")
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
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


@operation(
    "channels_unfreeze",
    rest=Rest("DELETE", "channels/<slug:name>/freeze/", "freeze"),
    page=Page("channels/<slug:name>/unfreeze/", "unfreeze", done="{target} is no longer frozen."),
    gives=FREEZE,
    role=FREEZES,
    examples=(told("No longer", schema.UNFROZEN),),
    says={"channel.unfrozen": "lifted the freeze of {channel@}"},
)
@transaction.atomic
def unfreeze(*, channel: Channel, by: Any, key: ApiKey | None = None) -> None:
    """Lifts a freeze.

    Raises PromotionError if it is not frozen; PermissionDenied.
    """
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
