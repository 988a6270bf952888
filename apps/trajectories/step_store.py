"""Writes the steps of runs: part of the digest's transaction, one process a project. Nothing else
changes steps: what is added up of them goes by what is noted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
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
COLUMNS = tuple(column.attname for column in Step._meta.concrete_fields)


def delete(project: int, runs: Collection[UUID]) -> None:
    if Step.objects.filter(project=project, trajectory_id__among=runs).delete()[0]:
        step_totals.note_change(project, runs)


def write(project: int, read: Iterable[tuple[UUID, Mapping[str, Any], list[steps.Step]]]) -> None:
    """Of runs that have none: (id, the columns OF_A_RUN, steps)."""
    runs = []
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY trajectories_step ({', '.join(COLUMNS)}) FROM STDIN") as copy,
    ):
        for pk, run, found in read:
            runs.append(pk)
            for number, step in enumerate(found):
                copy.write_row(_columns(project, pk, number, run, step))
    step_totals.note_change(project, runs)


def _columns(
    project: int, pk: UUID, number: int, run: Mapping[str, Any], step: steps.Step
) -> list[Any]:
    after = step.start_ms
    of_run = {
        "project_id": project,
        "trajectory_id": pk,
        "number": number,
        "started_at": None if after is None else run["started_at"] + timedelta(milliseconds=after),
        "agent_name": run["agent_name"],
        "agent_version": run["agent_version"],
    }
    return [of_run[name] if name in of_run else getattr(step, name) for name in COLUMNS]
