"""Actions of the endpoint: the limits of keys."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import ApiKey
from apps.serving.models import KeyLimits

FIELDS = ("requests_per_minute", "tokens_per_minute", "at_once")


@transaction.atomic
def set_limits(*, key: ApiKey, limits: dict[str, int], by: Any, actor_label: str = "") -> KeyLimits:
    """Set a key's limits, by the names of `FIELDS`; 0 means no limit. The endpoint applies them
    within seconds.
    """
    row, _ = KeyLimits.objects.update_or_create(
        key=key, defaults={name: limits[name] for name in FIELDS}
    )
    audit(
        "api_key.limited",
        project=key.project,
        by=by,
        actor_label=actor_label,
        target=key,
        name=key.name,
        **{name: getattr(row, name) for name in FIELDS},
    )
    return row
