"""What the endpoint needs to know about a channel's trial, and what it reports: every answer,
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from apps.promotion.models import Channel
from apps.promotion.trials.models import Trial, TrialAnswer

LIVES = timedelta(minutes=30)  # an inactive session is forgotten after this time
MOST = 100_000  # of its newest answers, from which the sessions of a trial are read


class Assignments:
    """The lane in which each active session of a canary began, from the answers that all of the
    endpoint's processes report. Each call reads only what is new. One thread writes; others may
    read the mappings.
    """

    def __init__(self) -> None:
        self.known: dict[Any, dict[str, tuple[str, datetime]]] = {}
        self.read_to: dict[Any, int] = {}

    def of(self, trial: Trial) -> Mapping[str, tuple[str, datetime]]:
        """{unit: (lane, newest answer)}"""
        oldest = timezone.now() - LIVES
        known = self.known.setdefault(trial.pk, {})
        rows = TrialAnswer.objects.filter(trial=trial, pk__gt=self.read_to.get(trial.pk, 0))
        newest = rows.order_by("-pk").values_list("pk", "unit", "lane", "at")[:MOST]
        for pk, unit, lane, at in reversed(list(newest)):
            first, seen_at = known.get(unit, (lane, at))
            known[unit] = (first if seen_at > at - LIVES else lane, max(at, seen_at))
            self.read_to[trial.pk] = pk
        for unit in [unit for unit, (_, at) in known.items() if at < oldest]:
            del known[unit]
        return known

    def keep_only(self, trials: Iterable[Any]) -> None:
        """Forgets those of trials that have ended."""
        for pk in set(self.known) - set(trials):
            self.known.pop(pk)
            self.read_to.pop(pk, None)


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
