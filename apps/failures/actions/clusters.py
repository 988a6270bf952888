"""Clusters: reading them, and what people do with one: rename it, change its state, decide on all
its open failures at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from uuid import UUID

from django.db import transaction
from django.http import Http404
from django.utils import timezone
from msgspec import Meta, Struct, field

from apps.core import locks
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.http import uuid_of
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.core.operations import Moment, Reference, Rest, choice_of, operation
from apps.failures.actions.bulk import LIMIT, Change, assign_many, decide_many
from apps.failures.actions.decisions import Refused
from apps.failures.clusters import store, versions
from apps.failures.clusters.life import LEGAL, IllegalMove, moved
from apps.failures.clusters.signatures import Signature
from apps.failures.clusters.summary import summarised
from apps.failures.models import (
    ClusterSpace,
    Failure,
    FailureCluster,
    FailureMode,
    FailureState,
)
from workers.lib.storable import storable

State = FailureCluster.State
Kind = FailureCluster.FixedKind
StateName = Annotated[choice_of(State), Meta(title="State")]  # type: ignore[valid-type]
KindName = Annotated[choice_of(Kind), Meta(title="Kind")]  # type: ignore[valid-type]
LISTED = 20  # versions that a refusal names
# What a cluster has of its own, and gets back when merging is undone.
OWN = (
    "name",
    "named_by_person",
    "state",
    "fixed_kind",
    "fixed_version",
    "fixed_at",
    "reopened_why",
)


class UnknownVersion(Rejected):
    """A version that no run names."""

    field = "version"


class LikelyFixOut(Struct):
    kind: Annotated[
        str, Meta(description="From light to heavy: limit, tool, facts, prompt, sft, dpo, grpo")
    ]
    title: str
    why: str


class EstimateOut(Struct):
    value: float
    low: float
    high: float
    n: int


class ShareOut(Struct):
    """Of all failures, those of the cluster. Without `low` and `high` it is no estimate, but the
    share of the failures that were found."""

    value: float
    low: float | None
    high: float | None
    n: int
    rests_on: str
    rate: Annotated[EstimateOut | None, Meta(description="Of all runs, those that fail this way")]


class ClusterOut(Struct):
    pk: UUID = field(name="id")
    name: str
    named_by_person: bool
    state: StateName
    mode_slug: str | None = field(name="mode")
    n: int = field(name="failures")
    open: int
    week: Annotated[int, Meta(description="Failures of the last 7 days")]
    growth: Annotated[int, Meta(description="How many more than in the 7 days before")]
    fix: LikelyFixOut = field(name="likely_fix")
    share: ShareOut
    causes: Annotated[list[str], Meta(description="Of its most typical failures, in words")]
    versions: list[str]
    first_seen: Moment
    last_seen: Moment
    gone: bool
    merged_into_id: UUID | None = field(name="merged_into")
    united_by: Annotated[
        str, Meta(description="Who said that its parts have one cause: people, judge or nobody")
    ]
    fixed_kind: KindName
    fixed_version: str
    fixed_at: Moment | None
    reopened_why: str


class VersionOut(Struct):
    kind: KindName
    name: str
    first_seen: Moment
    failures: Annotated[int, Meta(description="Of this cluster, in runs of this version")]


@operation("clusters_list", rest=Rest("GET", "clusters/", "clusters"), gives=list[ClusterOut])
def listed(
    *,
    project: Project,
    state: StateName | None = None,
    mode: Annotated[str, Meta(description="Slug of a failure mode")] | None = None,
) -> Sequence[FailureCluster]:
    """Clusters that were found by the last clustering, largest first."""
    rows = FailureCluster.objects.filter(project=project, gone=False).select_related("mode")
    rows = rows.filter(state=state) if state else rows
    rows = rows.filter(mode__slug=mode) if mode else rows
    return summarised(project, list(rows))


@operation("clusters_read", rest=Rest("GET", "clusters/<uuid:pk>/", "cluster"), gives=ClusterOut)
def one(*, cluster: FailureCluster) -> FailureCluster:
    """A cluster: its likely fix, and its share of all failures."""
    return summarised(cluster.project, [cluster])[0]


@operation(
    "clusters_versions",
    rest=Rest("GET", "clusters/<uuid:pk>/versions/", "cluster_versions"),
    gives=list[VersionOut],
)
def fixable_in(*, cluster: FailureCluster) -> list[versions.Version]:
    """The versions in which a cluster can be fixed: those that runs of the project name, newest
    first by their first run."""
    return versions.of_cluster(cluster)


@operation("clusters_again", rest=Rest("POST", "clusters/again/", "clusters_again", 204))
def again(*, project: Project) -> None:
    """Has the failures clustered again now, not only within 15 minutes."""
    store.request(project.pk)


@operation(
    "clusters_rename",
    rest=Rest("PATCH", "clusters/<uuid:pk>/", "cluster"),
    gives=ClusterOut,
    says={"cluster.renamed": "renamed the cluster “{before}” to {after@}"},
)
@transaction.atomic
def rename(
    *,
    cluster: FailureCluster,
    by: Any,
    name: Annotated[str, Meta(title="Name", description="Empty: the generated name")],
) -> FailureCluster:
    """Renames a cluster. The name survives later clusterings; an empty one restores the generated
    name.

    Raises Refused.
    """
    cluster = FailureCluster.objects.select_for_update().get(pk=cluster.pk)
    before, name = cluster.name, " ".join(storable(name, "").split())
    if len(name) > 200:
        raise Refused("Names can have at most 200 characters.")
    cluster.named_by_person = bool(name)
    cluster.name = name or str(cluster.signature.get("name") or cluster.name)
    cluster.save(update_fields=["name", "named_by_person"])
    detail = {"before": before, "after": cluster.name}
    audit("cluster.renamed", project=cluster.project, by=by, target=cluster, **detail)
    return one(cluster=cluster)


@operation(
    "clusters_move",
    rest=Rest("POST", "clusters/<uuid:pk>/move/", "cluster_move"),
    gives=ClusterOut,
    says={
        "cluster.moved": (
            "moved {=a cluster@} from {before} to {after}[, fixed in {version}][: {why}]"
        )
    },
)
@transaction.atomic
def move(
    *,
    cluster: FailureCluster,
    by: Any,
    to: StateName,
    version: Annotated[
        str, Meta(max_length=241, description="Fixed in: one of the versions that exist")
    ] = "",
    kind: KindName = "agent",
) -> FailureCluster:
    """Changes the state of a cluster. *fixed* needs the version that fixes it, exactly as runs name
    it; a failure of this or a later version reopens the cluster.

    Raises Refused for a state that cannot be reached from the current one, and UnknownVersion.
    """
    cluster = FailureCluster.objects.select_for_update().get(pk=cluster.pk)
    before = cluster.state
    try:
        cluster.state = moved(cluster.state, to)  # type: ignore[arg-type]
    except IllegalMove as error:
        raise Refused(f"{error} Someone may have changed it since you opened it.") from error
    cluster.reopened_why = ""
    if cluster.state == State.FIXED:
        _refuse_unknown(cluster, kind, version)
        cluster.fixed_kind, cluster.fixed_version = kind, version
        cluster.fixed_at = timezone.now()
    cluster.save(update_fields=["state", "reopened_why", "fixed_kind", "fixed_version", "fixed_at"])
    said = version if cluster.state == State.FIXED else ""
    detail = {"before": before, "after": cluster.state, "version": said}
    audit("cluster.moved", project=cluster.project, by=by, target=cluster, **detail)
    return one(cluster=cluster)


def _refuse_unknown(cluster: FailureCluster, kind: str, version: str) -> None:
    """Raises UnknownVersion, with the versions that exist."""
    known = list(versions.first_seen(cluster.project, kind))
    if version in known:
        return
    noun = "model" if kind == Kind.MODEL else "agent version"
    if not known:
        raise UnknownVersion(f"No run names its {noun} yet, so nothing can be fixed in one.")
    more = f" and {len(known) - LISTED:,} older" if len(known) > LISTED else ""
    raise UnknownVersion(
        f"No run names the {noun} “{version}”. Choose one that exists:"
        f" {', '.join(reversed(known[-LISTED:]))}{more}."
    )


def find_cluster(project: Project, id: str) -> FailureCluster:
    rows = FailureCluster.objects.filter(project=project, pk=uuid_of(id), gone=False)
    if found := rows.first():
        return found
    raise Http404("No cluster that still exists has this id.")


@operation(
    "clusters_merge",
    rest=Rest("POST", "clusters/<uuid:pk>/merge/", "cluster_merge"),
    gives=ClusterOut,
    says={"cluster.merged": "merged the cluster “{name}” into {=a cluster@}"},
)
@transaction.atomic
def merge(
    *,
    cluster: FailureCluster,
    by: Any,
    into: Annotated[
        FailureCluster, Reference(find_cluster), Meta(title="Into", description="Id of a cluster")
    ],
) -> FailureCluster:
    """Merges a cluster into another one, which is returned and keeps its name and state. What
    resembles either joins it from then on. The merged one is kept, so that `split` can restore it.

    Raises Refused.
    """
    project = cluster.project
    locks.acquire_in(project.pk, ProjectLock.CLUSTERS)
    rows = FailureCluster.objects.filter(project=project, pk__in=(cluster.pk, into.pk))
    found = {row.pk: row for row in rows.select_for_update()}
    if len(found) < 2:
        raise Refused("Choose another cluster that still exists.")
    cluster, into = found[cluster.pk], found[into.pk]
    parts = [
        part.as_dict()
        for row in (into, cluster)
        for part in store.parts_of(row) or [Signature.from_dict(row.signature)]
    ]
    into.signature |= {"parts": parts}
    into.before_merge = into.before_merge or {name: getattr(into, name) for name in OWN}
    into.save(update_fields=["signature", "before_merge"])
    members = Failure.objects.filter(cluster=cluster)
    before = (cluster.before_merge or {}) | {"members": list(members.values_list("pk", flat=True))}
    FailureCluster.objects.filter(pk=cluster.pk).update(
        merged_into=into, gone=True, size=0, before_merge=before
    )
    members.update(cluster=into)
    audit("cluster.merged", project=project, by=by, target=into, name=cluster.name)
    store.refresh(project, [into.pk])
    into.refresh_from_db()
    return one(cluster=into)


@operation(
    "clusters_split",
    rest=Rest("POST", "clusters/<uuid:pk>/split/", "cluster_split"),
    gives=ClusterOut,
    says={
        "cluster.split": "split {=a cluster@} into its parts[: {parts}]",
        "cluster.split_off": "split {=a cluster@} off “{name}”, since its cause differs",
    },
)
@transaction.atomic
def split(*, cluster: FailureCluster, by: Any) -> FailureCluster:
    """Splits a cluster into the parts that people merged: each has the name, the state and the
    fix that it had before. Parts that the judge united become clusters with the next clustering.
    Merging them again undoes it.

    Raises Refused.
    """
    project = cluster.project
    locks.acquire_in(project.pk, ProjectLock.CLUSTERS)
    cluster = FailureCluster.objects.select_for_update().get(pk=cluster.pk)
    parts = list(cluster.absorbed.select_for_update(of=("self",)))
    if parts:
        _restore(cluster, parts)
    elif label := cluster.signature.get("label"):
        space = ClusterSpace.objects.select_for_update().get(project=project)
        space.apart = [*space.apart, label]
        space.save(update_fields=["apart"])
        cluster.signature |= {"label": ""}
        cluster.save(update_fields=["signature"])
    else:
        raise Refused("This cluster has no parts: nobody merged it.")
    names = ", ".join(f"“{part.name}”" for part in parts)
    audit("cluster.split", project=project, by=by, target=cluster, parts=names)
    store.request(project.pk)
    return one(cluster=cluster)


def _restore(cluster: FailureCluster, parts: Sequence[FailureCluster]) -> None:
    for part in parts:
        assert part.before_merge is not None
        members = part.before_merge.pop("members")
        mine = Failure.objects.filter(cluster=cluster, pk__in=members)
        mine.update(cluster=part)
        part.merged_into, part.gone = None, False
        part.before_merge = part.before_merge if part.absorbed.exists() else None
        part.save(update_fields=["merged_into", "gone", "before_merge"])
    for name, value in (cluster.before_merge or {}).items():
        setattr(cluster, name, value)
    cluster.signature |= {"parts": []}
    cluster.before_merge = None
    cluster.save(update_fields=[*OWN, "signature", "before_merge"])
    store.refresh(cluster.project, [cluster.pk, *(part.pk for part in parts)])
    cluster.refresh_from_db()


@transaction.atomic
def in_evals(*, trajectories: Iterable[Any], by: Any) -> int:
    """Sets the clusters of these runs' standing failures to “in evals”, if their life cycle allows
    it. Returns how many changed.
    """
    found = Failure.objects.filter(
        trajectory__in=list(trajectories), cluster__isnull=False
    ).standing()
    before = [state for state in State.values if State.IN_EVALS in LEGAL[state]]  # type: ignore[index]
    rows = FailureCluster.objects.filter(pk__in=found.values("cluster"), state__in=before).order_by(
        "pk"
    )
    moved_now = list(rows.select_for_update(of=("self",)).select_related("project"))
    for cluster in moved_now:
        detail = {
            "before": cluster.state,
            "after": State.IN_EVALS,
            "version": "",
            "why": "a task was made of it",
        }
        FailureCluster.objects.filter(pk=cluster.pk).update(state=State.IN_EVALS)
        audit("cluster.moved", project=cluster.project, by=by, target=cluster, **detail)
    return len(moved_now)


def decide_all(
    *, cluster: FailureCluster, by: Any, state: FailureState, mode: FailureMode | None = None
) -> Change:
    """The same decision for the cluster's newest `LIMIT` open failures that nobody else has. Raises
    Refused.
    """
    change = decide_many(
        project=cluster.project, ids=_waiting(cluster, by), by=by, state=state, mode=mode
    )
    store.refresh(cluster.project, [cluster.pk])
    return change


def assign_all(*, cluster: FailureCluster, to: Any, by: Any) -> Change:
    """Assigns the cluster's open failures to a person, or to nobody (None). Raises Refused."""
    waiting = Failure.objects.filter(cluster=cluster).waiting().values_list("pk", flat=True)
    return assign_many(project=cluster.project, ids=list(waiting[:LIMIT]), by=by, to=to)


def _waiting(cluster: FailureCluster, by: Any) -> list[int]:
    found = (
        Failure.objects.filter(cluster=cluster)
        .waiting()
        .free_for(by)
        .values_list("pk", flat=True)[:LIMIT]
    )
    if not found:
        raise Refused(
            "This cluster has no open failures available to you. Failures assigned to others are"
            " skipped."
        )
    return list(found)
