"""Triage: p95 of the actions, with many failures. `python -m bench.triage [--failures 2000] [--actions 100]`

Makes a project of that many failed runs (rows only: the content of a run is copied), and asks the views in this process,
through the whole middleware. Run it on a database of its own (FLYWHEEL_DATA_DIR). Prints JSON; the goal is 100 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

GOAL_MS, CHUNK = 100, 5_000


def seed(project: Any, count: int) -> None:
    """`count` trajectories with an open failure each: rows with COPY's speed, not through the rules."""
    from apps.failures.actions import ensure_modes
    from apps.failures.models import Failure
    from apps.trajectories import contents, ids
    from apps.trajectories.actions import ingest
    from apps.trajectories.models import Content, Trajectory

    modes, now = list(ensure_modes(project).values()), datetime.now(UTC)
    made = ingest(project=project, rows=[{"id": "first", "messages": conversation(), "started_at": now.isoformat()}])
    assert not made.rejected, made.rejected
    first = project.trajectories.get()
    data = Content.objects.get(trajectory_id=first.pk, first=0).data
    assert contents.unpack(data)["messages"]
    for start in range(0, count, CHUNK):
        keys = [ids.uuid7(now - timedelta(seconds=number)) for number in range(start, min(count, start + CHUNK))]
        same = {"content_digest": "x", "message_count": 8, "preview": first.preview, "agent_version": "1"}
        Trajectory.objects.bulk_create(
            Trajectory(pk=key, project=project, external_id=str(key), started_at=ids.time_of(key), **same)
            for key in keys
        )
        Content.objects.bulk_create(Content(trajectory_id=key, first=0, data=data) for key in keys)
        evidence = [{"rule": "looped", "message_index": 3, "text": "t", "quote": "Done.", "confidence": "likely"}]
        Failure.objects.bulk_create(
            Failure(project=project, trajectory_id=key, mode=modes[n % len(modes)], blamed_message=3, evidence=evidence)
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
    return {"p50_ms": round(seen[len(seen) // 2], 1), "p95_ms": round(seen[int(len(seen) * 0.95)], 1)}


def run(failures: int, actions: int) -> dict[str, Any]:
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.urls import reverse

    from apps.core.actions import create_project

    name = f"bench-{time.time_ns()}"
    user = get_user_model().objects.create_user(name)
    project = create_project(slug=name, name=name, by=user)
    seed(project, failures)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE failures_failure, trajectories_trajectory")
    client = Client(headers={"HX-Request": "true", "host": "localhost"})
    client.force_login(user)
    at = [client.get(reverse("failures:triage", args=[name]), follow=True)["X-Case"]]

    def ask(action: str, body: dict[str, str] | None = None, query: str = "") -> Any:
        url = reverse(f"failures:{action}", args=[name] if action == "undo" else [name, at[0]]) + query
        answer = client.get(url) if body is None else client.post(url, body)
        at[0] = at[0] if query == "?ahead=1" else answer["X-Case"]
        return answer

    tried = {
        "confirm and next": lambda: ask("decide", {"confirm": "1"}),
        "another mode and next": lambda: ask("decide", {"mode": "bad_planning"}),
        "next": lambda: ask("step"),
        "held ready": lambda: ask("step", query="?ahead=1"),
        "undo": lambda: ask("undo", {}),
    }
    found = {what: measure(act, actions) for what, act in tried.items()}
    return {
        "failures": failures,
        "goal_ms": GOAL_MS,
        "met": max(row["p95_ms"] for row in found.values()) < GOAL_MS,
    } | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=2_000)
    parser.add_argument("--actions", type=int, default=100)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from flywheel import embedded

    embedded.ensure()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    print(json.dumps(run(given.failures, given.actions), indent=1))


if __name__ == "__main__":
    main()
