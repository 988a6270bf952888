"""The results of each check of a trial, stored for its page: points for the chart, and both sides
in numbers.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils.dateparse import parse_datetime

from apps.promotion.trials.deciding import Measured, Reading, intake_paused
from apps.promotion.trials.models import Trial
from apps.promotion.trials.readings import rules_of

MOST, APART = 240, timedelta(minutes=1)
NEWEST = 100_000  # answers of a trial from which latency, tokens and cost are computed
SIDES = """
SELECT lane, count(*), avg(answered::int), percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), \
percentile_cont(0.95) WITHIN GROUP (ORDER BY ms),
  percentile_cont(0.5) WITHIN GROUP (ORDER BY first_ms), avg(tokens), avg(cost_usd)
FROM (
  SELECT * FROM promotion_trialanswer WHERE trial_id = %(trial)s AND lane <> 'outside'
  ORDER BY at DESC LIMIT %(newest)s
) a
WHERE NOT %(paired)s OR a.lane = 'shadow' OR EXISTS (
  SELECT 1 FROM promotion_trialanswer s WHERE s.trial_id = a.trial_id AND s.unit = a.unit AND \
s.shadow_of = a.span_id)
GROUP BY lane
"""


def store(trial: Trial, reading: Reading, now: datetime) -> None:
    """The newest replaces one that is less than a minute younger than the one before it; if there
    are too many, the older half is thinned."""
    point = {"at": now.isoformat(), "step": trial.step, "share": trial.share} | {
        one.name: _numbers(one) for one in reading.measures
    }
    points = trial.looks
    if (len(points) > 1 and _at(points[-1]) - _at(points[-2]) < APART) or (
        points and now - _at(points[-1]) < timedelta(seconds=1)
    ):
        points.pop()
    points.append(point)
    trial.looks = thinned(points)
    minutes_old = trial.report.get("at")
    sides = trial.report.get("sides", {})
    if not minutes_old or now - (parse_datetime(minutes_old) or now) >= APART / 2:
        sides = sides_of(trial)
        trial.report = {"at": now.isoformat(), "sides": sides, "sessions": reading.sessions}
    trial.report |= {
        "sessions": reading.sessions,
        "harmed": round(reading.harmed, 1),
        "waiting": reading.waiting,
        "paused": intake_paused(rules_of(trial), reading),
        "measures": {one.name: _numbers(one) for one in reading.measures},
    }
    trial.save(update_fields=["looks", "report"])


def thinned(points: list[Any]) -> list[Any]:
    half = len(points) // 2
    return points if len(points) <= MOST else points[:half:2] + points[half:]


def _numbers(one: Measured) -> dict[str, Any]:
    return {
        "gap": None if one.gap is None else round(one.gap, 5),
        "low": round(one.low, 5),
        "high": round(one.high, 5),
        "current": [one.current.good, one.current.n],
        "candidate": [one.candidate.good, one.candidate.n],
    }


def _at(point: dict[str, Any]) -> datetime:
    found = parse_datetime(point["at"])
    assert found is not None
    return found


def sides_of(trial: Trial) -> dict[str, dict[str, Any]]:
    """Of the newest answers, by lane: requests, the share that was answered, latency in ms, tokens
    and dollars per request. For a shadow's current version, the requests that were shadowed."""
    given = {"trial": trial.pk, "paired": trial.kind == Trial.Kind.SHADOW, "newest": NEWEST}
    names = ("requests", "answered", "ms_p50", "ms_p95", "first_ms_p50", "tokens", "cost_usd")
    with connection.cursor() as cursor:
        cursor.execute(SIDES, given)
        return {
            row[0]: dict(
                zip(names, (float(x) if x is not None else None for x in row[1:]), strict=True)
            )
            for row in cursor.fetchall()
        }
