"""What can be wrong with what production asks for (`core.watching`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from apps.core.models import JobState, Stage
from apps.core.watching.conditions import Button, Finding, Severity, condition
from apps.core.watching.measures import Values, measured
from apps.promotion.models import Channel, Target
from apps.registry.models import Health, Phase, Server, ServerRun
from apps.registry.servers import refresh_soon

CHECKED_EVERY = timedelta(seconds=15)
FAILED_SHOWN = timedelta(hours=6)


def live_servers() -> QuerySet[Server]:
    """Those that a channel's version is served by now."""
    channels = Channel.objects.live().filter(project__stage=Stage.ACTIVE)
    targets = Target.objects.current().filter(channel__in=channels).values("server")
    return Server.objects.filter(
        Q(pk__in=channels.values("current__server")) | Q(pk__in=targets)
    ).exclude(base_url="", base=None)


def check_soon() -> int:
    """Has workers check them, each by a message, so that one that hangs delays no other."""
    long_ago = timezone.now() - CHECKED_EVERY
    due = live_servers().exclude(base_url="").exclude(checked_at__gt=long_ago)
    pks = list(due.values_list("pk", flat=True))
    for pk in pks:
        refresh_soon(pk)
    return len(pks)


def _check(about: str, by: Any) -> str:
    slug, _, name = about.partition("/")
    for server in live_servers().filter(project__slug=slug, name=name):
        refresh_soon(server.pk)
    return f"Asked a worker to check {about}."


@condition(
    "server_down",
    "A model server of production does not answer",
    todo="Start it again. The endpoint answers what was asked of it with an error, or by the"
    " channel's previous version where that is loaded elsewhere; rolling back is possible.",
    part="servers",
    button=Button("Check now", _check),
    for_operators=True,
)
def down_servers() -> Iterator[Finding]:
    for server in live_servers().filter(health=Health.DOWN).select_related("project"):
        yield Finding(
            f"The server {server.name} of the project {server.project.slug} is down:"
            f" {server.health_detail}"[:400],
            f"{server.project.slug}/{server.name}",
            page=reverse("registry:server", args=[server.project.slug, server.name]),
        )


@condition(
    "managed_server_failed",
    "A managed server failed",
    todo="Read its log on its page and start it again there.",
    severity=Severity.WARNING,
    for_operators=True,
)
def failed_servers() -> Iterator[Finding]:
    failed = ServerRun.objects.filter(
        state=JobState.FAILED, finished_at__gt=timezone.now() - FAILED_SHOWN
    ).exclude(server__runs__state__in=[JobState.QUEUED, JobState.RUNNING])
    latest = failed.order_by("server_id", "-finished_at").distinct("server_id")
    for run in latest.select_related("server__project"):
        server = run.server
        yield Finding(
            f"The managed server {server.name} of the project {server.project.slug} failed.",
            f"{server.project.slug}/{server.name}",
            run.finished_at,
            reverse("registry:server", args=[server.project.slug, server.name]),
        )


@measured("flywheel_servers", "Model servers by health", ["kind", "health", "production"])
def servers() -> Values:
    live = set(live_servers().values_list("pk", flat=True))
    rows = Server.objects.values_list("pk", "kind", "health")
    return Counter((kind, health, "yes" if pk in live else "no") for pk, kind, health in rows)


@measured("flywheel_channels", "Channels by whether their version is served", ["served"])
def channels() -> Values:
    live, every = Channel.objects.live().count(), Channel.objects.current().count()
    return {("yes",): live, ("no",): every - live}


@measured("flywheel_managed_servers", "Managed servers that run, by phase", ["phase"])
def managed_servers() -> Values:
    running = ServerRun.objects.filter(state=JobState.RUNNING).values_list("phase", flat=True)
    found = Counter(running)
    return {(phase,): found[phase] for phase in Phase.values}


@measured(
    "flywheel_managed_server_hours_today", "Hours that managed servers ran today (UTC), together"
)
def managed_server_hours() -> Values:
    now = timezone.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    runs = ServerRun.objects.exclude(started_at=None).exclude(finished_at__lt=midnight)
    spans = runs.values_list("started_at", "finished_at")
    seconds = sum((min(end or now, now) - max(at, midnight)).total_seconds() for at, end in spans)
    return {(): round(seconds / 3600, 3)}
