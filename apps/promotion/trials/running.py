"""Checks each trial every few seconds: what its sessions show, and what follows. Harmless when
repeated or run concurrently.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from apps.promotion import actions as promotions
from apps.promotion.conditions import PromotionError
from apps.promotion.freezing import freeze_of
from apps.promotion.models import Deployment
from apps.promotion.moves import locked
from apps.promotion.trials import looks
from apps.promotion.trials.actions import add_decision, next_step
from apps.promotion.trials.announcing import announce_passed
from apps.promotion.trials.deciding import Decision, Reading, decide, room
from apps.promotion.trials.ending import end
from apps.promotion.trials.models import Trial, TrialState
from apps.promotion.trials.readings import reading_of, rules_of
from apps.promotion.trials.sessions import fix_centre, settle, stored_until

REREAD = timedelta(minutes=10)  # after which the outcomes of all sessions are read again


def to_look_at() -> list[Any]:
    return list(Trial.objects.filter(state=TrialState.RUNNING).values_list("pk", flat=True))


def look(pk: Any) -> str:
    """Returns what was decided."""
    trial = Trial.objects.filter(pk=pk, state=TrialState.RUNNING).select_related("channel").first()
    if trial is None:
        return "ended"
    now = timezone.now()
    settle(trial, now)  # before any lock: this is the part that takes time
    if _reads_all(trial, now):
        settle(trial, now, every=True)
        Trial.objects.filter(pk=pk).update(reread_at=now)
    with transaction.atomic():
        channel = locked(trial.channel, archived=True)  # archiving has ended the trial
        row = Trial.objects.select_for_update(of=("self",)).get(pk=pk)
        if row.state != TrialState.RUNNING:
            return "ended"
        row.channel = channel
        return _follow(row, now)


def _reads_all(trial: Trial, now: datetime) -> bool:
    """Outcomes may come days after a session: they are all read from time to time, and before a
    step is left.
    """
    if trial.reread_at is None or now - trial.reread_at >= REREAD:
        return True
    return decide(rules_of(trial), reading_of(trial, now), now).what in ("next", "passed")


def _follow(trial: Trial, now: datetime) -> str:
    channel = trial.channel
    if channel.current_id != trial.baseline_id:  # a move ends it by itself: this is the safety net
        end(trial, TrialState.STOPPED, f"{channel} now runs {channel.current}.")
        return "moved"
    if trial.version.archived_at:
        end(trial, TrialState.STOPPED, f"{trial.version} was archived.")
        return "archived"
    if fix_centre(trial):
        trial.save(update_fields=["steps"])
    reading = reading_of(trial, now)
    _make_room(trial, reading, now)
    looks.store(trial, reading, now)
    decision = decide(rules_of(trial), reading, now)
    if decision.what == "worse":
        end(trial, TrialState.ROLLED_BACK, decision.why)
    elif decision.what == "harm":
        end(trial, TrialState.STOPPED, decision.why)
    elif decision.what == "out_of_time":
        end(trial, TrialState.UNDECIDED, decision.why)
    elif decision.what == "next" and freeze_of(channel):
        return "frozen"
    elif decision.what == "next":
        next_step(trial, decision.why)
    elif decision.what == "passed":
        _passed(trial, decision)
    return decision.what


def _make_room(trial: Trial, reading: Reading, now: datetime) -> None:
    """The endpoint reads it within a few seconds."""
    if trial.kind == Trial.Kind.SHADOW:
        return
    until = stored_until(now)
    if trial.room == 0 and trial.room_at is not None:
        trial.paused_for += max(timedelta(0), until - trial.room_at)
    trial.room = room(trial.max_harmed, reading.harmed, reading.waiting_before)
    trial.room_at = until
    trial.save(update_fields=["room", "room_at", "paused_for"])


def _passed(trial: Trial, decision: Decision) -> None:
    """A shadow ends; a canary is promoted, or waits for a person."""
    if trial.kind == Trial.Kind.SHADOW and trial.then == Trial.Then.HOLD:
        end(trial, TrialState.STOPPED, f"{decision.why} A canary can begin.")
        return
    why = decision.why
    if trial.then == Trial.Then.PROMOTE:
        problem = _promote(trial, decision)
        if not problem:
            return
        why = f"{why} {problem}"
    add_decision(trial, "passed", why)
    trial.save(update_fields=["decisions"])
    announce_passed(trial, why)


def _promote(trial: Trial, decision: Decision) -> str:
    """By the same action as a person's promotion, in the name of whoever started the trial; "" or
    why a person has to do it.
    """
    assert trial.gate_report is not None
    try:
        with transaction.atomic():
            moved = promotions.promote(
                channel=trial.channel,
                report=trial.gate_report,
                by=trial.by,
                reason=f"{trial.get_kind_display()} passed: {decision.why}",
            )
    except (PromotionError, PermissionDenied) as error:
        return f"It was not promoted: {error}"
    except Http404:
        return f"It was not promoted: {trial.by_name}, who started it, is no longer a member."
    if isinstance(moved, Deployment):
        add_decision(trial, "promoting", decision.why)
        trial.state = TrialState.PROMOTING
        trial.save(update_fields=["state", "decisions"])
    elif trial.is_active and Trial.objects.active().filter(pk=trial.pk).exists():
        return "A second person must approve the promotion."
    return ""
