"""What the endpoint needs to know about a channel's trial, and what it reports: every answer,
once.
"""

from __future__ import annotations

from collections.abc import Iterable

from apps.promotion.models import Channel
from apps.promotion.trials.models import Trial, TrialAnswer


def active_trial(channel: Channel) -> Trial | None:
    """The trial whose candidate gets traffic now (also during the seconds in which it is promoted),
    with its `version`; None if there is none, or the channel has moved on. The places of the
    candidate are `placements_of(channel, trial.version)`.
    """
    found = channel.trials.running().select_related("version").first()
    return found if found and found.baseline_id == channel.current_id else None


def note_answers(rows: Iterable[TrialAnswer]) -> int:
    """Stores those that are not stored yet, by trial and span; those of a deleted trial are
    dropped. Returns how many of the given ones are stored now."""
    given = list(rows)
    known = set(
        Trial.objects.filter(pk__in={row.trial_id for row in given}).values_list("pk", flat=True)
    )
    kept = [row for row in given if row.trial_id in known]
    TrialAnswer.objects.bulk_create(kept, ignore_conflicts=True, batch_size=500)
    return len(kept)
