from __future__ import annotations

from celery import shared_task

from apps.core.models import Stage
from apps.registry import servers
from apps.registry.models import Server


@shared_task(name="registry.check_servers", expires=200)
def check_servers() -> int:
    """One message for each server, so that one that hangs keeps the others waiting no longer than its own limit."""
    pks = list(Server.objects.filter(project__stage=Stage.ACTIVE).exclude(base_url="").values_list("pk", flat=True))
    for pk in pks:
        check_server.apply_async(args=[pk], expires=200)
    return len(pks)


@shared_task(name="registry.check_server")
def check_server(pk: int) -> None:
    server = Server.objects.filter(pk=pk).first()
    if server is not None:
        servers.refresh_health(server)
