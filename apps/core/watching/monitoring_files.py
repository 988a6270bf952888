"""The files with which Prometheus and Grafana watch an installation: alert rules from the declared
conditions, a dashboard, and the page that names each metric. `manage.py monitoring_files` writes
them.
"""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from apps.core.watching import measures
from apps.core.watching.conditions import Condition, declared
from apps.core.watching.exposition import GAUGES
from flywheel import counters

RULES, DASHBOARD = "docker/prometheus/alerts.yaml", "docker/grafana/flywheel.json"
TABLE = "docs/metrics.md"
HEAD = "# Written by `manage.py monitoring_files` from the declared conditions. Do not edit it.\n"
SELECT = '{job="flywheel"}'
# What Flywheel cannot say of itself.
OUTSIDE = (
    (
        "FlywheelDown",
        f"up{SELECT} == 0",
        "critical",
        "A web process of Flywheel does not answer",
        "Look whether its process or container runs.",
    ),
    (
        "FlywheelErrors",
        'sum(rate(flywheel_requests_total{code=~"5.."}[5m]))'
        " / sum(rate(flywheel_requests_total[5m])) > 0.01",
        "critical",
        "More than 1% of requests fail",
        "Read the log of the web processes; 503 means that the database is away.",
    ),
    (
        "FlywheelSlow",
        "histogram_quantile(0.95, sum by (le, door) (rate(flywheel_request_seconds_bucket"
        '{door!="pages"}[5m]))) > 1',
        "warning",
        "Agents wait longer than a second",
        "Look at the processor and the disk of the database and of the web processes.",
    ),
    (
        "FlywheelEndpointErrors",
        'sum by (channel) (rate(flywheel_endpoint_requests_total{code=~"50[0234]"}[5m]))'
        " / sum by (channel) (rate(flywheel_endpoint_requests_total[5m])) > 0.05",
        "critical",
        "More than 5% of what a channel is asked fails",
        "Look at its model servers on the operator's page, and at the log of the endpoint.",
    ),
    (
        "FlywheelAnswersUnstored",
        "max(flywheel_endpoint_oldest_seconds) > 300",
        "warning",
        "Answers of the endpoint are not stored",
        "Look whether the process “storing” runs and the database answers. They are kept on disk.",
    ),
    (
        "FlywheelUnwatched",
        "max(flywheel_condition_unknown) > 0 or max(flywheel_measure_age_seconds) > 900",
        "warning",
        "Flywheel cannot watch itself",
        "Look at /readyz and at the log of the web processes for what could not be checked.",
    ),
)


def rules() -> str:
    """As JSON, which is YAML, too: no library writes it in another order."""
    written = [_of_condition(one) for one in declared()]
    written += [
        _rule(name, expr, 60, severity, title, todo)
        for name, expr, severity, title, todo in OUTSIDE
    ]
    return HEAD + json.dumps({"groups": [{"name": "flywheel", "rules": written}]}, indent=2) + "\n"


def _of_condition(one: Condition) -> dict[str, Any]:
    name = "Flywheel" + "".join(word.capitalize() for word in one.name.split("_"))
    expr = f'max(flywheel_condition{{condition="{one.name}"}}) > 0'
    todo = f"{one.todo} See {one.docs}."
    return _rule(name, expr, one.wait_s, one.severity.value, one.title, todo)


def _rule(
    name: str, expr: str, wait_s: float, severity: str, title: str, todo: str
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": f"{wait_s:g}s",
        "labels": {"severity": severity},
        "annotations": {"summary": title, "description": todo},
    }


