from __future__ import annotations

import time

from celery import shared_task

from apps.core import lags, outbox
from apps.core.models import Project
from apps.trajectories import (
    assembly,
    held,
    media_store,
    names,
    partitions,
    repricing,
    retention,
    step_totals,
    traces,
)
from apps.trajectories import digest as digesting
from apps.trajectories.actions import alerts
from apps.trajectories.actions.bulk import forget_changes

LINGER_S = 2.0
# Then the worker takes what came into its queue meanwhile: it takes nothing while a task runs, and
# runs that never cease would leave a message a second there for ever.
LONGEST_S = 60.0
POLL_S, REST_S = 0.05, 0.25
NAMES_S = TOTALS_S = 20.0
# times as long as its last step took a late digest waits while spans do
REST = 4


@shared_task(name=digesting.TASK, expires=digesting.EXPIRES_S)
def digest() -> None:
    """Assembles and digests what came, and lingers for what comes right after. Spans are made runs
    first; while they wait, or receivers are busy, runs are searched and counted only where that is
    late.
    """
    until = time.monotonic() + LONGEST_S
    quiet_since, rested_at = time.monotonic(), 0.0
    while time.monotonic() - quiet_since < LINGER_S:
        if time.monotonic() > until:
            outbox.post(digesting.TASK, expires_s=digesting.EXPIRES_S)
            return
        lags.give_way("assembled", "digested")
        worked = traces.sort_some() + assembly.step()
        began = time.monotonic()
        rests = lags.rests("digested")
        if not rests and (not worked or (began >= rested_at and lags.is_late("digested"))):
            worked += digesting.step()
            rested_at = time.monotonic() + REST * (time.monotonic() - began)
        pause = REST_S if rests else POLL_S
        quiet_since = time.monotonic() if worked else _wait_for_work(quiet_since, pause)


def _wait_for_work(quiet_since: float, pause: float) -> float:
    """Until there may be something to do, or nothing has come for so long; looks every `pause`
    seconds. Returns since when no spans wait.
    """
    while time.monotonic() - quiet_since < LINGER_S:
        time.sleep(pause)
        work = traces.look()
        if work.has_spans:
            quiet_since = time.monotonic()
        if work.is_due:
            break
    return quiet_since


@shared_task(name=held.TASK, expires=held.EXPIRES_S)
def look_for_names() -> None:
    """In the default queue: it is slow, and what other projects send must not wait for it."""
    until = time.monotonic() + NAMES_S
    while time.monotonic() < until and names.step():
        pass


@shared_task(name=repricing.TASK, expires=repricing.EXPIRES_S)
def price_runs(pk: int, model: str) -> int:
    project = Project.objects.filter(pk=pk).first()
    return repricing.price_runs(project, model) if project else 0


@shared_task(name="trajectories.partitions")
def make_partitions() -> None:
    partitions.ensure_ahead()


@shared_task(name="trajectories.forget_spans")
def forget_spans() -> int:
    return assembly.forget_old()


@shared_task(name="trajectories.check_alerts", expires=55)
def check_alerts() -> int:
    return alerts.check_all()


@shared_task(name="trajectories.add_up_steps", expires=25)
def add_up_steps() -> int:
    lags.give_way()
    return step_totals.add_up(time.monotonic() + TOTALS_S)


@shared_task(name="trajectories.enforce_retention")
def enforce_retention() -> int:
    removed = retention.enforce()
    partitions.drop_empty()
    forget_changes()
    media_store.forget_unused()
    return removed
