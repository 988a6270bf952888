"""GET /metrics, in Prometheus' text form: for who has FLYWHEEL_METRICS_TOKEN, or asks from this
machine (and not through a proxy). No label names a project.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily

from apps.core.http import ReadableJson
from apps.core.watching import measures, probes
from apps.core.watching.disks import disks
from flywheel import metrics as counting
from flywheel.version import VERSION


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


GAUGES = {
    "flywheel_condition": ("How often a condition is found now", ["condition", "severity"]),
    "flywheel_condition_unknown": ("Whether a condition could not be checked", ["condition"]),
    "flywheel_condition_since_timestamp_seconds": (
        "Since when a condition is found",
        ["condition"],
    ),
    "flywheel_disk_bytes": (
        "Each disk of this machine, by the first place that is on it",
        ["host", "place", "state"],
    ),
    "flywheel_info": ("Which version of Flywheel this is", ["version"]),
    "flywheel_measure_age_seconds": ("How old a number of this page is", ["measure"]),
}


def _gauge(name: str, values: Mapping[Any, float]) -> GaugeMetricFamily:
    help, labels = GAUGES[name]
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
        found,
    )
    yield _gauge(
        "flywheel_condition_unknown",
        {(one.condition.name,): float(bool(one.unknown)) for one in checked},
    )
    since = {wrong.condition.name: wrong.since.timestamp() for wrong in reversed(wrongs)}
    yield _gauge(
        "flywheel_condition_since_timestamp_seconds",
        {(name,): at for name, at in since.items()},
    )
    host = socket.gethostname()
    yield _gauge(
        "flywheel_disk_bytes",
        {
            (host, disk.place, state): float(size)
            for disk in disks()
            for state, size in (("free", disk.free), ("used", disk.used))
        },
    )
    yield _gauge("flywheel_info", {(VERSION,): 1.0})
    last = measures.last()
    yield from measures.families(last)
    ages = {(name,): round(time.time() - one.at, 1) for name, one in last.items()}
    yield _gauge("flywheel_measure_age_seconds", ages)
