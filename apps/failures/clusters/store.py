"""A project's stored clusters: standing failures are grouped regularly, and new ones are placed in
between.

Reading and grouping (minutes for tens of thousands) happen outside any transaction; matching with
the stored groups and storing happen in one, under the project's advisory lock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from itertools import chain, islice
from math import log as ln
from operator import or_
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, Min, Q
from django.utils import timezone

from apps.core import locks, outbox
from apps.core.actions import audit
from apps.core.locks import ProjectLock
from apps.core.models import Project, Stage
from apps.failures.actions import diagnose
from apps.failures.clusters import find, identity, signatures
from apps.failures.clusters.cases import Case, arguments_of, request_of, trouble_of
from apps.failures.clusters.features import STOP_WORDS, Space
from apps.failures.clusters.life import Fix, after_news, fix_version, known_as, newest_against
from apps.failures.clusters.records import case_of
from apps.failures.clusters.signatures import Signature
from apps.failures.models import (
    ClusterSpace,
    DailyRuns,
    Failure,
    FailureCluster,
    FailureMode,
)
from apps.trajectories.ids import floor_of
from apps.trajectories.models import Arrival, Trajectory, with_content

TASK, EXPIRES_S = "failures.recluster", 600
CHUNK = 500
FEWEST = 3  # standing failures below which nothing is grouped
PLACED_AT_ONCE = 2_000
READ_FOR_WORDS = 200  # members
WORDS = 12
LEAST_SHARE = 0.3  # share of a group's members that contain a distinguishing word
FORGOTTEN_AFTER = timedelta(days=30)
LONGEST_VERSION = 120
HOUR = timedelta(hours=1)
NOT_COUNTED = 5_000  # runs read that the roll-ups do not have yet
State = FailureCluster.State


def version_of(row: Trajectory | Mapping[str, Any]) -> str:
    """“assistant 1.4”, as clusters name versions; empty if the run has no version."""
    name, version = (
        (row.agent_name, row.agent_version)
        if isinstance(row, Trajectory)
        else (row["agent_name"], row["agent_version"])
    )
    return f"{name} {version}".strip()[:LONGEST_VERSION] if version else ""


def full_version(cluster: FailureCluster, text: str) -> str:
    """`life.fix_version` for a cluster. Raises UnclearVersion."""
    members = Failure.objects.filter(cluster=cluster).order_by()
    agents = set(members.values_list("agent_name", flat=True).distinct())
    return fix_version(text, agents, first_seen(cluster.project).keys())[:LONGEST_VERSION]


# Which projects are due


def due() -> list[int]:
    """Projects whose standing failures changed since their last clustering."""
    counts = (
        Failure.objects.standing()
        .order_by()
        .values("project")
        .annotate(n=Count("pk"), newest=Max("created_at"))
    )
    counts = counts.filter(project__stage=Stage.ACTIVE)
    by_project = {row["project"]: row for row in counts}
    spaces = {
        space.project_id: space
        for space in ClusterSpace.objects.filter(project__stage=Stage.ACTIVE).defer("space")
    }
    found = [pk for pk, row in by_project.items() if _has_news(spaces.get(pk), row)]
    return found + [pk for pk, space in spaces.items() if space.failures and pk not in by_project]


def _has_news(space: ClusterSpace | None, counts: Mapping[str, Any]) -> bool:
    if space is None:
        return counts["n"] >= FEWEST
    return space.failures != counts["n"] or counts["newest"] > space.made_at


def request(project: int) -> None:
    """Has a worker cluster a project's failures."""
    outbox.post(TASK, project, queue="default", expires_s=EXPIRES_S)


# Reading


def cases(failures: Iterable[Failure]) -> Iterator[Case]:
    """The light records of failures (with their mode and trajectory selected); content is read
    `CHUNK` at a time.
    """
    chunk: list[Failure] = []
    for failure in failures:
        chunk.append(failure)
        if len(chunk) == CHUNK:
            yield from _cases(chunk)
            chunk = []
    yield from _cases(chunk)


