"""The counters of `flywheel.metrics`. Labels hold no text of a project."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from flywheel.metrics import BUCKETS

REQUESTS = Counter(
    "flywheel_requests_total",
    "Requests, by the door they came through and the status of their answer",
    ["door", "code"],
)
SECONDS = Histogram(
    "flywheel_request_seconds", "Seconds until a request was answered", ["door"], buckets=BUCKETS
)
ROWS = Counter(
    "flywheel_rows_total",
    "Runs that were received, by how they came and what became of them",
    ["cause", "outcome"],
)
