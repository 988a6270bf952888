"""The counters of `flywheel.metrics`. Labels hold no text of a project but names of channels."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from flywheel.metrics import ANSWER_BUCKETS, BUCKETS

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
ENDPOINT_REQUESTS = Counter(
    "flywheel_endpoint_requests_total",
    "Requests to the endpoint, by channel and status of their answer; 499: the client left before",
    ["channel", "code"],
)
ENDPOINT_SECONDS = Histogram(
    "flywheel_endpoint_seconds",
    "Seconds until the endpoint had sent a whole answer",
    ["channel"],
    buckets=ANSWER_BUCKETS,
)
ENDPOINT_FIRST_SECONDS = Histogram(
    "flywheel_endpoint_first_seconds",
    "Seconds until the endpoint sent the beginning of an answer",
    ["channel"],
    buckets=ANSWER_BUCKETS,
)
ENDPOINT_OPEN = Gauge(
    "flywheel_endpoint_open",
    "Requests, streams among them, that the endpoint is answering",
    ["channel"],
    multiprocess_mode="livesum",
)
ENDPOINT_TOKENS = Counter(
    "flywheel_endpoint_tokens_total",
    "Tokens of the endpoint's answers, as their servers report them",
    ["channel", "kind"],
)
ENDPOINT_RECORDED = Counter(
    "flywheel_endpoint_recorded_total",
    "Answers of servers that the endpoint recorded, by how they ended",
    ["channel", "ended"],
)
ENDPOINT_WAITING = Gauge(
    "flywheel_endpoint_waiting_bytes",
    "Records of the endpoint that are not in the database yet",
    ["host"],
    multiprocess_mode="livemax",
)
ENDPOINT_OLDEST = Gauge(
    "flywheel_endpoint_oldest_seconds",
    "Age of the oldest record of the endpoint that is not in the database yet",
    ["host"],
    multiprocess_mode="livemax",
)
