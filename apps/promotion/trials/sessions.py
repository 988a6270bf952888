"""A trial's answers become sessions, which are compared.

A session belongs to the step and the lane in which it began, whatever it sees later, and to neither
lane where the two answered it within that step. It is looked at `settle` after it began, whichever
lane it is in and however long it lasts, so that a slow candidate's sessions are not missing among
those that are compared. A run has failed where a failure of it stands, as everywhere. In a shadow
both sides are judged by each answer alone (`TrialAnswer.failed`), and only requests that both
answered are compared. A session that began while a canary took no new ones is in no lane. Where a
process did not know that a session of the current version's lane had begun before, its answer
belongs to that lane.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, QuerySet

from apps.promotion.trials.deciding import FIRST, MEASURES, Lanes
from apps.promotion.trials.models import LaneKind, Trial, TrialSession
from apps.promotion.trials.sequential import Tally

VERDICTS_CHANGE = timedelta(
    hours=1
)  # for which a session's runs are read again: a verdict may arrive late
LATE = timedelta(
    days=1
)  # for which a session waits for late runs: after an outage, or while workers were down
GONE = timedelta(minutes=10)  # after which a run that was never stored is not waited for
SETTLE = """
WITH recent AS (
  SELECT unit FROM promotion_trialanswer WHERE trial_id = %(trial)s AND at > %(since)s AND at <= \
%(until)s AND lane <> 'outside'
  UNION
  SELECT unit FROM promotion_trialanswer a WHERE trial_id = %(trial)s AND at > %(oldest)s AND at \
<= %(since)s AND lane <> 'outside' AND NOT EXISTS (
    SELECT 1 FROM promotion_trialsession s WHERE s.trial_id = a.trial_id AND s.unit = a.unit)
), seen AS (
  SELECT a.*, min(a.step) OVER (PARTITION BY a.unit) AS first_step,
    first_value(a.lane) OVER (PARTITION BY a.unit ORDER BY a.at) AS first_lane
  FROM promotion_trialanswer a JOIN recent USING (unit)
  WHERE a.trial_id = %(trial)s AND a.at <= %(until)s AND (NOT %(paired)s OR a.lane = 'shadow' OR \
EXISTS (
    SELECT 1 FROM promotion_trialanswer s WHERE s.trial_id = a.trial_id AND s.unit = a.unit AND \
s.shadow_of = a.span_id))
), asked AS (
  SELECT unit, first_step, at, answered, trace_id, failed, unsafe,
    CASE lane WHEN 'outside' THEN 'current' ELSE lane END AS lane
  FROM seen WHERE step = first_step AND first_lane <> 'outside'
), verdicts AS (
  SELECT traces.trace_id,
    bool_or(k.trajectory_id IS NOT NULL) AS known,
    bool_or(u.trajectory_id IS NOT NULL OR t.due_at IS NOT NULL) AS waiting,
    bool_and(k.trajectory_id IS NOT NULL AND r.outcome_status <> 'unknown') AS decided,
    bool_or(f.id IS NOT NULL) AS failed,
    bool_or(coalesce(m.safety_relevant, false) OR EXISTS (
      SELECT 1 FROM failures_failure_also also JOIN failures_failuremode other ON other.id = \
also.failuremode_id
      WHERE also.failure_id = f.id AND other.safety_relevant)) AS unsafe
  FROM (SELECT DISTINCT trace_id FROM asked) traces
  JOIN trajectories_trace t ON t.project_id = %(project)s AND t.trace_id = traces.trace_id
  LEFT JOIN LATERAL unnest(t.runs) AS run(name) ON true
  LEFT JOIN trajectories_trajectorykey k ON k.project_id = %(project)s AND k.external_id = run.name
  LEFT JOIN trajectories_trajectory r ON r.id = k.trajectory_id
  LEFT JOIN failures_failure f ON f.trajectory_id = k.trajectory_id AND f.state <> 'dismissed'
  LEFT JOIN failures_failuremode m ON m.id = f.mode_id
  LEFT JOIN failures_unclassified u ON u.trajectory_id = k.trajectory_id
  GROUP BY traces.trace_id
), judged AS (
  SELECT a.unit, a.lane, a.first_step, a.at, a.answered, a.trace_id,
    coalesce(a.failed, v.failed, false) AS failed, coalesce(a.unsafe, v.unsafe, false) AS unsafe,
    coalesce(v.decided, NOT a.answered) AS decided,
    a.failed IS NOT NULL OR NOT a.answered OR coalesce(v.known, false) AS known,
    a.failed IS NULL AND (coalesce(v.waiting, false) OR (a.answered AND NOT coalesce(v.known, \
false) AND a.at > %(gone)s)) AS waiting
  FROM asked a LEFT JOIN verdicts v USING (trace_id)
), lanes AS (
  SELECT unit, lane, first_step, count(*) AS requests, min(at) AS began_at, max(at) AS ended_at, \
bool_and(answered) AS answered,
    bool_or(failed) AS failed, bool_or(unsafe) AS unsafe, bool_and(decided) AS decided,
    bool_or(known) AS known, bool_or(waiting) AS waiting,
    (array_agg(trace_id ORDER BY failed DESC, answered, at))[1] AS trace_id, count(*) OVER \
(PARTITION BY unit) AS lanes
  FROM judged GROUP BY unit, lane, first_step
)
INSERT INTO promotion_trialsession
  (trial_id, unit, step, lane, counts, success, safety, answered, decided, requests, began_at, \
ended_at, trace_id)
SELECT %(trial)s, unit, first_step, lane, (lanes = 1) <> %(paired)s, answered AND NOT failed, NOT \
unsafe, answered, decided, requests, began_at,
  ended_at, trace_id
