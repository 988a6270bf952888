"""Triage: p95 of the actions and pages, with many failures, or with many trajectories.

`python -m bench.triage [--failures 2000] [--actions 100]` makes a project of that many failed runs
(rows only: the content of a run is copied). Run it on a database of its own (FLYWHEEL_DATA_DIR).

`python -m bench.triage --trajectories 1000000 [--folder var/bench/explore]` works on the database
that bench.explore leaves (no server may run on it), loads what is missing, classifies its largest
project by the rules and groups the failures, each where that was not done yet; then it asks. Writes
var/bench/triage.json.

Views are asked in this process, through the whole middleware. Prints JSON; the goal is 100 ms for
actions.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.peers import HOME, machine

GOAL_MS, CHUNK = 100, 5_000
PAGES = 20  # times that a page is asked for
SLUG = "workplace-assistant"


def seed(project: Any, count: int) -> None:
    """`count` trajectories with an open failure each: rows with COPY's speed, not through the
    rules.
    """
    from apps.failures.actions.modes import ensure_modes
    from apps.failures.models import Failure
    from apps.trajectories import contents, ids
    from apps.trajectories.actions.store import ingest
    from apps.trajectories.models import Content, Trajectory

    modes, now = list(ensure_modes(project).values()), datetime.now(UTC)
    made = ingest(
        project=project,
        rows=[{"id": "first", "messages": conversation(), "started_at": now.isoformat()}],
    )
    assert not made.rejected, made.rejected
    first = project.trajectories.get()
    data = Content.objects.get(trajectory_id=first.pk, first=0).data
    assert contents.unpack(data)["messages"]
    for start in range(0, count, CHUNK):
        keys = [
            ids.uuid7(now - timedelta(seconds=number))
            for number in range(start, min(count, start + CHUNK))
        ]
        same = {
            "content_digest": "x",
            "message_count": 8,
            "preview": first.preview,
            "agent_version": "1",
        }
        Trajectory.objects.bulk_create(
            Trajectory(
                pk=key, project=project, external_id=str(key), started_at=ids.time_of(key), **same
            )
            for key in keys
        )
        Content.objects.bulk_create(Content(trajectory_id=key, first=0, data=data) for key in keys)
        evidence = [
            {
                "rule": "looped",
                "message_index": 3,
                "text": "t",
                "quote": "Done.",
                "confidence": "likely",
            }
        ]
        Failure.objects.bulk_create(
            Failure(
                project=project,
                trajectory_id=key,
                mode=modes[n % len(modes)],
                blamed_message=3,
                evidence=evidence,
            )
            for n, key in enumerate(keys)
        )


def conversation() -> list[dict]:
    words = "Please look at the ticket and tell me what is left to do there. " * 6
    return [{"role": ("user", "assistant")[n % 2], "content": f"{n}: {words}"} for n in range(8)]


def measure(act: Callable[[], Any], count: int) -> dict[str, float]:
    seen = []
    for _ in range(count):
        at = time.perf_counter()
        answer = act()
        seen.append((time.perf_counter() - at) * 1000)
        assert answer.status_code == 200, answer.status_code
    seen.sort()
    return {
        "p50_ms": round(seen[len(seen) // 2], 1),
        "p95_ms": round(seen[int(len(seen) * 0.95)], 1),
    }


def run(failures: int, actions: int) -> dict[str, Any]:
    """The actions on a new project of so many failures."""
    from django.contrib.auth import get_user_model

    from apps.core.actions import create_project

    name = f"bench-{time.time_ns()}"
    user = get_user_model().objects.create_user(name)
    project = create_project(slug=name, name=name, by=user)
    seed(project, failures)
    tidy()
    return {"failures": failures} | acted(project, user, actions)


def tidy() -> None:
    """As autovacuum does some minutes after a load."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def client_of(user: Any, htmx: bool) -> Any:
    from django.test import Client

    client = Client(headers={"host": "localhost"} | ({"HX-Request": "true"} if htmx else {}))
    client.force_login(user)
    return client


def acted(project: Any, user: Any, actions: int) -> dict[str, Any]:
    """p50 and p95 of what people do in triage, and whether the goal is met."""
    from django.urls import reverse

    name, client = project.slug, client_of(user, htmx=True)
    at = [client.get(reverse("failures:triage", args=[name]), follow=True)["X-Case"]]

    def ask(action: str, body: dict[str, str] | None = None, query: str = "") -> Any:
        url = (
            reverse(f"failures:{action}", args=[name] if action == "undo" else [name, at[0]])
            + query
        )
        answer = client.get(url) if body is None else client.post(url, body)
        at[0] = at[0] if query == "?ahead=1" or action == "similar" else answer["X-Case"]
        return answer

    tried = {
        "confirm and next": lambda: ask("decide", {"confirm": "1"}),
        "another mode and next": lambda: ask("decide", {"mode": "bad_planning"}),
        "next": lambda: ask("step"),
        "similar": lambda: ask("similar"),
        "held ready": lambda: ask("step", query="?ahead=1"),
        "undo": lambda: ask("undo", {}),
    }
    found = {what: measure(act, actions) for what, act in tried.items()}
    return {
        "goal_ms": GOAL_MS,
        "met": max(row["p95_ms"] for row in found.values()) < GOAL_MS,
    } | found


