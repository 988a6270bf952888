"""Stores what agents send. A row is stored once; an update keeps what it replaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models, transaction
from django.utils import timezone

from apps.core.bus import on
from apps.core.models import Project
from apps.core.pipelined import Statement, one_trip, send
from apps.core.postgres import Array, array
from apps.core.projects.deletion import Deleting
from apps.core.together import Together
from apps.registry.prices import prices_of
from apps.trajectories import (
    contents,
    costs,
    digest,
    eval_claims,
    ids,
    late_data,
    media,
    media_store,
    merging,
    parquet_files,
    partitions,
    schema,
    step_store,
    tombstones,
)
from apps.trajectories.actions.redaction import quick_redactor_of, redactor_of
from apps.trajectories.decoding import Decoded, RowError
from apps.trajectories.models import (
    Cause,
    Content,
    Feedback,
    LateData,
    Score,
    SearchText,
    Trajectory,
    TrajectoryKey,
    TrajectoryRevision,
    UploadedTrajectory,
)
from apps.trajectories.redaction import Redactor, TooLong
from apps.trajectories.rollups import COLUMNS, Counts
from apps.trajectories.schema import EvalSample, Parsed
from flywheel.counters import ROWS
from workers.lib.prices import PriceOf

CHUNK = 500  # rows of one transaction
FEW = 20  # rows of a request that may share its transaction with others
ARRAYS = tuple(
    column.attname for column in Trajectory._meta.concrete_fields if isinstance(column, ArrayField)
)
DELETED = (
    "this run was deleted on {at:%Y-%m-%d} and is not stored again. An operator can restore it from"
    " a file with import_trajectories --restore"
)
HOT = tuple(
    column.attname for column in Trajectory._meta.concrete_fields if column.attname != "stored_in"
)
INSERT = (
    f"INSERT INTO trajectories_trajectory ({', '.join(HOT)}) SELECT"
    f" {', '.join(f'${number}' for number in range(1, len(HOT) + 1))}"
)
INSERT_CONTENT = "INSERT INTO trajectories_content (trajectory_id, first, data) SELECT $1, $2, $3"
# Whether all rows of a transaction are new, and nobody has deleted their runs or spoken of them.
ALL_NEW = (
    "SELECT set_config('flywheel.all_new', ((SELECT count(*) FROM trajectories_trajectorykey WHERE"
    " project_id = $1 AND external_id = ANY($2::text[]) AND trajectory_id = ANY($3::uuid[])) ="
    " cardinality($3::uuid[]) AND NOT EXISTS (SELECT FROM trajectories_tombstone WHERE project_id ="
    " $1 AND digest = ANY($4::bytea[])) AND NOT EXISTS (SELECT FROM trajectories_feedback WHERE"
    " project_id = $1 AND external_id = ANY($2::text[])))::text, true)"
)
IF_NEW = " WHERE current_setting('flywheel.all_new') = 'true'"
UNCLAIM = (
    "DELETE FROM trajectories_trajectorykey WHERE project_id = $1 AND external_id ="
    " ANY($2::text[]) AND trajectory_id = ANY($3::uuid[]) AND"
    " current_setting('flywheel.all_new') <> 'true'"
)
DERIVED = ("content_digest", "message_count", "tool_names", "terms", "preview")
SENT = tuple(name for name in HOT if name not in ("id", "project_id", "external_id", "received_at"))


@dataclass
class Ingested:
    """What became of a batch; `rejected` is [{index, path, error}], `warnings` [{index, path,
    warning}]. `held` rows wait for Presidio. `deleted` of the rejected rows have the ids of deleted
    runs."""

    accepted: int = 0
    duplicates: int = 0
    updated: int = 0
    held: int = 0
    deleted: int = 0
    rejected: list[dict] = field(default_factory=list)
    warnings: list[dict] = field(default_factory=list)

    def count(self, items: Iterable[Prepared]) -> None:
        for item in items:
            setattr(self, item.outcome, getattr(self, item.outcome) + 1)
            if item.problem:
                self.rejected.append({"index": item.index, "path": "id", "error": item.problem})

    def add_to_counters(self, cause: Cause) -> None:
        for outcome in ("accepted", "duplicates", "updated", "held", "deleted"):
            if count := getattr(self, outcome):
                ROWS.labels(cause.value, outcome).inc(count)
        if self.rejected:
            ROWS.labels(cause.value, "rejected").inc(len(self.rejected))

    def as_dict(self) -> dict:
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "updated": self.updated,
            "held": self.held,
            "rejected": self.rejected,
            "warnings": self.warnings,
        }


@dataclass(slots=True)
class Prepared:
    """A row ready to be stored: the sent or derived columns of Trajectory, and the content.

    `digest` covers what was sent; `columns["content_digest"]` also covers feedback. `lifted` is
    what was embedded in its messages. `outcome` is the count of Ingested that it belongs to once it
    is stored; `problem` says why it is not.
    """

    index: int
    name: str
    digest: str
    columns: dict[str, Any]
    content: dict[str, Any]
    eval_sample: EvalSample | None = None
    lifted: media.Lifted | None = None
    outcome: str = ""
    problem: str = ""


def ingest(
    *,
    project: Project,
    rows: Iterable[Any | RowError],
    cause: Cause = Cause.RESENT,
    redacted_by: Redactor | None = None,
    restore: bool = False,
    together: bool = False,
) -> Ingested:
    """Stores the valid rows and returns the errors of the others. Durable when it returns.
    `together`: few rows share their transaction with those of other threads.

    Stores in transactions of some hundred rows: what a broken connection leaves half done is
    completed when sent again. Rows that were `redacted_by` all rules are stored as they are. Runs
    that were deleted are rejected, unless they are to be restored.
    """
    done = Ingested()
    if redacted_by is not None:
        redactor = None
    elif cause == Cause.ASSEMBLED:  # Presidio has seen the spans
        redactor = quick_redactor_of(project)
    else:
        redactor = redactor_of(project)
    prepared = _prepare(redactor, rows, done, prices_of(project))
    while batch := list(islice(prepared, CHUNK)):
        if together and len(batch) <= FEW and not connection.in_atomic_block:
            _few[project.pk].do((project, batch))
        else:
            _store(project, batch, cause, restore)
        done.count(batch)
    done.add_to_counters(cause)
    return done


def _prepare(
    redactor: Redactor | None,
    rows: Iterable[Any | RowError],
    done: Ingested,
    price_of: PriceOf,
) -> Iterator[Prepared]:
    for index, given in enumerate(rows):
        try:
            if isinstance(given, RowError):
                raise given
            parsed = schema.parse_row(redacted(redactor, given) if redactor else given)
        except TooLong as error:
            done.rejected.append({"index": index, "path": "", "error": str(error)})
            continue
        except RowError as error:
            done.rejected.append({"index": index, "path": error.path, "error": error.problem})
            continue
        done.warnings += [{"index": index} | warning for warning in parsed.warnings]
        yield prepare(index, parsed, price_of)


def redacted(redactor: Redactor, given: Any) -> Any:
    """Before anything is kept. What is not a row at all is left for the parser to reject."""
    if isinstance(given, Decoded):
        return Decoded(redactor.redact(given.value)[0])
    return redactor.redact(given)[0]


def prepare(index: int, parsed: Parsed, price_of: PriceOf = costs.no_price) -> Prepared:
    row, value = parsed.row, parsed.value
    messages = value["messages"]
    columns: dict[str, Any] = {
        "agent_name": row.agent.name,
        "agent_version": row.agent.version,
        "model": parsed.model,
        "workload": row.workload,
        "session_id": row.session_id,
        "user_id": row.user_id,
        "started_at": row.started_at or timezone.now(),
        "ended_at": row.ended_at,
        "outcome_status": row.outcome.status,
        "outcome_reward": row.outcome.reward,
        "outcome_label": row.outcome.label,
        "outcome_reason": row.outcome.reason,
        **costs.columns_of(parsed, price_of),
        "latency_ms": row.latency_ms,
        "tags": row.tags,
        "message_count": len(messages),
        "tool_names": schema.tool_names(messages),
        "preview": schema.preview(messages),
    }
    columns["terms"] = terms(columns)
    lifted = media.lift(messages)
    content = {
        "messages": lifted.messages,
        "tools": value.get("tools") or [],
        "interventions": value.get("interventions") or [],
        "metadata": costs.metadata_of(parsed, columns["cost_basis"], price_of),
        "warnings": parsed.warnings,
    }
    digest = columns["content_digest"] = schema.content_digest(value)
    return Prepared(
        index,
        row.id,
        digest,
        columns,
        content,
        parsed.eval_sample,
        lifted if lifted.references else None,
    )


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


def _store_few(given: Sequence[tuple[Project, list[Prepared]]]) -> None:
    """What several threads want to store in a project."""
    project = given[0][0]
    _store(project, [item for _, batch in given for item in batch], Cause.RESENT, restore=False)


_few: defaultdict[int, Together[tuple[Project, list[Prepared]]]] = defaultdict(
    lambda: Together(_store_few)
)


def _ensure_partitions(items: Iterable[Prepared], now: datetime) -> None:
    """Before the first write of a transaction."""
    partitions.ensure({ids.month_of(ids.sort_time(i.columns["started_at"], now)) for i in items})


@partitions.expected()
def _store(project: Project, batch: list[Prepared], cause: Cause, restore: bool) -> None:
    """In one trip to the database where all rows are new and few."""
    now = timezone.now()
    is_plain = len(batch) <= FEW and cause == Cause.RESENT and not restore
    if is_plain and _store_new(project, batch, now):
        return
    with transaction.atomic(savepoint=False):
        if restore:
            tombstones.lift(project, {item.name for item in batch})
        _ensure_partitions(batch, now)
        first: dict[str, Prepared] = {}
        later: list[Prepared] = []  # of the same id as one before it in this batch
        for item in batch:
            if item.name in first:
                later.append(item)
            else:
                first[item.name] = item
        keys = _new_keys(first, now)
        with one_trip():
            claimed = _claim(project, keys, first)
            # Asked once they are claimed: a deletion that we waited for counts, too.
            gone_before = {} if restore else tombstones.digests_of_runs(first)
            deleted = tombstones.ask(project, gone_before)
            awaited = merging.ask(project, first)
        new = {name for (name,) in claimed.rows()}
        if gone := {name: at for name, at in deleted().items() if name in new}:
            _refuse_deleted(project, gone, batch)
            new -= gone.keys()
            first = {name: item for name, item in first.items() if name not in gone}
            later = [item for item in later if item.name not in gone]
        if said := awaited() & new:
            for name, news in Feedback.objects.about(project.pk, said).items():
                apply_feedback(first[name].columns, first[name].digest, news)
        counts = Counts()
        for name in new:
            counts.add(keys[name], first[name].columns)
            first[name].outcome = "accepted"
        added = [(keys[name], first[name]) for name in new]
        changed = [item for name, item in first.items() if name not in new] + later
        touched = [pk for pk, _ in added]
        if changed or len(batch) > FEW or any(i.lifted or i.eval_sample for i in first.values()):
            touched += _store_many(project, added, changed, counts, cause, now)
            added = []
        with one_trip(commit=True):
            _insert(project, added, now)
            announce(project, touched, counts, only_new=not changed)


def _store_new(project: Project, batch: list[Prepared], now: datetime) -> bool:
    """Stores rows of which nothing is known yet, in one trip. False where something is, and nothing
    was stored.
    """
    items = {item.name: item for item in batch}
    if len(items) < len(batch) or any(item.lifted or item.eval_sample for item in batch):
        return False
    keys, counts = _new_keys(items, now), Counts()
    for name, item in items.items():
        counts.add(keys[name], item.columns)
    mine = [str(project.pk), array(items), array(map(str, keys.values()))]
    with transaction.atomic(savepoint=False):
        _ensure_partitions(batch, now)
        with one_trip(commit=True):
            _claim(project, keys, items)
            merging.hold_back(project)
            deleted = tombstones.digests_of_runs(items)
            all_new = send(ALL_NEW, [*mine, array(deleted)])
            _insert(project, [(keys[name], item) for name, item in items.items()], now, IF_NEW)
            announce(project, list(keys.values()), counts, IF_NEW, only_new=True)
            send(UNCLAIM, mine)
    if all_new.rows() != [("true",)]:
        return False
    for item in batch:
        item.outcome = "accepted"
    return True


def _new_keys(items: dict[str, Prepared], now: datetime) -> dict[str, UUID]:
    return {
        name: ids.uuid7(ids.sort_time(item.columns["started_at"], now))
        for name, item in items.items()
    }


def _store_many(
    project: Project,
    added: list[tuple[UUID, Prepared]],
    changed: list[Prepared],
    counts: Counts,
    cause: Cause,
    now: datetime,
) -> list[UUID]:
    """Returns those of the changed that were there and are different now."""
    items = [*(item for _, item in added), *changed]
    kept = _keep_media(project, items)
    _copy(project, added, now)
    eval_claims.add(project, [(pk, item.eval_sample) for pk, item in added if item.eval_sample])
    touched = _update(project, changed, counts, cause) if changed else []
    if kept:
        _note_uses(project, items, kept)
    return touched


def _keep_media(project: Project, items: list[Prepared]) -> dict[str, int]:
    found = [item.lifted for item in items if item.lifted]
    if not found:
        return {}
    data = {digest: raw for lifted in found for digest, raw in lifted.data.items()}
    return media_store.keep(project, data, set().union(*(one.references for one in found)))


def _note_uses(project: Project, items: list[Prepared], kept: dict[str, int]) -> None:
    """Of runs as they are stored, also those whose rows were duplicates."""
    with_media: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        if item.lifted:
            with_media[item.name] |= item.lifted.references
    keys = TrajectoryKey.objects.filter(project=project, external_id__in=with_media)
    media_store.use(
        (pk, kept[digest])
        for name, pk in keys.values_list("external_id", "trajectory_id")
        for digest in with_media[name]
        if digest in kept
    )


def apply_feedback(columns: dict[str, Any], sent: str, said: list[Feedback]) -> None:
    """Applies feedback to the columns of a run, whose agent sent something with the digest
    `sent`.
    """
    columns |= merging.merge(columns, said)
    columns["terms"], columns["content_digest"] = terms(columns), merging.digest_of(sent, said)


def _claim(project: Project, keys: dict[str, UUID], items: dict[str, Prepared]) -> Statement:
    """The names that were not there before; from now on they are. Sorted, so that two batches
    cannot deadlock.
    """
    names = sorted(keys)
    return send(
        "INSERT INTO trajectories_trajectorykey (project_id, external_id, trajectory_id, digest)"
        " SELECT $1::bigint, name, id, digest FROM unnest($2::text[], $3::uuid[], $4::text[]) AS"
        " given(name, id, digest) ON CONFLICT DO NOTHING RETURNING external_id",
        [
            str(project.pk),
            array(names),
            array(str(keys[name]) for name in names),
            array(items[name].digest for name in names),
        ],
    )


def _refuse_deleted(project: Project, deleted: dict[str, datetime], batch: list[Prepared]) -> None:
    TrajectoryKey.objects.filter(project=project, external_id__in=list(deleted)).delete()
    late_data.note(project.pk, LateData.Kind.RUN, sum(item.name in deleted for item in batch))
    for item in batch:
        if at := deleted.get(item.name):
            item.outcome, item.problem = "deleted", DELETED.format(at=at)


def _row(project: Project, pk: UUID, item: Prepared, now: datetime) -> list[Any]:
    """The values of HOT."""
    given = item.columns | {
        "id": pk,
        "project_id": project.pk,
        "external_id": item.name,
        "received_at": now,
    }
    given |= {name: array(given[name]) for name in ARRAYS}
    return [given[name] for name in HOT]


def _copy(project: Project, items: list[tuple[UUID, Prepared]], now: datetime) -> None:
    if not items:
        return
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY trajectories_trajectory ({', '.join(HOT)}) FROM STDIN") as copy:
            for pk, item in items:
                copy.write_row(_row(project, pk, item, now))
        copy_content(cursor, ((pk, item.content) for pk, item in items))


def _insert(
    project: Project, items: list[tuple[UUID, Prepared]], now: datetime, condition: str = ""
) -> None:
    """As `_copy`, of few, which can be sent together with others."""
    for pk, item in items:
        values = _row(project, pk, item, now)
        send(INSERT + condition, [None if value is None else str(value) for value in values])
        for first, data in contents.chunks(item.content):
            send(INSERT_CONTENT + condition, [str(pk), str(first), data])


def copy_content(cursor: Any, items: Iterable[tuple[UUID, dict]]) -> None:
    with cursor.copy(
        "COPY trajectories_content (trajectory_id, first, data) FROM STDIN (FORMAT BINARY)"
    ) as copy:
        copy.set_types(["uuid", "int4", "bytea"])
        for pk, content in items:
            for first, data in contents.chunks(content):
                copy.write_row((pk, first, data))


def announce(
    project: Project,
    touched: list[UUID],
    counts: Counts,
    condition: str = "",
    *,
    only_new: bool = False,
) -> None:
    """Leaves a note for `digest`, and wakes it once this is committed. `only_new`: none of the runs
    was there before.
    """
    if touched or counts.hours:
        send(
            "INSERT INTO trajectories_arrival (project_id, trajectories, counts, only_new, at)"
            " SELECT $1, $2, $3, $4, now()" + condition,
            [
                str(project.pk),
                array(map(str, touched)),
                msgspec.json.encode(counts.as_json()).decode(),
                "true" if only_new else "false",
            ],
        )
        transaction.on_commit(digest.wake)


def _update(project: Project, items: list[Prepared], counts: Counts, cause: Cause) -> list[UUID]:
    """Replaces what has changed. The lock of a row also guards its key's digest and what people say
    of it.
    """
    names = {item.name for item in items}
    found = TrajectoryKey.objects.filter(project=project, external_id__in=names)
    pks = list(found.values_list("trajectory_id", flat=True))
    rows = Trajectory.objects.select_for_update().order_by("pk").in_bulk(pks)
    keys = {key.external_id: key for key in found.all()}
    said = Feedback.objects.about(project.pk, names)
    touched = []
    for item in items:
        key = keys[item.name]
        row = rows.get(key.trajectory_id)
        if (
            row is None
            or key.digest == item.digest
            or (cause != Cause.ASSEMBLED and _sent_before(row, item))
        ):
            item.outcome = "duplicates"
            continue
        apply_feedback(item.columns, item.digest, said[item.name])
        replace(row, item.columns, item.content, counts, cause=cause, sent=key.digest)
        key.digest = item.digest
        TrajectoryKey.objects.filter(project=project, external_id=key.external_id).update(
            digest=key.digest
        )
        touched.append(row.pk)
        item.outcome = "updated"
        if item.eval_sample:
            eval_claims.add(project, [(row.pk, item.eval_sample)])
    return touched


def _sent_before(row: Trajectory, item: Prepared) -> bool:
    """A late copy of something that has been replaced since changes nothing."""
    return row.revisions.filter(content_digest=item.digest).exists()


def replace(
    row: Trajectory,
    columns: dict[str, Any],
    content: dict[str, Any],
    counts: Counts,
    *,
    cause: Cause,
    sent: str = "",
) -> None:
    """Changes a trajectory, keeps its previous content, and adds the difference to `counts`.

    The run keeps its id, and so its place in the list, even if its start has changed. `sent` is the
    digest of the previous content, if it differs.
    """
    before = {name: getattr(row, name) for name in SENT}
    was = {name: _jsonable(value) for name, value in before.items() if name not in DERIVED}
    changed = {
        name: value
        for name, value in was.items()
        if name in columns and before[name] != columns[name]
    }
    changed |= {name: row.content[name] for name in content if row.content[name] != content[name]}
    if changed or sent:
        was = _without_what_stays(changed, content) if cause == Cause.ASSEMBLED else changed
        TrajectoryRevision.objects.create(
            trajectory=row, content_digest=sent, cause=cause, content=was
        )
    counts.add(row.pk, before, -1)
    for name, value in columns.items():
        setattr(row, name, value)
    counts.add(row.pk, {name: getattr(row, name) for name in SENT})
    row.save(update_fields=list(columns))
    if any(name in changed for name in contents.FIELDS):
        row.content = row.content | content
        Content.objects.filter(trajectory_id=row.pk).delete()
        with connection.cursor() as cursor:
            copy_content(cursor, [(row.pk, row.content)])


def _without_what_stays(changed: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a revision keeps of a run that spans completed: a long one is assembled often, and each
    time contains the last.

    Messages at the beginning of the present ones are kept by their number.
    """
    was = {name: value for name, value in changed.items() if name != "metadata"}
    messages = was.get("messages")
    if messages is not None and now["messages"][: len(messages)] == messages:
        del was["messages"]
        was["message_count"] = len(messages)
    return was


