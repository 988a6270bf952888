"""Trials and their answers as actions and the endpoint would have made them."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.promotion.models import Channel, Trial, TrialAnswer
from apps.registry.models import ModelVersion

STEPS = [{"share": share, "min_sessions": 10, "min_minutes": 0} for share in (0.05, 0.25, 0.5)]


def make_trial(channel: Channel, version: ModelVersion, **fields: Any) -> Trial:
    """A canary that runs."""
    now = timezone.now() - timedelta(hours=1)
    given = {
        "kind": "canary", "state": "running", "steps": STEPS, "started_at": now, "step_at": now, "by_name": "ana",
        "project": channel.project, "channel": channel, "version": version, "baseline": channel.current,
    }  # fmt: skip
    return Trial.objects.create(**given | fields)


def answer(trial: Trial, unit: str, lane: str = "current", **fields: Any) -> TrialAnswer:
    """Unsaved, a quarter of an hour ago."""
    given = {
        "step": trial.step, "trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8), "answered": True, "ms": 200.0,
        "first_ms": 50.0, "tokens": 100, "at": timezone.now() - timedelta(minutes=15),
    }  # fmt: skip
    return TrialAnswer(trial=trial, unit=unit, lane=lane, **given | fields)
