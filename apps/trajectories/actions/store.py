"""Writes of floor 3: storing what agents send. A row is stored once, an update keeps what it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
from django.contrib.postgres.fields import ArrayField
from django.db import connection, transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import ApiKey, Project
from apps.trajectories import contents, digest, ids, partitions, schema
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.models import (
    Cause,
    Content,
    SearchText,
    Trajectory,
    TrajectoryKey,
    TrajectoryRevision,
)
from apps.trajectories.redaction import Redactor
from apps.trajectories.rollups import Counts
from apps.trajectories.schema import Decoded, Feedback, Parsed, RowError

CHUNK = 500  # rows of one transaction
ARRAYS = tuple(column.attname for column in Trajectory._meta.concrete_fields if isinstance(column, ArrayField))
HOT = tuple(column.attname for column in Trajectory._meta.concrete_fields)
DERIVED = ("content_digest", "message_count", "tool_names", "terms", "preview")
OUTCOME = ("outcome_status", "outcome_reward", "outcome_label", "outcome_reason")
BY_PEOPLE = (Cause.FEEDBACK, Cause.EDITED)
SENT = tuple(name for name in HOT if name not in ("id", "project_id", "external_id", "received_at"))


@dataclass
class Ingested:
    """What became of a batch; `rejected` is [{index, path, error}], `warnings` [{index, path, warning}]."""

    accepted: int = 0
    duplicates: int = 0
    updated: int = 0
    rejected: list[dict] = field(default_factory=list)
    warnings: list[dict] = field(default_factory=list)

    def as_dict(self) -> dict:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "updated": self.updated,
            "rejected": self.rejected,
            "warnings": self.warnings,
        }


@dataclass(slots=True)
class Prepared:
    """A row ready to be stored: the columns of Trajectory that were sent or derived, and the content."""

    name: str
    columns: dict[str, Any]
    content: dict[str, Any]


def ingest(*, project: Project, rows: Iterable[Any | RowError], cause: Cause = Cause.RESENT) -> Ingested:
    """Stores the good rows and says what is wrong with the others. Durable when it returns.

    Stores in transactions of some hundred rows: what a broken connection leaves half done is whole when sent again.
    """
    done = Ingested()
    prepared = _prepare(project, rows, done)
    while batch := list(islice(prepared, CHUNK)):
        _store(project, batch, done, cause)
    return done


def _prepare(project: Project, rows: Iterable[Any | RowError], done: Ingested) -> Iterator[Prepared]:
    redactor = redactor_of(project)
    for index, given in enumerate(rows):
        try:
            if isinstance(given, RowError):
                raise given
            parsed = schema.parse_row(_redacted(redactor, given) if redactor else given)
        except RowError as error:
            done.rejected.append({"index": index, "path": error.path, "error": error.error})
            continue
        done.warnings += [{"index": index} | warning for warning in parsed.warnings]
        yield prepare(parsed)


def _redacted(redactor: Redactor, given: Any) -> Any:
    """Before anything is kept. What is no row at all is left to the parser's words."""
    if isinstance(given, Decoded):
        return Decoded(redactor.redact(given.value)[0])
    return redactor.redact(given)[0]


def prepare(parsed: Parsed) -> Prepared:
    row, value = parsed.row, parsed.value
    messages = value["messages"]
    columns: dict[str, Any] = {
        "agent_name": row.agent.name,
        "agent_version": row.agent.version,
        "model": row.model,
        "workload": row.workload,
        "session_id": row.session_id,
        "user_id": row.user_id,
        "started_at": schema.aware(row.started_at) or timezone.now(),
        "ended_at": schema.aware(row.ended_at),
        "outcome_status": row.outcome.status,
        "outcome_reward": row.outcome.reward,
        "outcome_label": row.outcome.label,
        "outcome_reason": row.outcome.reason,
        "input_tokens": row.usage.input_tokens,
        "output_tokens": row.usage.output_tokens,
        "cost_usd": row.usage.cost_usd,
        "latency_ms": row.latency_ms,
        "tags": row.tags,
        "content_digest": schema.content_digest(value),
        "message_count": len(messages),
        "tool_names": schema.tool_names(messages),
        "preview": schema.preview(messages),
    }
    columns["terms"] = terms(columns)
    content = {
        "messages": messages,
        "tools": value.get("tools") or [],
        "interventions": value.get("interventions") or [],
        "metadata": value.get("metadata") or {},
        "warnings": parsed.warnings,
    }
    return Prepared(row.id, columns, content)