def _jsonable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | dict | bool | None) else str(value)


@transaction.atomic
def remove(
    project: Project, rows: Iterable[Trajectory], *, with_their_month: bool = False
) -> set[str]:
    """Removes trajectories with all that depends on them, except their spans; they may come again.
    `with_their_month`: their rows, words and steps stay, since the partitions of their month are
    dropped as soon as all of it is removed (`partitions.drop_removed`).

    Returns the ids that clients gave to those that this call removed: of two that remove the same
    ones, the second waits for the rows, finds them gone, and subtracts nothing from the counts.
    """
    counts, removed = Counts(), {}
    wanted = [row.pk for row in rows]
    locked = Trajectory.objects.filter(project=project, pk__among=wanted).select_for_update()
    found = list(locked.order_by("pk").values("pk", "external_id", *COLUMNS))
    keys = TrajectoryKey.objects.filter(
        project=project, external_id__among=[row["external_id"] for row in found]
    )
    here = set(keys.values_list("trajectory_id", flat=True))
    for row in found:
        if row["pk"] in here:  # else it was removed, and waits for the end of its month
            counts.add(row["pk"], row, -1)
            removed[row["pk"]] = row["external_id"]
    gone = list(removed) if with_their_month else [row["pk"] for row in found]
    names, ids = Array(removed.values()), Array(gone)
    parquet_files.forget_days(project, gone, names)
    media_store.release(project.pk, ids)
    TrajectoryKey.objects.filter(project=project, external_id__among=names).delete()
    for said in (Feedback, Score):
        said.objects.filter(project=project, external_id__among=names).delete()
    UploadedTrajectory.objects.filter(trajectory_id__among=ids).delete()
    _remove_dependents(ids)
    if with_their_month:
        announce(project, [], counts)
        return set(removed.values())
    Content.objects.filter(trajectory_id__among=ids).delete()
    SearchText.objects.filter(trajectory_id__among=ids).delete()
    step_store.delete(project.pk, gone)
    rows_left = Trajectory.objects.filter(pk__among=ids)
    rows_left._raw_delete(using=rows_left.db)  # type: ignore[attr-defined]
    announce(project, gone, counts)
    return set(removed.values())


