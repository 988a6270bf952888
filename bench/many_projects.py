"""What a round of the schedule costs with many projects:
`python -m bench.many_projects [--projects 1000] [--folder F]`

Projects are made with some runs each, a judge that is on, a model of outcomes in use, retention and
three alerts; then each task of the schedule is called twice in this process. Counted, for the
second round, are its statements, the messages that it sends (which are not sent on), and the
processor time of this process and of its connection's.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.ingest_cpu import database_s
from bench.peers import HOME, stop_servers_on_sigterm

RUNS = 5
COPIED = (
    "trajectories_trajectory",
    "trajectories_step",
    "trajectories_hourlycount",
    "trajectories_metriccell",
    "trajectories_stepchange",
)
LEFT = {"id", "project_id", "stored_in"}
# The id of a run begins with its time, which the copy has, too.
NEW_ID = "(substr(old.id::text, 1, 24) || substr(md5(random()::text), 1, 12))::uuid"
IDS = {"trajectories_trajectory": NEW_ID}
ALERTS = (
    {"name": "Failures", "measure": "failure_rate", "line": 0.9},
    {"name": "Tools", "measure": "step_error_rate", "filters": "kind=tool", "line": 0.9},
    {"name": "Slow", "measure": "latency_p95", "filters": "outcome=success", "line": 9e9},
)


def make(projects: int) -> None:
    """So many projects, in which nothing is left to do: one that is sent some runs, and copies."""
    from django.contrib.auth import get_user_model

    from apps.core.actions import create_project
    from apps.core.models import Project
    from apps.trajectories import digest
    from apps.trajectories.actions.store import ingest

    admin, _ = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_superuser": True}
    )
    first = Project.objects.filter(slug="many-0").first()
    have = Project.objects.filter(slug__startswith="many-").count()
    if first is None:
        first = create_project(slug="many-0", name="Many 0", by=admin)
        have = 1
        ingest(project=first, rows=list(map(run, range(RUNS))))
        digest.run()
        _settle([first])
    made = Project.objects.bulk_create(
        Project(slug=f"many-{n}", name=f"Many {n}") for n in range(have, projects)
    )
    for table in COPIED:
        _copy(table, first.pk, [project.pk for project in made])
    _settle(made)


def run(number: int) -> dict[str, Any]:
    function = {"name": "search", "arguments": "{}"}
    call = {"id": "a", "type": "function", "function": function}
    return {
        "id": f"run-{number}",
        "started_at": datetime.now(UTC).isoformat(),
        "messages": [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "found"},
            {"role": "assistant", "content": "Answer"},
        ],
        "latency_ms": 1000.0 + number,
        "outcome": {"status": "failure" if number % 2 else "success"},
    }


def _copy(table: str, first: int, projects: list[int]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, table)
        names = ", ".join(column.name for column in columns if column.name not in LEFT)
        own = IDS.get(table)
        cursor.execute(
            f"INSERT INTO {table} (project_id, {names}{', id' * bool(own)}) SELECT copy,"
            f" {names}{f', {own}' * bool(own)} FROM {table} AS old, unnest(%s::bigint[]) AS copy"
            " WHERE project_id = %s",
            [projects, first],
        )


def _settle(projects: list[Any]) -> None:
    """What people set up, and that all is looked at."""
    from apps.failures.models import Classifier, OutcomeModel, Rubric
    from apps.trajectories.models import Alert, Retention

    for number, project in enumerate(projects):
        newest = project.trajectories.order_by("-pk").values_list("pk", flat=True).first()
        Classifier.objects.update_or_create(
            project=project, defaults={"prompts_of": newest, "replies_of": newest}
        )
        Rubric.objects.create(project=project, version=1, text="Good?", is_on=True)
        OutcomeModel.objects.create(project=project, number=1, is_better=True)
        Retention.objects.create(project=project, days=30 + number % 300)
    Alert.objects.bulk_create(
        Alert(project=project, condition="above", window_minutes=60, at_least=2, **given)
        for project in projects
        for given in ALERTS
    )


@contextmanager
def messages_kept() -> Iterator[list[str]]:
    """The names of the tasks of messages that would be sent."""
    sent: list[str] = []

    def keep(task: Any, *_: Any, **__: Any) -> None:
        sent.append(getattr(task, "name", str(task)))

    with (
        patch("celery.app.task.Task.apply_async", lambda self, *a, **k: keep(self)),
        patch("celery.app.base.Celery.send_task", lambda self, name, *a, **k: keep(name)),
    ):
        yield sent


class Counter:
    """Of statements; Django's own log of them ends at 9,000."""

    n = 0

    def __call__(self, execute: Any, *given: Any) -> Any:
        self.n += 1
        return execute(*given)


def rounds() -> dict[str, dict[str, Any]]:
    """By task: statements, messages, CPU ms of this process and of PostgreSQL's."""
    from django.conf import settings
    from django.db import connection

    from flywheel.celery import app

    app.loader.import_default_modules()
    found: dict[str, dict[str, Any]] = {}
    for _ in range(2):
        for task in sorted({entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}):
            ours, theirs = time.process_time(), database_s()
            counter = Counter()
            with messages_kept() as sent, connection.execute_wrapper(counter):
                app.tasks[task]()
            found[task] = {
                "statements": counter.n,
                "messages": len(sent),
                "ours_ms": round((time.process_time() - ours) * 1000, 1),
                "database_ms": round((database_s() - theirs) * 1000, 1),
            }
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    print("| task | statements | messages | CPU ms, ours | CPU ms, PostgreSQL |")
    for name, cost in sorted(found.items(), key=lambda pair: -pair[1]["ours_ms"]):
        print(f"| {name} | {' | '.join(map(str, cost.values()))} |")
    total = {key: sum(cost[key] for cost in found.values()) for key in next(iter(found.values()))}
    print(f"| all | {' | '.join(f'{value:,.0f}' for value in total.values())} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--projects", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=HOME / "projects")
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(chosen.folder),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
    }
    from flywheel import embedded

    embedded.ensure()
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    call_command("createcachetable", verbosity=0)
    make(chosen.projects)
    show(rounds())


if __name__ == "__main__":
    main()
