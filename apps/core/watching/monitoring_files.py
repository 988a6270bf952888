"""The files with which Prometheus and Grafana watch an installation: alert rules from the declared
conditions, and a dashboard. `manage.py monitoring_files` writes them.
"""

from __future__ import annotations

import json
from typing import Any

from apps.core.watching.conditions import Condition, declared

RULES, DASHBOARD = "docker/prometheus/alerts.yaml", "docker/grafana/flywheel.json"
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
    ("Disk", "bytes", [("max by (host, state) (flywheel_disk_bytes)", "{{host}} {{state}}")]),
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
            ("max(flywheel_judge_usd_today)", "USD"),
            ("max(flywheel_judge_questions_today)", "asked"),
        ],
    ),
    (
        "Webhooks of the last day",
        "short",
        [("max by (state) (flywheel_webhook_deliveries)", "{{state}}")],
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


FILES = {RULES: rules, DASHBOARD: dashboard}
