"""Runs that have arrived and are in no figures yet: the digest counts them, usually within seconds.
Figures say so, since what they lack looks the same as what is not there.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F, Func, IntegerField, Min, Sum

from apps.core.models import Project
from apps.trajectories.models import Arrival

SCHEMA = {
    "type": "integer",
    "description": "Runs that have just arrived or changed: the figures may lack them",
}


def runs(project: Project) -> int:
    """Read it before the figures: what is counted meanwhile may be missing there."""
    arrived = Func(F("trajectories"), function="cardinality", output_field=IntegerField())
    return Arrival.objects.filter(project=project).aggregate(n=Sum(arrived))["n"] or 0


def counted_until(projects: Collection[int], now: datetime) -> dict[int, datetime]:
    """What arrived in a project before is in figures."""
    waiting = Arrival.objects.waiting().filter(project__among=projects).order_by()
    since = dict(waiting.values_list("project").annotate(since=Min("at")))
    return {project: min(now, since.get(project, now)) for project in projects}


def sentence(n: int) -> str:
    """“8,000 runs have just arrived and may be missing.”; "" for none."""
    return (
        f"{n:,} run{'s have' if n != 1 else ' has'} just arrived and may be missing." if n else ""
    )
