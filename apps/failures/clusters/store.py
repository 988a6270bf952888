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
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, Min
from django.utils import timezone

from apps.core import locks, outbox
from apps.core.actions import audit
from apps.core.locks import ProjectLock
from apps.core.models import Project, Stage
from apps.failures.actions import diagnose
from apps.failures.clusters import find, identity, signatures, versions
from apps.failures.clusters.cases import Case
from apps.failures.clusters.features import Space
from apps.failures.clusters.find import Cluster, Clustering
from apps.failures.clusters.labels import JudgesLabels
from apps.failures.clusters.life import regression
from apps.failures.clusters.names import fact_of_most, facts_of
from apps.failures.clusters.records import case_of
from apps.failures.clusters.signatures import Signature
from apps.failures.models import (
    ClusterSpace,
    Failure,
    FailureCluster,
    FailureMode,
    JudgeVerdict,
)
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.trajectories.models import with_content

TASK, EXPIRES_S = "failures.recluster", 600
CHUNK = 500
FEWEST = 2  # standing failures below which nothing is grouped
PLACED_AT_ONCE = 2_000
CAUSES = 3  # of the most typical members, shown on the page
FORGOTTEN_AFTER = timedelta(days=30)
State = FailureCluster.State


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
    found = find.cluster(list(records.values()), labeller=JudgesLabels(project))
    return _store(project, began, records, found)


@transaction.atomic
def _store(
    project: Project,
    began: datetime,
    records: Mapping[str, Case],
    found: Clustering,
) -> dict[str, int] | None:
    locks.acquire_in(project.pk, ProjectLock.CLUSTERS)
    if ClusterSpace.objects.filter(project=project, made_at__gt=began).exists():
        return None
    previous = {
        str(row.pk): row
        for row in FailureCluster.objects.filter(
            project=project, merged_into=None
        ).select_for_update()
    }
    matching = identity.match(
        _known(project, previous), found.clusters, new_id=lambda group: str(uuid.uuid4())
    )
    parents = {part: id for id, parts in matching.splits.items() for part in parts if part != id}
    parts: dict[str, list[Cluster]] = {}
    for id, group in zip(
        _merged(matching.ids, found.clusters, previous), found.clusters, strict=True
    ):
        parts.setdefault(id, []).append(group)
    members = {
        id: [records[member] for group in own for member in group.members]
        for id, own in parts.items()
    }
    modes = {mode.slug: mode for mode in project.failure_modes.all()}
    groups = {}
    for id, own in parts.items():
        groups[id] = previous.get(id) or FailureCluster(
            id=uuid.UUID(id), project=project, signature={}
        )
        _describe(groups[id], own, members[id], modes)
    gone = previous.keys() - groups.keys()
    _save(groups, previous)
    for id in groups.keys() & parents.keys():
        whole = previous[parents[id]]
        audit("cluster.split_off", project=project, by=None, target=groups[id], name=whole.name)
    _move_members(project, members)
    _leave(project, gone)
    refresh(project, groups)
    reopened = _reopen(project, groups)
    unknown = [case.id for case in records.values() if not case.has_cause]
    space = {
        "space": found.space.as_json() if records else "",
        "failures": len(records),
        "without_cause": len(unknown),
        "judged": _judged(unknown),
        "made_at": began,
    }
    ClusterSpace.objects.update_or_create(project=project, defaults=space)
    counts = {"failures": len(records), "clusters": len(groups)}
    counts["born"] = len(groups.keys() - previous.keys())
    return counts | {"gone": len(gone), "reopened": reopened}


def _merged(
    ids: Sequence[str], found: Sequence[Cluster], previous: Mapping[str, FailureCluster]
) -> list[str]:
    """The ids; a group that resembles a part of a cluster that people merged belongs to it."""
    merged = list(ids)
    for id, row in previous.items():
        if parts := parts_of(row):
            near = identity.alike(parts, [group.signature for group in found])
            merged = [id if is_near else other for other, is_near in zip(merged, near, strict=True)]
    return merged


def parts_of(row: FailureCluster) -> list[Signature]:
    """Of the clusters that people merged into one; empty if nobody did."""
    return [Signature.from_dict(part) for part in row.signature.get("parts", ())]


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


