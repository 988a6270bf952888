"""What can be wrong with receiving and digesting (`core.watching.conditions`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Sum
from django.urls import reverse
from django.utils import timezone

from apps.core import lags
from apps.core.watching.conditions import Button, Finding, Severity, condition
from apps.core.watching.measures import Values, measured
from apps.trajectories import digest, partitions
from apps.trajectories.models import Arrival, HourlyCount

LATE_S = 120.0  # twice what may pass before it takes as much of the machine as receiving


def _wake(about: str, by: Any) -> str:
    digest.wake()
    return "Sent the digest a message."


@condition(
    "digest_late",
    "The digest is late",
    todo="If no worker of the queue that does it (“ingest”; for what is to be classified"
    " “default”) is heard of, start one; if all of them are busy for minutes, add one"
    " (docs/machines.md#add-a-worker). No run is lost: charts, search and failures"
    " show it later.",
    part="digest",
    button=Button("Wake the digest", _wake),
)
def late() -> Iterator[Finding]:
    for name, seconds in lags.digest_seconds().items():
        if seconds > LATE_S:
            yield Finding(
                f"The oldest run to be {name} has been waiting for {seconds / 60:.0f} minutes.",
                name,
                timezone.now() - timedelta(seconds=seconds),
            )


@condition(
    "set_aside",
    "Runs could not be indexed",
    todo="Read why on the project's page “Not indexed”, and retry or discard them there.",
    severity=Severity.WARNING,
    for_operators=True,
)
def set_aside() -> Iterator[Finding]:
    rows = Arrival.objects.set_aside().values("project__slug").annotate(n=Count("pk"))
    for row in rows.order_by("project__slug"):
        yield Finding(
            f"{row['n']} batches of the project {row['project__slug']} are set aside.",
            row["project__slug"],
            page=reverse("trajectories:arrivals", args=[row["project__slug"]]),
        )


def _make_partitions(about: str, by: Any) -> str:
    partitions.ensure_ahead()
    return "Created the partitions of the months to come."


MAKE_PARTITIONS = Button("Create partitions", _make_partitions)


@condition(
    "partition_missing",
    "Runs of this month have no partition",
    todo="Create it. Until then each request with such runs has to, and shows none that are there.",
    button=MAKE_PARTITIONS,
)
def missing_partitions() -> Iterator[Finding]:
    yield from _without_partitions(partitions.missing_soon())


@condition(
    "partition_ahead",
    "A month to come has no partition",
    todo="Create it, before runs of that month come.",
    severity=Severity.WARNING,
    button=MAKE_PARTITIONS,
)
def missing_partitions_ahead() -> Iterator[Finding]:
    soon = partitions.missing_soon()
    yield from _without_partitions([one for one in partitions.missing_ahead() if one not in soon])


def _without_partitions(months: list[datetime]) -> Iterator[Finding]:
    for month in months:
        yield Finding(f"{month:%B %Y} has no partitions.", f"{month:%Y-%m}")


@measured("flywheel_runs_usd_today", "What runs of today (UTC) cost as far as that is known")
def runs_usd() -> Values:
    hours = HourlyCount.objects.filter(
        hour__gte=timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    )
    return {(): hours.aggregate(usd=Sum("cost_usd"))["usd"] or 0.0}
