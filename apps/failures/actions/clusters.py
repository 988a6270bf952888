"""Actions on a cluster: rename it, change its state, decide on all its open failures at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.failures.actions.bulk import LIMIT, Change, assign_many, decide_many
from apps.failures.actions.decisions import Refused
from apps.failures.clusters.life import LEGAL, IllegalMove, UnclearVersion, moved
from apps.failures.clusters.store import LONGEST_VERSION, full_version, refresh
from apps.failures.models import Failure, FailureCluster, FailureMode, FailureState

State = FailureCluster.State


@transaction.atomic
def rename(*, cluster: FailureCluster, name: str, by: Any) -> FailureCluster:
    """A person's name survives later clusterings; an empty one restores the generated name. Raises
    Refused.
    """
    cluster = FailureCluster.objects.select_for_update().get(pk=cluster.pk)
    before, name = cluster.name, " ".join(name.replace("\0", "").split())
    if len(name) > 200:
        raise Refused("Names can have at most 200 characters.")
    cluster.named_by_person = bool(name)
    cluster.name = name or str(cluster.signature.get("name") or cluster.name)
    cluster.save(update_fields=["name", "named_by_person"])
    audit(
        "cluster.renamed",
        project=cluster.project,
        by=by,
        target=cluster,
        before=before,
        after=cluster.name,
    )
    return cluster


@transaction.atomic
def move(*, cluster: FailureCluster, to: str, by: Any, version: str = "") -> FailureCluster:
    """Raises Refused for a state that cannot be reached from the current one, and for a fix without
    a version.
    """
    cluster = FailureCluster.objects.select_for_update().get(pk=cluster.pk)
    before, version = cluster.state, version.replace("\0", "").strip()
    try:
        cluster.state = moved(cluster.state, to)  # type: ignore[arg-type]
    except IllegalMove as error:
        raise Refused(f"{error} Someone may have changed it since you opened it.") from error
    if cluster.state == State.FIXED:
        if not version or len(version) > LONGEST_VERSION:
            raise Refused(
                f"Enter the agent version that fixed it, at most {LONGEST_VERSION} characters."
            )
        try:
            version = full_version(cluster, version)
        except UnclearVersion as error:
            raise Refused(str(error)) from error
        cluster.fixed_version, cluster.fixed_at = version, timezone.now()
    cluster.save(update_fields=["state", "fixed_version", "fixed_at"])
    detail = {"before": before, "after": cluster.state, "version": version}
    audit("cluster.moved", project=cluster.project, by=by, target=cluster, **detail)
    return cluster


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
    refresh(cluster.project, [cluster.pk])
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