def _judged(failures: Sequence[str]) -> int:
    """How many of these failures' runs the judge has reviewed."""
    runs = Failure.objects.filter(pk__in=failures).values("trajectory")
    verdicts = JudgeVerdict.objects.filter(trajectory__in=runs, error="")
    return verdicts.values("trajectory").distinct().count()


def _describe(
    row: FailureCluster,
    own: Sequence[Cluster],
    members: Sequence[Case],
    modes: Mapping[str, FailureMode],
) -> None:
    """Sets what the run computed for a cluster of one group, or of several that people merged; a
    person's name, the state, and parts that were not found now stay.
    """
    group = own[0]
    signatures = [part.signature for part in own]
    lost = [part for part in parts_of(row) if not any(identity.alike(signatures, [part]))]
    parts = [part.as_dict() for part in (*signatures, *lost)] if parts_of(row) else []
    times = [case.started_at for case in members if case.started_at]
    slug, n = Counter(case.mode for case in members).most_common(1)[0]
    row.mode = modes.get(slug) if 2 * n > len(members) else None
    row.name = row.name if row.named_by_person else group.name[:200]
    row.signature = group.signature.as_dict() | {
        "name": group.name[:200],
        "label": group.label,
        "facts": facts_of(members),
        "fact": fact_of_most(members),
        "parts": parts,
        "corrected": sum(case.corrected for case in members),
        "causes": list(dict.fromkeys(case.cause for case in members if case.cause))[:CAUSES],
    }
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
        project=project, gone=True, state=State.NEW, named_by_person=False, merged_into=None
    )
    untouched.filter(last_seen__lt=timezone.now() - FORGOTTEN_AFTER).delete()


def refresh(project: Project, ids: Iterable[Any]) -> None:
    """Sizes, times and versions of groups, counted from their standing failures."""
    ids = [str(id) for id in ids]
    rows = Failure.objects.filter(project=project, cluster__in=ids).standing().order_by()
    found: dict[str, set[str]] = {id: set() for id in ids}
    for group, *names in rows.values_list(
        "cluster", *versions.COLUMNS[versions.Kind.AGENT]
    ).distinct():
        found[str(group)].add(versions.name_of(tuple(names)))
    times = {"first": Min("trajectory__started_at"), "last": Max("trajectory__started_at")}
    counted = {
        str(row["cluster"]): row for row in rows.values("cluster").annotate(n=Count("pk"), **times)
    }
    FailureCluster.objects.filter(pk__in=set(ids) - set(counted)).update(size=0)
    for id, row in counted.items():
        values = {"size": row["n"], "first_seen": row["first"], "last_seen": row["last"]}
        FailureCluster.objects.filter(pk=id).update(versions=sorted(found[id] - {""}), **values)


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
    known = {
        f"{id} {part}": signature
        for id, row in groups.items()
        for part, signature in enumerate((Signature.from_dict(row.signature), *parts_of(row)))
    }
    placed = signatures.assign(Space.from_json(space.space), known, list(records.values()))
    found = {failure: key.partition(" ")[0] for failure, key in placed.items()}
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
    _reopen(project, groups)
    return placed


# Reopening


def _reopen(project: Project, ids: Iterable[Any]) -> int:
    """Reopens fixed clusters with failures that contradict their fix."""
    fixed = FailureCluster.objects.filter(project=project, pk__in=list(ids), state=State.FIXED)
    return sum(_reopened(row) for row in fixed.select_related("project"))


def _reopened(cluster: FailureCluster) -> bool:
    fix = versions.fix_of(cluster)
    began = versions.first_seen(cluster.project, cluster.fixed_kind)
    found = regression(fix, versions.found_since(cluster), began)
    if found is None:
        return False
    why = versions.why(cluster, found)
    rows = FailureCluster.objects.filter(
        pk=cluster.pk, state=State.FIXED, fixed_at=cluster.fixed_at
    )
    if not rows.update(state=State.REOPENED, reopened_why=why):
        return False
    detail = {"name": cluster.name, "fixed_in": cluster.fixed_version, "why": why}
    audit("cluster.reopened", project=cluster.project, by=None, target=cluster, **detail)
    notify(
        topic=Topic.CLUSTER_REOPENED,
        project=cluster.project,
        subject=f"“{cluster.name}” failed again: it was fixed in {cluster.fixed_version}",
        page=cluster.get_absolute_url(),
        key=f"cluster:{cluster.pk}:reopened:{fix.at.isoformat()}",
        excerpt=why,
    )
    return True
