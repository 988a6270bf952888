"""Counts the cells of a project, and soon the totals of its steps, again from its rows: for rows
that came before there were cells, and after a repair by hand.
"""

from __future__ import annotations

from django.db import connection, transaction

from apps.core import locks
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.trajectories import step_totals
from apps.trajectories.metrics import cell_store
from apps.trajectories.metrics.cells import COUNTED, SKETCHED, Cell
from apps.trajectories.models import Arrival, MetricCell, Trajectory
from apps.trajectories.rollups import FACETS, KIND, Counts
from workers.lib.token_usage import TOKENS

COLUMNS = tuple(
    dict.fromkeys(
        (
            "id",
            *KIND,
            *FACETS.values(),
            "tool_names",
            "tags",
            *TOKENS,
            "cost_usd",
            "cost_basis",
            "latency_ms",
        )
    )
)
AT_ONCE = 5_000


def recount(project: Project) -> int:
    """Returns how many rows were counted. Runs may be sent meanwhile: the digest waits, and adds
    what this has not seen.
    """
    with locks.holding_in(project.pk, ProjectLock.DIGEST), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        counts, waiting, n = Counts(), Counts(), 0
        for row in (
            Trajectory.objects.filter(project=project).order_by().values(*COLUMNS).iterator(AT_ONCE)
        ):
            counts.add(row["id"], row)
            n += 1
        for arrival in Arrival.objects.filter(project=project).iterator(AT_ONCE):
            waiting.merge(arrival.counts)
        for key, cell in waiting.cells.items():  # the digest will add it
            counts.cells[key].merge(_negative(cell))
        MetricCell.objects.filter(project=project).delete()
        cell_store.add(project.pk, counts)
        step_totals.note_all(project.pk)
    return n


def _negative(cell: Cell) -> Cell:
    counted = (-getattr(cell, name) for name in COUNTED)
    return Cell(
        *counted, *({bucket: -n for bucket, n in getattr(cell, name).items()} for name in SKETCHED)
    )