# (title, unit of Grafana, [(query, legend)])
PANELS = (
    ("What is wrong", "short", [("max by (condition) (flywheel_condition) > 0", "{{condition}}")]),
    (
        "Requests",
        "reqps",
        [("sum by (door) (rate(flywheel_requests_total[$__rate_interval]))", "{{door}}")],
    ),
    (
        "Answers that are errors",
        "reqps",
        [
            (
                'sum by (door, code) (rate(flywheel_requests_total{code=~"[45].."}'
                "[$__rate_interval]))",
                "{{door}} {{code}}",
            )
        ],
    ),
    (
        "Latency, p95",
        "s",
        [
            (
                "histogram_quantile(0.95, sum by (le, door) (rate(flywheel_request_seconds_bucket"
                "[$__rate_interval])))",
                "{{door}}",
            )
        ],
    ),
    (
        "Runs received",
        "ops",
        [
            (
                "sum by (outcome) (rate(flywheel_rows_total[$__rate_interval]))",
                "{{outcome}}",
            )
        ],
    ),
    ("Waiting to be processed", "s", [("max by (what) (flywheel_lag_seconds)", "{{what}}")]),
    ("Messages in queues", "short", [("max by (queue) (flywheel_queue_length)", "{{queue}}")]),
    ("Oldest job", "s", [("max by (queue) (flywheel_queue_oldest_seconds)", "{{queue}}")]),
    (
        "Jobs",
        "short",
        [
            (
                'max by (kind, state) (flywheel_jobs{state=~"queued|running"})',
                "{{kind}} {{state}}",
            )
        ],
    ),
    ("Workers", "short", [("max by (queue) (flywheel_workers)", "{{queue}}")]),
    (
        "Memory of workers",
        "bytes",
        [("max by (worker) (flywheel_worker_memory_bytes)", "{{worker}}")],
    ),
    ("Clocks", "s", [("max by (host) (flywheel_clock_skew_seconds)", "{{host}}")]),
    (
        "Database connections",
        "short",
        [
            ("max by (state) (flywheel_database_connections)", "{{state}}"),
            ("max(flywheel_database_connections_max)", "most"),
        ],
    ),
    ("Database size", "bytes", [("max(flywheel_database_bytes)", "database")]),
    ("Partitions", "short", [("max by (table) (flywheel_partitions)", "{{table}}")]),
    (
        "Tables",
        "bytes",
        [("max by (tables) (flywheel_database_table_bytes)", "{{tables}}")],
    ),
    (
        "Disks",
        "bytes",
        [("max by (host, place, state) (flywheel_disk_bytes)", "{{host}} {{place}} {{state}}")],
    ),
    (
        "Endpoint: requests",
        "reqps",
        [
            (
                "sum by (channel, code) (rate(flywheel_endpoint_requests_total[$__rate_interval]))",
                "{{channel}} {{code}}",
            )
        ],
    ),
    (
        "Endpoint: seconds, p95",
        "s",
        [
            (
                "histogram_quantile(0.95, sum by (le, channel)"
                " (rate(flywheel_endpoint_seconds_bucket[$__rate_interval])))",
                "{{channel}}, whole",
            ),
            (
                "histogram_quantile(0.95, sum by (le, channel)"
                " (rate(flywheel_endpoint_first_seconds_bucket[$__rate_interval])))",
                "{{channel}}, beginning",
            ),
        ],
    ),
    (
        "Endpoint: tokens",
        "short",
        [
            (
                "sum by (channel, kind) (rate(flywheel_endpoint_tokens_total[$__rate_interval]))",
                "{{channel}} {{kind}}",
            )
        ],
    ),
    (
        "Endpoint: open requests",
        "short",
        [("sum by (channel) (flywheel_endpoint_open)", "{{channel}}")],
    ),
    (
        "Endpoint: recorded answers",
        "short",
        [
            (
                "sum by (channel, ended)"
                " (rate(flywheel_endpoint_recorded_total[$__rate_interval]))",
                "{{channel}} {{ended}}",
            )
        ],
    ),
    (
        "Endpoint: not stored yet",
        "bytes",
        [("max by (host) (flywheel_endpoint_waiting_bytes)", "{{host}}")],
    ),
    (
        "Model servers",
        "short",
        [
            (
                "max by (kind, health, production) (flywheel_servers)",
                "{{kind}} {{health}}, production: {{production}}",
            )
        ],
    ),
    ("Channels", "short", [("max by (served) (flywheel_channels)", "served: {{served}}")]),
    (
        "The judge today",
        "currencyUSD",
        [
            ("max(flywheel_judge_usd_today)", "spent"),
            ("max(flywheel_judge_budget_usd_today)", "budget"),
        ],
    ),
    (
        "Questions to the judge today",
        "short",
        [("max(flywheel_judge_questions_today)", "asked")],
    ),
    ("Cost of runs today", "currencyUSD", [("max(flywheel_runs_usd_today)", "USD")]),
    (
        "Managed servers",
        "short",
        [
            ("max by (phase) (flywheel_managed_servers)", "{{phase}}"),
            ("max(flywheel_managed_server_hours_today)", "hours today"),
        ],
    ),
    (
        "Webhooks of the last day",
        "short",
        [("max by (state) (flywheel_webhook_deliveries)", "{{state}}")],
    ),
    (
        "Webhooks",
        "short",
        [
            ("max by (state) (flywheel_webhooks)", "{{state}}"),
            ("max(flywheel_webhook_due)", "deliveries due"),
        ],
    ),
)
WIDTH, HEIGHT = 8, 7


def dashboard() -> str:
    panels = [
        {
            "id": number + 1,
            "title": title,
            "type": "timeseries",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {
                "h": HEIGHT,
                "w": WIDTH,
                "x": number % 3 * WIDTH,
                "y": number // 3 * HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + at), "expr": expr, "legendFormat": legend}
                for at, (expr, legend) in enumerate(queries)
            ],
        }
        for number, (title, unit, queries) in enumerate(PANELS)
    ]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    board = {
        "uid": "flywheel",
        "title": "Flywheel",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }
    return json.dumps(board, indent=2) + "\n"


def table() -> str:
    """The page of the documentation that names each metric."""
    counted = [
        (f"{one._name}{'_total' * isinstance(one, Counter)}", one._documentation, one._labelnames)
        for one in vars(counters).values()
        if isinstance(one, Counter | Gauge | Histogram)
    ]
    given = [(name, help, labels) for name, (help, labels) in GAUGES.items()]
    computed = [(one.name, one.help, one.labels) for one in measures.declared()]
    rows = [
        f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {help} |"
        for name, help, labels in sorted([*counted, *given, *computed])
    ]
    return "\n".join([TABLE_HEAD, *rows]) + "\n"


TABLE_HEAD = """# Metrics

What `/metrics` exports ([how it is read](operations.md#metrics)). A histogram (`…_seconds` of
requests) has `_bucket`, `_sum` and `_count`. `manage.py monitoring_files` writes this page.

| metric | labels | what it is |
|---|---|---|"""
FILES = {RULES: rules, DASHBOARD: dashboard, TABLE: table}
