"""Ray clusters configured by operators: adding, editing and removing them, and checking their
health.
"""

from __future__ import annotations

from typing import Annotated, Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Meta, Struct
from msgspec.structs import asdict

from apps.core import outbox
from apps.core.actions import audit
from apps.core.models import ApiKey, Project, Role
from apps.core.openapi import LINE, sent
from apps.core.operations import Moment, Name, Page, Rest, choice_of, operation
from apps.core.outgoing_keys import key_hosts, key_variables
from apps.core.taken import saved_as
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


class NewCluster(Struct, forbid_unknown_fields=True, kw_only=True):
    """A cluster, by the address of its dashboard."""

    name: Name
    base_url: Annotated[
        str,
        Meta(
            title="Address",
            min_length=1,
            max_length=500,
            pattern=LINE,
            description="URL of the Ray dashboard, where jobs are submitted",
            examples=["http://ray-head:8265"],
        ),
    ]
    key_variable: Annotated[
        str,
        Meta(
            title="Key variable",
            max_length=80,
            pattern=LINE,
            description=(
                "The environment variable of this installation that holds the cluster's token"
                " (RAY_AUTH_MODE=token)"
            ),
            extra={"suggest": key_variables},
        ),
    ] = ""
    gpus: Annotated[
        float,
        Meta(
            title="GPUs of a job",
            ge=0,
            le=1024,
            description=(
                "For TRL, Unsloth, NeMo AutoModel and prime-rl; veRL and NeMo RL ask Ray for their"
                " own"
            ),
        ),
    ] = 1.0
    bases_at: Annotated[
        str,
        Meta(
            title="Folder of base models",
            max_length=500,
            pattern=LINE,
            description=(
                "Where the nodes have the folders of base models. If empty, a job downloads its"
                " base from this Flywheel"
            ),
            examples=["/shared/models"],
        ),
    ] = ""
    flywheel_url: Annotated[
        str,
        Meta(
            title="Address of this Flywheel",
            max_length=500,
            pattern=LINE,
            description="As seen from the nodes, if different from FLYWHEEL_URL",
            examples=["http://flywheel.internal:8000"],
        ),
    ] = ""


class ClusterOut(NewCluster):
    health: choice_of(Health)  # type: ignore[valid-type]
    health_detail: str
    ray_version: str
    checked_at: Moment | None


FORM = {"template": "registry/ray_cluster_form.html", "then": "registry:ray_clusters"}


@operation(
    "ray_clusters_list",
    rest=Rest("GET", "ray-clusters/", "ray_clusters"),
    gives=list[ClusterOut],
)
def clusters(*, project: Project) -> QuerySet[RayCluster]:
    """The Ray clusters to which training runs can be submitted."""
    return project.ray_clusters.all()


@operation(
    "ray_clusters_read",
    rest=Rest("GET", "ray-clusters/<slug:name>/", "ray_cluster"),
    gives=ClusterOut,
)
def cluster(*, cluster: RayCluster) -> RayCluster:
    """A Ray cluster, and whether it answered when it was last checked."""
    return cluster


@operation(
    "ray_clusters_add",
    rest=Rest("POST", "ray-clusters/", "ray_clusters", 201),
    page=Page(
        "ray-clusters/new/",
        "ray_cluster_new",
        done="{returned} added. A worker is checking whether it responds.",
        **FORM,
    ),
    gives=ClusterOut,
    role=Role.OPERATOR,
    examples=(sent("Add", {"name": "gpus", "base_url": "http://ray-head:8265"}),),
    says={"ray_cluster.added": "added the Ray cluster {name}[ at {base_url}]"},
)
@transaction.atomic
def add_cluster(
    *, project: Project, by: Any, given: NewCluster, key: ApiKey | None = None
) -> RayCluster:
    """Adds a cluster by the address of its dashboard, and checks in the background whether it
    answers.

    Raises ServerError.
    """
    fields = _checked(given, operator=key is None)
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.ray_clusters.count() >= MOST:
        raise ServerError(f"{project} has {MOST} clusters, which is the most. Remove one first.")
    cluster = save(RayCluster(project=project, created_by=by, **fields))
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


@operation(
    "ray_clusters_edit",
    rest=Rest("PATCH", "ray-clusters/<slug:name>/", "ray_cluster"),
    page=Page("ray-clusters/<slug:name>/edit/", "ray_cluster_edit", **FORM),
    gives=ClusterOut,
    role=Role.OPERATOR,
    partial=True,
    says={"ray_cluster.edited": "edited the Ray cluster {name}[: {changed}]"},
)
@transaction.atomic
def edit_cluster(
    *, cluster: RayCluster, by: Any, given: NewCluster, key: ApiKey | None = None
) -> RayCluster:
    """Changes the fields that are sent.

    Raises ServerError.
    """
    row = RayCluster.objects.select_for_update().get(pk=cluster.pk)
    same = (given.base_url, given.key_variable) == (row.base_url, row.key_variable)
    fields = _checked(given, operator=key is None or same)
    changed = sorted(name for name, value in fields.items() if getattr(row, name) != value)
    for name in changed:
        setattr(row, name, fields[name])
    for name, value in RESET.items() if {"base_url", "key_variable"} & set(changed) else ():
        setattr(row, name, value)
    save(row)
    audit(
        "ray_cluster.edited", project=row.project, by=by, target=row, name=row.name, changed=changed
    )
    transaction.on_commit(lambda: refresh_soon(row.pk))
    return row


@operation(
    "ray_clusters_remove",
    rest=Rest("DELETE", "ray-clusters/<slug:name>/", "ray_cluster"),
    page=Page(
        "ray-clusters/<slug:name>/remove/",
        "ray_cluster_remove",
        then="registry:ray_clusters",
        done="{target} is removed.",
    ),
    role=Role.OPERATOR,
    says={"ray_cluster.removed": "removed the Ray cluster {name}[ at {base_url}]"},
)
@transaction.atomic
def remove_cluster(*, cluster: RayCluster, by: Any) -> None:
    """Removes it from this project. Jobs running there continue and are followed until they
    finish.
    """
    audit(
        "ray_cluster.removed",
        project=cluster.project,
        by=by,
        name=cluster.name,
        base_url=cluster.base_url,
    )
    cluster.delete()


@operation(
    "ray_clusters_check",
    rest=Rest("POST", "ray-clusters/<slug:name>/check/", "ray_cluster_check", 202),
    page=Page(
        "ray-clusters/<slug:name>/check/",
        "ray_cluster_check",
        then="registry:ray_clusters",
        done="A worker is checking {target}. Reload the page in a moment.",
    ),
    gives=ClusterOut,
    role=Role.OPERATOR,
)
def check_cluster(*, cluster: RayCluster) -> None:
    """Has a worker ask the cluster whether it responds."""
    refresh_soon(cluster.pk)


def _checked(given: NewCluster, *, operator: bool) -> dict[str, Any]:
    """The fields in the form in which they are stored. Raises ServerError."""
    base_url = check_address(given.base_url, given.key_variable, operator=operator)
    url = given.flywheel_url.strip().rstrip("/")
    if url and (not url.startswith(("http://", "https://")) or set(url) & set(" @#?\"'\n")):
        raise ServerError(
            "This must begin with http:// or https:// and name a host.", "flywheel_url"
        )
    return asdict(given) | {"base_url": base_url, "flywheel_url": url}


def save(cluster: RayCluster) -> RayCluster:
    """Raises ServerError if its name is taken."""
    return saved_as(cluster, "A cluster", ServerError)


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
