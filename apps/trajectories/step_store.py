"""Writes the steps of runs: part of the digest's transaction, a run in one process at a time.
Nothing else changes steps: what is added up of them goes by what is noted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connection

from apps.trajectories import step_totals, steps
from apps.trajectories.models import Step

OF_A_RUN = (
    "external_id",
    "started_at",
    "model",
    "agent_name",
    "agent_version",
    "latency_ms",
    "input_tokens",
    "output_tokens",
    "cost_usd",
)
OF_RUNS = ("project_id", "trajectory_id", "number", "started_at", "agent_name", "agent_version")
OF_STEPS = tuple(
    column.attname for column in Step._meta.concrete_fields if column.attname not in OF_RUNS
)
_of_step = attrgetter(*OF_STEPS)


def delete(project: int, runs: Collection[UUID]) -> None:
    if Step.objects.filter(project=project, trajectory_id__among=runs).delete()[0]:
        step_totals.note_change(project, runs)


def write(project: int, read: Iterable[tuple[UUID, Mapping[str, Any], list[steps.Step]]]) -> None:
    """Of runs that have none: (id, the columns OF_A_RUN, steps)."""
    runs = []
    columns = ", ".join((*OF_RUNS, *OF_STEPS))
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY trajectories_step ({columns}) FROM STDIN") as copy,
    ):
        for pk, run, found in read:
            runs.append(pk)
            agent = run["agent_name"], run["agent_version"]
            for number, step in enumerate(found):
                at = _started_at(run, step)
                copy.write_row((project, pk, number, at, *agent, *_of_step(step)))
    step_totals.note_change(project, runs)


def _started_at(run: Mapping[str, Any], step: steps.Step) -> datetime | None:
    after = step.start_ms
    return None if after is None else run["started_at"] + timedelta(milliseconds=after)