def _cases(chunk: list[Failure]) -> Iterator[Case]:
    with_content([failure.trajectory for failure in chunk])
    for failure in chunk:
        row = failure.trajectory
        yield case_of(
            diagnose.as_input(row),
            id=str(failure.pk),
            mode=failure.mode.slug,
            blamed_message=failure.blamed_message,
            evidence=failure.evidence,
            version=version_of(row),
            started_at=row.started_at,
        )
        del row.content  # tens of thousands of conversations would not fit in memory


def _standing_failures(project: Project) -> Iterator[Failure]:
    rows = (
        Failure.objects.filter(project=project)
        .standing()
        .select_related("mode", "trajectory")
        .order_by("pk")
    )
    return rows.iterator(chunk_size=CHUNK)


# Grouping


def recluster(project: Project) -> dict[str, int] | None:
    """Groups all standing failures of a project. None if a later run finished first.

    {failures, clusters, born, gone, reopened}
    """
    began = timezone.now()
    records = {case.id: case for case in cases(_standing_failures(project))}
    found = find.cluster(list(records.values()))
    words = words_of([[records[id] for id in group.members] for group in found.clusters])
    return _store(project, began, records, found, words)


@transaction.atomic
def _store(
    project: Project,
    began: datetime,
    records: Mapping[str, Case],
    found: Any,
    words: Sequence[list[str]],
) -> dict[str, int] | None:
    locks.acquire_in(project.pk, ProjectLock.CLUSTERS)
    if ClusterSpace.objects.filter(project=project, made_at__gt=began).exists():
        return None
    previous = {
        str(row.pk): row
        for row in FailureCluster.objects.filter(project=project).select_for_update()
    }
    matching = identity.match(
        _known(project, previous), found.clusters, new_id=lambda group: str(uuid.uuid4())
    )
    parents = {part: id for id, parts in matching.splits.items() for part in parts if part != id}
    members = {
        id: [records[member] for member in group.members]
        for id, group in zip(matching.ids, found.clusters, strict=True)
    }
    modes = {mode.slug: mode for mode in project.failure_modes.all()}
    groups = {}
    for id, group, said in zip(matching.ids, found.clusters, words, strict=True):
        groups[id] = previous.get(id) or _born(project, id, previous.get(parents.get(id, "")))
        _describe(groups[id], group, said, members[id], modes)
    _save(groups, previous)
    _move_members(project, members)
    _leave(project, matching.gone)
    refresh(project, groups)
    reopened = _reopen(project, groups, members)
    space = {
        "space": found.space.as_json() if records else "",
        "failures": len(records),
        "made_at": began,
    }
    ClusterSpace.objects.update_or_create(project=project, defaults=space)
    counts = {"failures": len(records), "clusters": len(groups), "born": len(matching.born)}
    return counts | {"gone": len(matching.gone), "reopened": reopened}


def _known(project: Project, previous: Mapping[str, FailureCluster]) -> dict[str, identity.Known]:
    """Includes gone groups: a failure that comes back after months is the old group, with its name
    and its fix.
    """
    members: dict[str, set[str]] = {id: set() for id in previous}
    placed = Failure.objects.filter(project=project, cluster__isnull=False).standing().order_by()
    for failure, group in placed.values_list("pk", "cluster"):
        members[str(group)].add(str(failure))
    return {
        id: identity.Known(frozenset(members[id]), Signature.from_dict(row.signature))
        for id, row in previous.items()
    }


def _born(project: Project, id: str, parent: FailureCluster | None) -> FailureCluster:
    """A new group; a part split off an old one continues with its state."""
    row = FailureCluster(pk=uuid.UUID(id), project=project)
    if parent is not None:
        row.state, row.fixed_version, row.fixed_at = (
            parent.state,
            parent.fixed_version,
            parent.fixed_at,
        )
    return row


def _describe(
    row: FailureCluster,
    group: Any,
    words: list[str],
    members: Sequence[Case],
    modes: Mapping[str, FailureMode],
) -> None:
    """Sets what the run computed for a group; a person's name and the state stay."""
    times = [case.started_at for case in members if case.started_at]
    slug, n = Counter(case.mode for case in members).most_common(1)[0]
    row.mode = modes.get(slug) if 2 * n > len(members) else None
    row.name = row.name if row.named_by_person else group.name[:200]
    row.signature = group.signature.as_dict() | {"name": group.name[:200], "words": words}
    row.gone, row.first_seen, row.last_seen = False, min(times), max(times)


