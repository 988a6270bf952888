"""A project's own failure modes."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.failures.actions import DEFAULT_MODES
from apps.failures.actions_people import Refused
from apps.failures.models import Failure, FailureMode

BUILT_IN = frozenset(slug for slug, *_ in DEFAULT_MODES)


@transaction.atomic
def save_mode(*, mode: FailureMode, by: Any) -> FailureMode:
    """Adds or changes a mode that is valid."""
    is_new = mode.pk is None
    mode.save()
    audit("failure_mode.added" if is_new else "failure_mode.changed", project=mode.project, by=by, target=mode,
          slug=mode.slug, name=mode.name, severity=mode.severity, safety_relevant=mode.safety_relevant)  # fmt: skip
    return mode


@transaction.atomic
def delete_mode(*, mode: FailureMode, by: Any) -> None:
    """Raises Refused where the rules name it or a failure has it."""
    mode = FailureMode.objects.select_for_update().get(pk=mode.pk)
    if mode.slug in BUILT_IN:
        raise Refused(f"The rules sort failures into “{mode}”, so it stays. You can rename it, or put it last.")
    first, second = Failure.objects.filter(mode=mode).count(), Failure.objects.filter(also=mode).count()
    if used := first + second:
        many = f"{used:,} failure has" if used == 1 else f"{used:,} failures have"
        raise Refused(f"“{mode}” is in use: {many} it. Give them another mode first; a bulk change does it at once.")
    audit("failure_mode.deleted", project=mode.project, by=by, target=mode, slug=mode.slug, name=mode.name)
    mode.delete()