# With many trajectories


def many(trajectories: int, actions: int) -> dict[str, Any]:
    """Classification, clusters, actions and pages on a database with so many trajectories."""
    from django.contrib.auth import get_user_model

    from apps.trajectories.models import Trajectory

    user = get_user_model().objects.get(username="admin")
    project = filled(trajectories, user)
    found: dict[str, Any] = {"machine": machine(), "trajectories": Trajectory.objects.count()}
    found |= classified(project) | clustered(project)
    tidy()
    found["of_the_project"] = {
        "trajectories": project.trajectories.count(),
        "failures": project.failures.count(),
    }
    found["actions"] = acted(project, user, actions)
    found["pages"] = {
        name: measure(act, PAGES)
        for name, act in pages(project, client_of(user, htmx=False)).items()
    }
    return found


def filled(trajectories: int, user: Any) -> Any:
    """The largest project, after what is missing was loaded and digested."""
    from apps.core.actions import create_project
    from apps.core.models import Project
    from apps.trajectories import digest
    from apps.trajectories.models import Arrival, Trajectory
    from bench.bodies import Text
    from bench.explore import LONG_RUN, load, prepare

    if not Project.objects.filter(slug=SLUG).exists():
        create_project(slug=SLUG, name="Workplace assistant", by=user)
    projects, _ = prepare(SLUG)
    have = Trajectory.objects.exclude(external_id=LONG_RUN).count()
    if have < trajectories:
        load(projects, have, trajectories, Text(1))
    while Arrival.objects.exists():
        digest.run()
    return projects[0]


def classified(project: Any) -> dict[str, Any]:
    from apps.failures.actions.diagnose import classify_project

    if project.failures.exists():
        return {}
    at = time.perf_counter()
    counts = classify_project(project=project)
    seconds = time.perf_counter() - at
    return {
        "classified": (
            counts | {"seconds": round(seconds, 1), "per_second": round(counts["looked"] / seconds)}
        )
    }


def clustered(project: Any) -> dict[str, Any]:
    """Groups all standing failures; seconds, and the most memory that this process ever had."""
    from apps.failures.clusters import store

    if project.failure_clusters.exists():
        return {}
    at = time.perf_counter()
    counts = store.recluster(project) or {}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "clustered": (
            counts | {"seconds": round(time.perf_counter() - at, 1), "process_peak_mb": memory}
        )
    }


def pages(project: Any, client: Any) -> dict[str, Callable[[], Any]]:
    """What is looked at, the largest cluster included."""
    from django.urls import reverse

    def of(name: str, *given: Any, query: str = "") -> Callable[[], Any]:
        url = reverse(f"failures:{name}", args=[project.slug, *given]) + query
        return lambda: client.get(url)

    found = {
        "list": of("list"),
        "list, filtered": of("list", query="?mode=incomplete_execution&confidence=likely"),
        "charts 30 d": of("charts", query="?since=30d"),
        "charts, all time": of("charts", query="?since=all"),
        "clusters": of("clusters"),
        "measures": of("measures"),
        "case": of(
            "case", project.failures.order_by("-trajectory_id").values_list("pk", flat=True)[0]
        ),
    }
    largest = project.failure_clusters.order_by("-size").first()
    return found | ({"largest cluster": of("cluster", largest.pk)} if largest else {})


def on_folder(folder: Path) -> None:
    """Django on the database of this folder, with its tables and an admin."""
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {"FLYWHEEL_DATA_DIR": str(folder.resolve())}
    set_up()
    from django.contrib.auth import get_user_model

    if not get_user_model().objects.filter(username="admin").exists():
        get_user_model().objects.create_superuser("admin", password=None)


def set_up() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel import embedded

    embedded.ensure()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--failures", type=int, default=2_000)
    parser.add_argument("--actions", type=int, default=100)
    parser.add_argument(
        "--trajectories", type=int, help="work on bench.explore's database, with so many of them"
    )
    parser.add_argument("--folder", type=Path, default=HOME / "explore")
    given = parser.parse_args()
    if given.trajectories is None:
        set_up()
        print(json.dumps(run(given.failures, given.actions), indent=1))
        return
    on_folder(given.folder)
    report = many(given.trajectories, given.actions)
    (HOME / "triage.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