def terms(columns: dict[str, Any]) -> list[str]:
    """“kind:value” of what a list is filtered by with an index."""
    single = {
        "agent": columns["agent_name"],
        "version": columns["agent_version"],
        "model": columns["model"],
        "workload": columns["workload"],
        "session": columns["session_id"],
        "user": columns["user_id"],
        "label": columns["outcome_label"],
    }
    found = [f"{kind}:{value}" for kind, value in single.items() if value]
    found += [f"tool:{name}" for name in columns["tool_names"]]
    return found + [f"tag:{name}" for name in dict.fromkeys(columns["tags"])]


@transaction.atomic
def _store(project: Project, batch: list[Prepared], done: Ingested, cause: Cause) -> None:
    now = timezone.now()
    partitions.ensure({ids.month_of(ids.sort_time(item.columns["started_at"], now)) for item in batch})
    first: dict[str, Prepared] = {}
    later: list[Prepared] = []  # of the same id as one before it in this batch
    for item in batch:
        if item.name in first:
            later.append(item)
        else:
            first[item.name] = item
    keys = {name: ids.uuid7(ids.sort_time(item.columns["started_at"], now)) for name, item in first.items()}
    new = _claim(project, keys)
    counts = Counts()
    _insert(project, [(keys[name], first[name]) for name in new], now)
    for name in new:
        counts.add(first[name].columns)
    done.accepted += len(new)
    changed = [item for name, item in first.items() if name not in new] + later
    touched = _update(project, changed, counts, done, cause) if changed else []
    announce(project, [keys[name] for name in new] + touched, counts)


def _claim(project: Project, keys: dict[str, UUID]) -> set[str]:
    """The names that were not there before; from now on they are. Sorted, so that two batches cannot deadlock."""
    names = sorted(keys)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO trajectories_trajectorykey (project_id, external_id, trajectory_id) "
            "SELECT %s, name, id FROM unnest(%s::text[], %s::uuid[]) AS given(name, id) "
            "ON CONFLICT DO NOTHING RETURNING external_id",
            [project.pk, array(names), array(str(keys[name]) for name in names)],
        )
        return {name for (name,) in cursor.fetchall()}


def _insert(project: Project, items: list[tuple[UUID, Prepared]], now: datetime) -> None:
    if not items:
        return
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY trajectories_trajectory ({', '.join(HOT)}) FROM STDIN") as copy:
            for pk, item in items:
                given = item.columns | {
                    "id": pk,
                    "project_id": project.pk,
                    "external_id": item.name,
                    "received_at": now,
                }
                given |= {name: array(given[name]) for name in ARRAYS}
                copy.write_row([given[name] for name in HOT])
        _copy_content(cursor, ((pk, item.content) for pk, item in items))


def array(values: Iterable[str]) -> str:
    """PostgreSQL's text form of text[]. psycopg's own looks at every element by turns: a fifth of a batch's time."""
    quoted = ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return "{" + quoted + "}"


def _copy_content(cursor: Any, items: Iterable[tuple[UUID, dict]]) -> None:
    with cursor.copy("COPY trajectories_content (trajectory_id, first, data) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["uuid", "int4", "bytea"])
        for pk, content in items:
            for first, data in contents.chunks(content):
                copy.write_row((pk, first, data))


def announce(project: Project, touched: list[UUID], counts: Counts) -> None:
    """Leaves word for `digest`, and wakes it once this is committed."""
    if touched:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO trajectories_arrival (project_id, trajectories, counts, at) VALUES (%s, %s, %s, now())",
                [project.pk, array(map(str, touched)), msgspec.json.encode(counts.as_json()).decode()],
            )
        transaction.on_commit(digest.wake)


