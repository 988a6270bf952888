from __future__ import annotations

from celery import shared_task

from apps.core.models import Stage
from apps.registry import ray_clusters, servers, uploads
from apps.registry.models import RayCluster, Server


@shared_task(name="registry.check_servers", expires=200)
def check_servers() -> int:
    """One task per server, so that a server that hangs delays no other."""
    pks = list(
        Server.objects.filter(project__stage=Stage.ACTIVE)
        .exclude(base_url="")
        .values_list("pk", flat=True)
    )
    for pk in pks:
        check_server.apply_async(args=[pk], expires=200)
    clusters = RayCluster.objects.filter(project__stage=Stage.ACTIVE).values_list("pk", flat=True)
    for pk in clusters:
        check_ray_cluster.apply_async(args=[pk], expires=200)
    return len(pks) + len(clusters)


@shared_task(name="registry.check_server")
def check_server(pk: int) -> None:
    server = Server.objects.filter(pk=pk).first()
    if server is not None:
        servers.refresh_health(server)


@shared_task(name="registry.check_ray_cluster")
def check_ray_cluster(pk: int) -> None:
    cluster = RayCluster.objects.filter(pk=pk).first()
    if cluster is not None:
        ray_clusters.refresh_health(cluster)


@shared_task(name="registry.forget_uploads")
def forget_uploads() -> int:
    return uploads.forget_old()