def _save(groups: Mapping[str, FailureCluster], previous: Mapping[str, FailureCluster]) -> None:
    fields = ["name", "mode", "signature", "gone"]
    FailureCluster.objects.bulk_update(
        [row for id, row in groups.items() if id in previous], fields, batch_size=200
    )
    FailureCluster.objects.bulk_create([row for id, row in groups.items() if id not in previous])


def _move_members(project: Project, members: Mapping[str, Sequence[Case]]) -> None:
    """Only rows that change are written, in the order in which classification locks them."""
    wanted = {int(case.id): uuid.UUID(id) for id, group in members.items() for case in group}
    now = (
        Failure.objects.filter(project=project)
        .standing()
        .order_by("trajectory_id")
        .values_list("pk", "cluster")
    )
    changed = [(pk, wanted.get(pk)) for pk, cluster in now if wanted.get(pk) != cluster]
    for start in range(0, len(changed), CHUNK):
        part = dict(changed[start : start + CHUNK])
        rows = list(
            Failure.objects.filter(pk__in=part)
            .order_by("trajectory_id")
            .select_for_update()
            .only("pk")
        )
        for row in rows:
            row.cluster_id = part[row.pk]
        Failure.objects.bulk_update(rows, ["cluster"])


def _leave(project: Project, gone: Iterable[str]) -> None:
    """Groups that were not found again are kept to be recognised; those that nobody touched are
    deleted after a month.
    """
    FailureCluster.objects.filter(pk__in=gone).update(gone=True, size=0)
    untouched = FailureCluster.objects.filter(
        project=project, gone=True, state=State.NEW, named_by_person=False
    )
    untouched.filter(last_seen__lt=timezone.now() - FORGOTTEN_AFTER).delete()


def refresh(project: Project, ids: Iterable[Any]) -> None:
    """Sizes, times and versions of groups, counted from their standing failures."""
    ids = [str(id) for id in ids]
    rows = Failure.objects.filter(project=project, cluster__in=ids).standing().order_by()
    versions: dict[str, set[str]] = {id: set() for id in ids}
    for group, name, version in rows.values_list(
        "cluster", "agent_name", "agent_version"
    ).distinct():
        versions[str(group)].add(version_of({"agent_name": name, "agent_version": version}))
    times = {"first": Min("trajectory__started_at"), "last": Max("trajectory__started_at")}
    counted = {
        str(row["cluster"]): row for row in rows.values("cluster").annotate(n=Count("pk"), **times)
    }
    FailureCluster.objects.filter(pk__in=set(ids) - set(counted)).update(size=0)
    for id, row in counted.items():
        values = {"size": row["n"], "first_seen": row["first"], "last_seen": row["last"]}
        FailureCluster.objects.filter(pk=id).update(versions=sorted(versions[id] - {""}), **values)


# Between two clusterings


def place(project: Project, failures: Sequence[Failure]) -> int:
    """Puts failures without a group into the stored groups they resemble; returns how many found
    one.

    Call it after the transaction that stored them: storing groups waits for rows in the opposite
    order.
    """
    space = ClusterSpace.objects.filter(project=project).exclude(space="").first()
    groups = {
        str(row.pk): row for row in FailureCluster.objects.filter(project=project, gone=False)
    }
    if space is None or not groups or not failures:
        return 0
    pks = [failure.pk for failure in failures]
    rows = (
        Failure.objects.filter(pk__in=pks, cluster=None)
        .standing()
        .select_related("mode", "trajectory")
    )
    records = {case.id: case for case in cases(rows)}
    known = {id: Signature.from_dict(row.signature) for id, row in groups.items()}
    found = signatures.assign(Space.from_json(space.space), known, list(records.values()))
    return _place(project, found, records) if found else 0


def place_new(project: Project) -> int:
    """`place` for the newest failures without a group."""
    new = (
        Failure.objects.filter(project=project, cluster=None)
        .standing()
        .order_by("-pk")[:PLACED_AT_ONCE]
    )
    return place(project, list(new))