def _update(project: Project, items: list[Prepared], counts: Counts, done: Ingested, cause: Cause) -> list[UUID]:
    names = {item.name for item in items}
    keys = dict(
        TrajectoryKey.objects.filter(project=project, external_id__in=names).values_list("external_id", "trajectory_id")
    )
    rows = Trajectory.objects.select_for_update().order_by("pk").in_bulk(keys.values())
    touched = []
    for item in items:
        row = rows.get(keys[item.name])
        if row is None or row.content_digest == item.columns["content_digest"] or _said_before(row, item):
            done.duplicates += 1
            continue
        if cause == Cause.ASSEMBLED:
            item = _with_what_people_said(row, item)
        replace(row, item.columns, item.content, counts, cause=cause)
        touched.append(row.pk)
        done.updated += 1
    return touched


def _with_what_people_said(row: Trajectory, item: Prepared) -> Prepared:
    """Late spans complete a run; the outcome, interventions and tags that people have given it since stay."""
    if not row.revisions.filter(cause__in=BY_PEOPLE).exists():
        return item
    columns = item.columns | {name: getattr(row, name) for name in OUTCOME}
    columns["tags"] = list(dict.fromkeys([*row.tags, *item.columns["tags"]]))
    columns["terms"] = terms(columns)
    return Prepared(item.name, columns, item.content | {"interventions": row.interventions})


def _said_before(row: Trajectory, item: Prepared) -> bool:
    """A late copy of something that feedback has changed since is no news."""
    return row.revisions.filter(content_digest=item.columns["content_digest"]).exists()


def replace(row: Trajectory, columns: dict[str, Any], content: dict[str, Any], counts: Counts, *, cause: Cause) -> None:
    """Changes a trajectory, keeps what it said before, and notes the difference in `counts`.

    The run keeps its id, and so its place in the list, though its start may have changed.
    """
    before = {name: getattr(row, name) for name in SENT}
    was = {name: _jsonable(value) for name, value in before.items() if name not in DERIVED}
    changed = {name: value for name, value in was.items() if name in columns and before[name] != columns[name]}
    changed |= {name: row.content[name] for name in content if row.content[name] != content[name]}
    if cause != Cause.ASSEMBLED:  # spans that come late complete a run; that is no other opinion
        TrajectoryRevision.objects.create(
            trajectory=row, content_digest=row.content_digest, cause=cause, content=changed
        )
    counts.add(before, -1)
    for name, value in columns.items():
        setattr(row, name, value)
    counts.add({name: getattr(row, name) for name in SENT})
    row.save(update_fields=list(columns))
    if any(name in changed for name in contents.FIELDS):
        row.content = row.content | content
        Content.objects.filter(trajectory_id=row.pk).delete()
        with connection.cursor() as cursor:
            _copy_content(cursor, [(row.pk, row.content)])


def _jsonable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | dict | bool | None) else str(value)


@transaction.atomic
def give_feedback(*, trajectory: Trajectory, feedback: Feedback) -> Trajectory:
    """Later news: an outcome, a score, a comment, a correction (kept as an intervention of kind edit), a takeover."""
    trajectory = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    columns: dict[str, Any] = {}
    if feedback.outcome is not None:
        columns |= {
            "outcome_status": feedback.outcome.status,
            "outcome_reward": feedback.outcome.reward,
            "outcome_label": feedback.outcome.label,
            "outcome_reason": feedback.outcome.reason,
        }
        columns["terms"] = terms({name: getattr(trajectory, name) for name in SENT} | columns)
    if feedback.score is not None:
        columns["outcome_reward"] = feedback.score
    content = {}
    if added := _interventions(feedback):
        content["interventions"] = trajectory.interventions + added
    if columns or content:
        counts = Counts()
        columns["content_digest"] = digest_after(trajectory, columns, content)
        replace(trajectory, columns, content, counts, cause=Cause.FEEDBACK)
        announce(trajectory.project, [trajectory.pk], counts)
    return trajectory