FROM lanes WHERE NOT waiting AND known
ON CONFLICT (trial_id, unit, lane) DO UPDATE SET
  counts = EXCLUDED.counts, success = EXCLUDED.success, safety = EXCLUDED.safety, answered = \
EXCLUDED.answered,
  decided = EXCLUDED.decided, requests = EXCLUDED.requests, ended_at = EXCLUDED.ended_at,
  trace_id = EXCLUDED.trace_id
"""

WAITING = """
SELECT count(*), count(*) FILTER (WHERE c.began_at <= %(before)s)
FROM (
  SELECT unit, min(at) AS began_at FROM promotion_trialanswer
  WHERE trial_id = %(trial)s AND lane = 'canary' AND at > least(%(oldest)s, %(mature)s) AND at <= \
%(now)s
  GROUP BY unit
) c LEFT JOIN promotion_trialsession s ON s.trial_id = %(trial)s AND s.unit = c.unit AND s.lane = \
'canary'
WHERE CASE WHEN s.id IS NULL THEN c.began_at > %(oldest)s
  ELSE s.success AND s.counts AND NOT s.decided AND s.began_at > %(mature)s END
"""


def settle(trial: Trial, now: datetime, *, every: bool = False) -> int:
    """Processes the sessions of the last hour, and those of the last day that are not settled;
    `every`: all of the trial, whose verdicts may have come since. Returns how many rows were
    written."""
    until = stored_until(now)
    since = trial.created_at if every else until - VERDICTS_CHANGE
    given = {
        "trial": trial.pk,
        "project": trial.project_id,
        "since": since,
        "oldest": now - LATE,
        "until": until,
        "gone": now - GONE,
        "paired": trial.kind == Trial.Kind.SHADOW,
    }
    with connection.cursor() as cursor:
        cursor.execute(SETTLE, given)
        return cursor.rowcount


def fix_centre(trial: Trial) -> bool:
    """Once the first sessions of the step are settled: their rates, and where they end, for good.
    Unsaved; False if nothing changed.

    Which sessions are the first depends on when they began and on no outcome.
    """
    step = trial.steps[trial.step]
    if trial.kind == Trial.Kind.SHADOW or "centre" in step:
        return False
    rows = list(
        _settled(trial)
        .filter(step=trial.step)
        .order_by("began_at", "unit")
        .values("began_at", "unit", *MEASURES)[:FIRST]
    )
    if len(rows) < FIRST:
        return False
    last = rows[-1]
    step["centre"] = {name: sum(row[name] for row in rows) / FIRST for name in MEASURES}
    step["first_until"] = [last["began_at"].isoformat(), last["unit"]]
    return True


def _settled(trial: Trial) -> QuerySet[TrialSession]:
    return TrialSession.objects.filter(trial=trial, counts=True).order_by()


def _is_first(trial: Trial) -> Q:
    """Of each step, the sessions from which its own centre comes."""
    found = Q(pk__in=())
    for number, step in enumerate(trial.steps):
        if until := step.get("first_until"):
            at, unit = datetime.fromisoformat(until[0]), until[1]
            found |= Q(step=number) & (Q(began_at__lt=at) | Q(began_at=at, unit__lte=unit))
    return found


def mature_sessions(trial: Trial, now: datetime) -> int:
    """Sessions of the candidate in this step that began long enough ago for their outcomes to have
    come.
    """
    known = now - timedelta(minutes=trial.outcome_minutes)
    return _settled(trial).filter(step=trial.step, lane=trial.lane, began_at__lte=known).count()


def waiting_sessions(trial: Trial, now: datetime) -> tuple[int, int]:
    """Sessions of a canary's candidate, in any step, whose outcome is not known: they are not yet
    settled (nothing is waited for after a day), or no failure was found, no outcome was reported
    and they are younger than `outcome_minutes`. All, and those that began before `stored_until`.
    """
    if trial.kind == Trial.Kind.SHADOW:
        return 0, 0
    given = {
        "trial": trial.pk,
        "now": now,
        "before": stored_until(now),
        "oldest": now - LATE,
        "mature": now - timedelta(minutes=trial.outcome_minutes),
    }
    with connection.cursor() as cursor:
        cursor.execute(WAITING, given)
        return cursor.fetchone()


def stored_until(now: datetime) -> datetime:
    """The first answers of sessions that began before are stored; the endpoint's processes count
    later ones themselves.
    """
    return now - timedelta(minutes=settings.FLYWHEEL_TRIAL_SETTLE_MINUTES)


def lanes_of(trial: Trial) -> dict[str, list[Lanes]]:
    """By measure, one for each step that has begun."""
    counted, first = _counts(_settled(trial)), _counts(_settled(trial).filter(_is_first(trial)))
    pairs = _pairs(trial) if trial.kind == Trial.Kind.SHADOW else {}

    def lanes(step: int, name: str) -> Lanes:
        sides = (LaneKind.CURRENT, trial.lane)
        whole, early = (
            [_tally(rows[step, lane], name) for lane in sides] for rows in (counted, first)
        )
        return Lanes(*whole, pairs.get((step, name), (0, 0, 0)), *early)

    return {name: [lanes(step, name) for step in range(trial.step + 1)] for name in MEASURES}


def _counts(rows: QuerySet[TrialSession]) -> defaultdict[tuple[int, str], dict]:
    """By step and lane: {n, good_…}."""
    counted: defaultdict[tuple[int, str], dict] = defaultdict(dict)
    sums = {f"good_{name}": Count("pk", filter=Q(**{name: True})) for name in MEASURES}
    for row in rows.values("step", "lane").annotate(n=Count("pk"), **sums):
        counted[row["step"], row["lane"]] = row
    return counted


def _tally(row: dict, name: str) -> Tally:
    return Tally(row[f"good_{name}"], row["n"] - row[f"good_{name}"]) if row else Tally()


def _pairs(trial: Trial) -> dict[tuple[int, str], tuple[int, int, int]]:
    """(better, worse, same) by step and measure: both answered the same session."""
    columns = ", ".join(
        f"count(*) FILTER (WHERE s.{name} AND NOT c.{name}), count(*) FILTER (WHERE c.{name} AND"
        f" NOT s.{name}), count(*) FILTER (WHERE c.{name} = s.{name})"
        for name in MEASURES
    )
    query = (
        f"SELECT c.step, {columns} FROM promotion_trialsession c JOIN promotion_trialsession s "
        "ON s.trial_id = c.trial_id AND s.unit = c.unit AND s.lane = 'shadow' AND s.counts "
        "WHERE c.trial_id = %s AND c.lane = 'current' AND c.counts GROUP BY c.step"
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [trial.pk])
        rows = cursor.fetchall()
    return {
        (row[0], name): tuple(row[1 + 3 * at : 4 + 3 * at])
        for row in rows
        for at, name in enumerate(MEASURES)
    }