@transaction.atomic
def _place(project: Project, found: Mapping[str, str], records: Mapping[str, Case]) -> int:
    locks.acquire_in(project.pk, ProjectLock.CLUSTERS)
    members: dict[str, list[Case]] = {}
    for failure, id in found.items():
        members.setdefault(id, []).append(records[failure])
    groups = {str(row.pk): row for row in FailureCluster.objects.filter(pk__in=members, gone=False)}
    placed = 0
    for id in groups:
        free = Failure.objects.filter(pk__in=[case.id for case in members[id]], cluster=None)
        placed += free.update(cluster=id)
    refresh(project, groups)
    _reopen(project, groups, members)
    return placed


# Reopening


def _reopen(
    project: Project, groups: Mapping[str, FailureCluster], members: Mapping[str, Sequence[Case]]
) -> int:
    """Automatically reopens fixed groups with failures that contradict their fix."""
    fixed = [row for row in groups.values() if row.state == State.FIXED]
    began = first_seen(project) if fixed else {}
    done = 0
    for row in fixed:
        # Without any run of the version yet, or where its name was mistyped, every version that
        # first ran after the fix is a later one.
        version = known_as(row.fixed_version, began)
        known = {version: row.fixed_at, **began}
        newest = newest_against(Fix(version, row.fixed_at), members.get(str(row.pk), ()), known)
        if after_news(row.state, row.fixed_at, newest) != State.REOPENED:
            continue
        if FailureCluster.objects.filter(pk=row.pk, state=State.FIXED).update(state=State.REOPENED):
            done += 1
            detail = {
                "name": row.name,
                "fixed_in": row.fixed_version,
                "failed_at": f"{newest:%F %T}",
            }
            audit("cluster.reopened", project=project, by=None, target=row, **detail)
    return done


def first_seen(project: Project) -> dict[str, datetime]:
    """Version → when its first run began, oldest first.

    From the roll-ups, which know the hour; runs are only read for hours in which several versions
    began, and for what is not counted yet.
    """
    keys = ("agent_name", "agent_version")
    counts = DailyRuns.objects.filter(project=project).exclude(agent_version="").order_by()
    hours = {
        tuple(row[:2]): row[2] for row in counts.values_list(*keys).annotate(first=Min("first"))
    }
    shared = [hour for hour, n in Counter(hours.values()).items() if n > 1]
    new = chain.from_iterable(
        Arrival.objects.filter(project=project).values_list("trajectories", flat=True)
    )
    wanted = reduce(or_, map(_within, shared), Q(pk__in=list(islice(new, NOT_COUNTED))))
    exact = (
        project.trajectories.filter(wanted).exclude(agent_version="").order_by().values_list(*keys)
    )
    began = dict(hours)
    for *key, first in exact.annotate(first=Min("started_at")):
        hour = hours.get((key[0], key[1]))
        if hour is None or first < hour + HOUR:
            began[key[0], key[1]] = first
    named = (
        (version_of({"agent_name": name, "agent_version": version}), at)
        for (name, version), at in began.items()
    )
    return dict(sorted(named, key=lambda item: item[1]))


def _within(hour: datetime) -> Q:
    """The runs that began in an hour: ids begin with their time."""
    return Q(pk__gte=floor_of(hour), pk__lt=floor_of(hour + HOUR))


# Words


def words_of(groups: Sequence[Sequence[Case]]) -> list[list[str]]:
    """For each group the words that its members share and most groups do not: share inside · ln(1 /
    share of the groups).
    """
    shares = [_shares(group[:READ_FOR_WORDS]) for group in groups]
    spread: Counter[str] = Counter(word for group in shares for word in group)
    ranked, most = [], max(len(groups), 2)
    for group in shares:
        scores = {
            word: share * ln((1 + len(groups)) / spread[word])
            for word, share in group.items()
            if 2 * spread[word] <= most
        }
        ranked.append(sorted(scores, key=lambda word: (-scores[word], word))[:WORDS])
    return ranked


def _shares(group: Sequence[Case]) -> dict[str, float]:
    said: Counter[str] = Counter()
    for case in group:
        texts = (trouble_of(case), request_of(case), arguments_of(case).replace("=", " "))
        said.update({word for text in texts for word in text.split() if _tells(word)})
    return {word: n / len(group) for word, n in said.items() if n >= LEAST_SHARE * len(group)}


def _tells(word: str) -> bool:
    return len(word) > 2 and "<" not in word and not word.endswith("_") and word not in STOP_WORDS
