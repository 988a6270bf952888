"""Stores sketches of a project's runs with their diagnoses, and compares them with the newest runs
and with all of the same task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q

from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.failures.models import RunSketch
from apps.failures.outcomes.peers import Comparison, Peers, Sketch
from apps.failures.rules.reading import Run
from apps.trajectories.models import Outcome, Trajectory

MOST_COMPARED = 2_000  # newest runs that are searched for the same request by its words
MOST_OF_TASKS = 4_000
FIELDS = ("task", "words", "names", "changes")
STORE = (
    "INSERT INTO failures_runsketch (trajectory_id, project_id, task, words, names, changes) SELECT"
    " run, $1::bigint, task, words, names, changes FROM unnest($2::uuid[], $3::text[], $4::bytea[],"
    " $5::bytea[], $6::bigint[]) AS made(run, task, words, names, changes) ON CONFLICT"
    " (trajectory_id) DO UPDATE SET task = excluded.task, words = excluded.words, names ="
    " excluded.names, changes = excluded.changes"
)


def compare(
    project: Project, runs: Mapping[UUID, tuple[Trajectory, Run]]
) -> dict[UUID, Comparison]:
    """Store the sketches of runs and compare each with other runs of the same request.

    Earlier runs that match a new or changed one are queued for a new estimate once the transaction
    has ended.
    """
    made = {pk: Sketch.of(run, task_of(row)) for pk, (row, run) in runs.items()}
    changed = _store(project, made)
    peers = _peers(project, {item.task for item in made.values()} - {""})
    found = {peers.keys[at] for pk in changed for at in peers.of(pk, made[pk])}
    if earlier := sorted(found - made.keys()):
        transaction.on_commit(partial(_note, project, earlier))
    return {pk: peers.compare(pk, item) for pk, item in made.items()}


def compared(project: Project, trajectories: Collection[UUID]) -> dict[UUID, Comparison]:
    """Comparisons of those of the given runs that have a sketch."""
    rows = _sketches(RunSketch.objects.filter(project=project, trajectory__in=trajectories))
    peers = _peers(project, {item.task for _, item in rows} - {""})
    return {pk: peers.compare(pk, item) for pk, item in rows}


def task_of(row: Trajectory) -> str:
    """The id of the task that a run carries; empty if none."""
    task = (row.metadata or {}).get("task_id")
    return (
        "" if task is None or isinstance(task, dict | list) else str(task)[:120].replace("\0", "")
    )


def _store(project: Project, made: Mapping[UUID, Sketch]) -> list[UUID]:
    """Store the sketches; return the ids of runs whose sketch is new or has changed."""
    known = dict(_sketches(RunSketch.objects.filter(trajectory_id__among=made)))
    changed = sorted(pk for pk, item in made.items() if known.get(pk) != item)
    sketches = [made[pk] for pk in changed]
    if changed:
        send(
            STORE,
            [
                str(project.pk),
                array(map(str, changed)),
                array(item.task for item in sketches),
                array(f"\\x{item.words.hex()}" for item in sketches),
                array(f"\\x{item.names.hex()}" for item in sketches),
                array(str(item.changes) for item in sketches),
            ],
        )
    return changed


def _peers(project: Project, tasks: Collection[str]) -> Peers:
    """The newest runs of a project, plus the newest of the given tasks."""
    rows = RunSketch.objects.filter(project=project).order_by("-trajectory_id")
    found = dict(_sketches(rows[:MOST_COMPARED]))
    if tasks:
        found |= dict(
            _sketches(rows.filter(~Q(trajectory__in=list(found)), task__in=tasks)[:MOST_OF_TASKS])
        )
    return Peers(list(found), list(found.values()))


def _sketches(rows: Iterable[RunSketch]) -> list[tuple[UUID, Sketch]]:
    return [
        (pk, Sketch(task, bytes(words), bytes(names), changes))
        for pk, task, words, names, changes in rows.values_list("pk", *FIELDS)
    ]


def _note(project: Project, trajectories: list[UUID]) -> None:
    """Queue runs to be diagnosed again with the next batch. Called outside of the transaction: two
    transactions that queue each other's runs would deadlock.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO failures_unclassified (trajectory_id, project_id) SELECT id, project_id"
            " FROM trajectories_trajectory JOIN failures_classifier USING (project_id) WHERE id ="
            " ANY(%s) AND project_id = %s AND outcome_status = %s ON CONFLICT DO NOTHING",
            [trajectories, project.pk, Outcome.UNKNOWN],
        )