@transaction.atomic
def hand_over(row: Trajectory, *, project: Project, to: str) -> None:
    """What people said of a run that is gone, since it was part of another, is said of that one.

    Their outcome stands, unless they have spoken of the other one too; interventions and tags are added.
    """
    successor = find(project, to)
    if successor is None:
        return
    columns: dict[str, Any] = {"tags": list(dict.fromkeys([*successor.tags, *row.tags]))}
    if not successor.revisions.filter(cause__in=BY_PEOPLE).exists():
        columns |= {name: getattr(row, name) for name in OUTCOME}
    columns["terms"] = terms({name: getattr(successor, name) for name in SENT} | columns)
    new = [item for item in row.interventions if item not in successor.interventions]
    content = {"interventions": successor.interventions + new} if new else {}
    counts = Counts()
    columns["content_digest"] = digest_after(successor, columns, content)
    replace(successor, columns, content, counts, cause=Cause.FEEDBACK)
    announce(project, [successor.pk], counts)


def digest_after(trajectory: Trajectory, columns: dict, content: dict) -> str:
    """A digest of its own for what only we know: no row that is sent has it."""
    changes = {name: _jsonable(value) for name, value in (columns | content).items()}
    return schema.content_digest({"before": trajectory.content_digest, "changes": changes})


def _interventions(feedback: Feedback) -> list[dict]:
    base = {"by": feedback.by, "note": feedback.comment}
    if feedback.message_index is not None:
        base["message_index"] = feedback.message_index
    added = []
    if feedback.takeover:
        added.append({"kind": "takeover", **base})
    if feedback.corrected is not None:
        added.append({"kind": "edit", **base, "after": feedback.corrected})
    if feedback.comment and not added:
        # A comment alone: the score says whether it praises or complains.
        bad = feedback.score is not None and feedback.score <= 0
        added.append({"kind": "reject" if bad else "approve", **base})
    return added


@transaction.atomic
def delete(*, trajectory: Trajectory, key: ApiKey | None = None, by: Any = None) -> None:
    """Nothing where another request deleted it first."""
    if purge(trajectory.project, [trajectory]):
        audit(
            "trajectory.deleted",
            project=trajectory.project,
            by=by,
            target=trajectory,
            actor_label=f"key {key.prefix}…" if key else "",
            external_id=trajectory.external_id,
        )


@transaction.atomic
def purge(project: Project, rows: Iterable[Trajectory]) -> int:
    """Removes trajectories with all that depends on them; what refers to them (tasks) stays without them.

    Returns how many this call removed: of two that remove the same ones, the second waits for the rows, finds them
    gone, and subtracts nothing from the counts.
    """
    counts, gone, names = Counts(), [], []
    wanted = [row.pk for row in rows]
    for row in Trajectory.objects.filter(project=project, pk__in=wanted).select_for_update().order_by("pk"):
        counts.add({name: getattr(row, name) for name in SENT}, -1)
        gone.append(row.pk)
        names.append(row.external_id)
    Content.objects.filter(trajectory_id__in=gone).delete()
    SearchText.objects.filter(trajectory_id__in=gone).delete()
    TrajectoryKey.objects.filter(project=project, external_id__in=names).delete()
    Trajectory.objects.filter(pk__in=gone).delete()
    announce(project, gone, counts)
    return len(gone)


def find(project: Project, external_id: str) -> Trajectory | None:
    """The trajectory of a client's id."""
    key = TrajectoryKey.objects.filter(project=project, external_id=external_id).first()
    return Trajectory.objects.filter(pk=key.trajectory_id, project=project).first() if key else None