def _remove_dependents(gone: Array) -> None:
    """What refers to runs by a foreign key goes, or lets go of them, as Django's cascade does; that
    names each run in each of its questions, which takes longer than all the rest.
    """
    for relation in Trajectory._meta.related_objects:
        model, name = relation.related_model, relation.field.name
        found = model._base_manager.filter(**{f"{name}__among": gone})
        if pks := list(found.values_list("pk", flat=True)):
            rows = model._base_manager.filter(pk__in=pks)
            if relation.on_delete is models.CASCADE:
                rows.delete()
            else:
                rows.update(**{name: None})


@on(Deleting[Trajectory])
def remove_contents(event: Deleting[Trajectory]) -> None:
    """What hangs on runs without a foreign key."""
    pks = list(event.rows.values_list("pk", flat=True))
    Content.objects.filter(trajectory_id__in=pks).delete()
    SearchText.objects.filter(trajectory_id__in=pks).delete()
    UploadedTrajectory.objects.filter(trajectory_id__in=pks).delete()


def find(project: Project, external_id: str) -> Trajectory | None:
    """The trajectory of a client's id."""
    key = TrajectoryKey.objects.filter(project=project, external_id=external_id).first()
    return Trajectory.objects.filter(pk=key.trajectory_id, project=project).first() if key else None
