"""Ray clusters configured by operators: adding, editing and removing them, and checking their
health.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.core import outbox
from apps.core.actions import audit
from apps.core.models import Project
from apps.core.outgoing_keys import key_hosts
from apps.registry.models import Health, RayCluster
from apps.registry.servers import ServerError, check_address
from workers.lib.ray_jobs import ClusterError, RayApi
from workers.lib.serving import Address

MOST = 20  # clusters per project
RESET: dict[str, Any] = {
    "health": Health.UNCHECKED,
    "health_detail": "",
    "ray_version": "",
    "checked_at": None,
}


@transaction.atomic
def add_cluster(
    *, project: Project, fields: Mapping[str, Any], by: Any, operator: bool = False
) -> RayCluster:
    """`fields`: name, base_url, key_variable, flywheel_url, bases_at, gpus; `operator` as in
    `servers.add_server`. Raises ServerError.
    """
    given = checked(fields, operator=operator)
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.ray_clusters.count() >= MOST:
        raise ServerError(f"{project} has {MOST} clusters, which is the most. Remove one first.")
    cluster = save(RayCluster(project=project, created_by=by, **given))
    audit(
        "ray_cluster.added",
        project=project,
        by=by,
        target=cluster,
        name=cluster.name,
        base_url=cluster.base_url,
    )
    transaction.on_commit(lambda: refresh_soon(cluster.pk))
    return cluster


@transaction.atomic
def edit_cluster(
    *, cluster: RayCluster, fields: Mapping[str, Any], by: Any, operator: bool = False
) -> RayCluster:
    """Raises ServerError."""
    row = RayCluster.objects.select_for_update().get(pk=cluster.pk)
    before = {name: getattr(row, name) for name in ("base_url", "key_variable")}
    after = before | {name: value for name, value in fields.items() if name in before}
    given = checked(dict(fields) | after, operator=operator or after == before)
    changed = sorted(name for name, value in given.items() if getattr(row, name) != value)
    for name in changed:
        setattr(row, name, given[name])
    for name, value in RESET.items() if {"base_url", "key_variable"} & set(changed) else ():
        setattr(row, name, value)
    save(row)
    audit(
        "ray_cluster.edited", project=row.project, by=by, target=row, name=row.name, changed=changed
    )
    transaction.on_commit(lambda: refresh_soon(row.pk))
    return row


@transaction.atomic
def remove_cluster(*, cluster: RayCluster, by: Any) -> None:
    """Remove a cluster. Runs that are active there are still followed to their end."""
    audit(
        "ray_cluster.removed",
        project=cluster.project,
        by=by,
        name=cluster.name,
        base_url=cluster.base_url,
    )
    cluster.delete()


def checked(fields: Mapping[str, Any], *, operator: bool) -> dict[str, Any]:
    """The fields in the form in which they are stored. Raises ServerError."""
    given = dict(fields)
    given["base_url"] = check_address(
        given["base_url"], given.get("key_variable", ""), operator=operator
    )
    if url := given.get("flywheel_url", "").strip().rstrip("/"):
        if not url.startswith(("http://", "https://")) or any(one in url for one in " @#?\"'\n"):
            raise ServerError(
                "This must begin with http:// or https:// and name a host.", "flywheel_url"
            )
        given["flywheel_url"] = url
    return given


def save(cluster: RayCluster) -> RayCluster:
    """Raises ServerError if its name is taken."""
    try:
        with transaction.atomic():
            cluster.save()
    except IntegrityError as error:
        raise ServerError(f"A cluster named “{cluster.name}” already exists.", "name") from error
    return cluster


def address_of(cluster: RayCluster) -> Address:
    allowed = settings.FLYWHEEL_ALLOW_PRIVATE_URLS
    return Address(cluster.base_url, cluster.key_variable, allowed, key_hosts())


def refresh_health(cluster: RayCluster) -> None:
    """Ask the cluster for its version, within 20 s. The result is dropped if the address has
    changed meanwhile.
    """
    found: dict[str, Any] = {"health": Health.HEALTHY, "health_detail": ""}
    try:
        with RayApi(address_of(cluster)) as asked:
            found["ray_version"] = asked.version()
    except ClusterError as error:
        found |= {"health": Health.DOWN, "health_detail": str(error)[:500]}
    same = RayCluster.objects.filter(
        pk=cluster.pk, base_url=cluster.base_url, key_variable=cluster.key_variable
    )
    same.update(checked_at=timezone.now(), **found)


def refresh_soon(pk: int) -> None:
    """Have a worker check the cluster. A message that is lost is made good by the periodic
    check.
    """
    outbox.post("registry.check_ray_cluster", pk, expires_s=200)
