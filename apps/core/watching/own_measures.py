"""Numbers of what every installation has: queues, jobs, workers, the database."""

from __future__ import annotations

from collections import Counter

from django.db import connection
from django.db.models import Count, Min
from django.utils import timezone

from apps.core import lags
from apps.core.kinds import job_models, kind_of
from apps.core.models import JobState, Project, Worker
from apps.core.watching.measures import DEAR_S, Values, measured
from flywheel import alive, processes


@measured("flywheel_queue_length", "Messages that wait in the broker", ["queue"])
def queue_lengths() -> Values:
    return {(queue,): alive.client().llen(queue) for queue in processes.WORKERS}


@measured("flywheel_queue_oldest_seconds", "Age of the oldest job that waits", ["queue"])
def oldest_jobs() -> Values:
    ages = dict.fromkeys(processes.WORKERS, 0.0)
    for model in job_models():
        queued = model.objects.filter(state=JobState.QUEUED)
        if oldest := queued.aggregate(oldest=Min("created_at"))["oldest"]:
            queue = kind_of(model()).queue
            age = (timezone.now() - oldest).total_seconds()
            ages[queue] = max(ages.get(queue, 0.0), age)
    return {(queue,): round(age, 1) for queue, age in ages.items()}


@measured("flywheel_jobs", "Jobs by kind and state", ["kind", "state"], every_s=30)
def jobs() -> Values:
    return {
        (model._meta.model_name, state): count
        for model in job_models()
        for state, count in model.objects.order_by()
        .values_list("state")
        .annotate(count=Count("pk"))
    }


@measured("flywheel_workers", "Workers that answer", ["queue"])
def workers() -> Values:
    answering = Worker.objects.exclude(pk__in=Worker.objects.silent().values("pk"))
    found = Counter(answering.values_list("queue", flat=True))
    return {(queue,): found[queue] for queue in processes.WORKERS}


@measured("flywheel_worker_memory_bytes", "Memory of a worker's process", ["worker"])
def worker_memory() -> Values:
    rows = Worker.objects.values_list("name", "memory_mb")
    return {(name,): megabytes * 2**20 for name, megabytes in rows}


@measured("flywheel_clock_skew_seconds", "A machine's clock minus the database's", ["host"])
def skews() -> Values:
    return {(host,): skew for host, skew in Worker.objects.values_list("host", "skew_s")}


@measured("flywheel_lag_seconds", "How long the oldest waits that has arrived", ["what"])
def lag() -> Values:
    return {(name,): seconds for name, seconds in lags.seconds().items()}


@measured("flywheel_database_connections", "Connections to the database server", ["state"])
def connections() -> Values:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(state, 'unknown'), count(*) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' GROUP BY 1"
        )
        return {(state,): count for state, count in cursor.fetchall()}


@measured("flywheel_database_connections_max", "Connections that it takes", every_s=DEAR_S)
def connections_max() -> Values:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('max_connections')::int")
        return {(): cursor.fetchone()[0]}


@measured("flywheel_database_bytes", "Size of the database", every_s=DEAR_S)
def database_bytes() -> Values:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return {(): cursor.fetchone()[0]}


@measured(
    "flywheel_database_table_bytes",
    "Size of tables with their indexes: of an app, or of a table in partitions",
    ["tables"],
    every_s=DEAR_S,
)
def table_bytes() -> Values:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(parent.relname, split_part(t.relname, '_', 1)),"
            " sum(pg_total_relation_size(t.oid)) FROM pg_class t"
            " LEFT JOIN pg_inherits ON inhrelid = t.oid"
            " LEFT JOIN pg_class parent ON parent.oid = inhparent"
            " WHERE t.relkind = 'r' AND t.relnamespace = current_schema()::regnamespace GROUP BY 1"
        )
        return {(group,): float(size) for group, size in cursor.fetchall()}


@measured("flywheel_partitions", "Partitions of a table", ["table"], every_s=DEAR_S)
def partitions() -> Values:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhparent::regclass::text, count(*) FROM pg_inherits"
            " JOIN pg_class ON pg_class.oid = inhparent WHERE relkind = 'p' GROUP BY 1"
        )
        return {(table,): count for table, count in cursor.fetchall()}


@measured("flywheel_projects", "Projects by stage", ["stage"], every_s=DEAR_S)
def projects() -> Values:
    rows = Project.objects.order_by().values_list("stage").annotate(count=Count("pk"))
    return {(stage,): count for stage, count in rows}
