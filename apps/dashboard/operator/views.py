"""The operator's page: over all projects, for superusers. To others it does not exist."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.core.access import page_of_request, refuse_unstorable_text, takes
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Backup, Incident, Worker
from apps.core.watching import disks, log_ins, measures, probes
from apps.core.watching.conditions import named, unknown
from apps.core.watching.workers import drain as drain_worker
from apps.dashboard.operator import panels
from flywheel.version import VERSION

MUTED = timedelta(hours=24)
TABLES = "flywheel_database_table_bytes"
MONEY = (
    ("Judges", "usd", "flywheel_judge_usd_today"),
    ("Judges' budget", "usd", "flywheel_judge_budget_usd_today"),
    ("Runs, as far as known", "usd", "flywheel_runs_usd_today"),
    ("Managed servers", "hours", "flywheel_managed_server_hours_today"),
)


def operator_view(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    view = takes({})(view)

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return redirect_to_login(page_of_request(request))
        if not request.user.is_superuser:
            raise Http404
        refuse_unstorable_text(request)
        return view(request, *args, **kwargs)

    return wrapper


@operator_view
def home(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    checked, wrongs = probes.everything.look()
    last = measures.last()
    jobs = panels.active_jobs()
    machines = panels.machines(jobs)
    context = {
        "now": now,
        "wrongs": sorted(wrongs, key=lambda wrong: (wrong.condition.severity, wrong.since)),
        "unknown": unknown(checked).items(),
        "conditions": len(checked),
        "ended": [(row, named(row.condition)) for row in panels.ended(now - timedelta(days=1))],
        "machines": machines,
        "queues": list(panels.queues(last, machines)),
        "jobs": jobs[: panels.MOST],
        "servers": panels.servers(),
        "locks": panels.locks(),
        "guessed": log_ins.NAME,
        "disks": disks.disks(),
        "tables": sorted(
            ((size, name) for (name,), size in _values(last, TABLES).items()), reverse=True
        )[: panels.TABLES],
        "database": _one(last, "flywheel_database_bytes"),
        "connections": sum(_values(last, "flywheel_database_connections").values()),
        "connections_max": _one(last, "flywheel_database_connections_max"),
        "partitions": sorted(
            (table, count) for (table,), count in _values(last, "flywheel_partitions").items()
        ),
        "backups": Backup.objects.all()[: panels.BACKUPS],
        "schedule": {
            "target": settings.FLYWHEEL_BACKUP_TARGET,
            "at": settings.FLYWHEEL_BACKUP_AT,
            "keep": settings.FLYWHEEL_BACKUP_KEEP,
        },
        "bases": panels.bases(),
        "versions": panels.versions(),
        "money": [(said, unit, _one(last, name)) for said, unit, name in MONEY],
        "version": VERSION,
    }
    return render(request, "dashboard/operator.html", context)


def _values(last: dict[str, measures.Measured], name: str) -> dict[tuple[str, ...], float]:
    return last[name].values if name in last else {}


def _one(last: dict[str, measures.Measured], name: str) -> float | None:
    return _values(last, name).get(())


@operator_view
@require_POST
def mend(request: HttpRequest, name: str) -> HttpResponse:
    """Presses the button of a condition."""
    one, about = named(name), request.POST.get("about", "")[:160]
    if one is None or one.button is None:
        raise Http404
    try:
        said = one.button.press(about, request.user)
    except Rejected as error:
        messages.error(request, str(error))
    else:
        audit("operator.mended", project=None, by=request.user, label=one.button.label, of=about)
        messages.success(request, said)
    return redirect("operator:home")


@operator_view
@require_POST
def mute(request: HttpRequest, pk: int) -> HttpResponse:
    """Whoever reads it takes care of it: others are not alerted for a day."""
    incident = get_object_or_404(Incident.objects.open(), pk=pk)
    until = timezone.now() + MUTED
    Incident.objects.filter(pk=incident.pk).update(muted_until=until, alerted_at=timezone.now())
    audit("operator.muted", project=None, by=request.user, says=incident.says)
    messages.success(request, "No more alerts of this for 24 hours.")
    return redirect("operator:home")


@operator_view
@require_POST
def drain(request: HttpRequest, pk: int) -> HttpResponse:
    """It takes no more tasks, or takes them again; what it does it ends."""
    worker = get_object_or_404(Worker, pk=pk)
    drained = worker.drained_at is None
    drain_worker(worker, drained)
    audit(
        "operator.drained" if drained else "operator.resumed",
        project=None,
        by=request.user,
        worker=worker.name,
    )
    messages.success(
        request,
        f"{worker.name} ends what it does and takes no more."
        if drained
        else f"{worker.name} takes tasks again.",
    )
    return redirect("operator:home")
