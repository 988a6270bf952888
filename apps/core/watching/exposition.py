"""GET /metrics, in Prometheus' text form: for who has FLYWHEEL_METRICS_TOKEN, or asks from this
machine (and not through a proxy). No label names a project.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily

from apps.core.http import ReadableJson
from apps.core.watching import measures, probes
from flywheel import metrics as counting


def metrics(request: HttpRequest) -> HttpResponse:
    may = counting.may_read(
        request.headers.get("Authorization", ""),
        request.META.get("REMOTE_ADDR", ""),
        forwarded=settings.FLYWHEEL_PROXIES > 0
        or any(name in request.headers for name in counting.FORWARDED),
        token=settings.FLYWHEEL_METRICS_TOKEN,
    )
    if not may:
        headers = {"WWW-Authenticate": "Bearer"}
        return ReadableJson({"detail": counting.REFUSED}, status=401, headers=headers)
    registry = counting.counted_here()
    registry.register(counting.Families(_installation))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _gauge(name: str, help: str, labels: list[str], values: dict[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=labels)
    for given, value in values.items():
        family.add_metric(list(given), value)
    return family


def _installation() -> Iterator[GaugeMetricFamily]:
    checked, wrongs = probes.everything.look()
    found: dict[tuple[str, str], float] = {
        (one.condition.name, one.condition.severity.value): float(len(one.findings))
        for one in checked
    }
    yield _gauge(
        "flywheel_condition",
        "How often a condition is found now",
        ["condition", "severity"],
        found,
    )
    yield _gauge(
        "flywheel_condition_unknown",
        "Whether a condition could not be checked",
        ["condition"],
        {(one.condition.name,): float(bool(one.unknown)) for one in checked},
    )
    since = {wrong.condition.name: wrong.since.timestamp() for wrong in reversed(wrongs)}
    yield _gauge(
        "flywheel_condition_since_timestamp_seconds",
        "Since when a condition is found",
        ["condition"],
        {(name,): at for name, at in since.items()},
    )
    usage = shutil.disk_usage(settings.FLYWHEEL_DATA_DIR)
    host = socket.gethostname()
    disk = {("free",): usage.free, ("used",): usage.used}
    yield _gauge(
        "flywheel_disk_bytes",
        "The disk of the data folder",
        ["host", "state"],
        {(host, *state): float(size) for state, size in disk.items()},
    )
    last = measures.last()
    yield from measures.families(last)
    ages = {(name,): round(time.time() - one.at, 1) for name, one in last.items()}
    yield _gauge(
        "flywheel_measure_age_seconds", "How old a number of this page is", ["measure"], ages
    )
