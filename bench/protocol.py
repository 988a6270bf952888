"""What a call of the environment protocol costs beside the tool's own work. `python -m bench.protocol [CALLS]`

In one process, through Django's whole stack below the web server (URL, key, database, answer), on the embedded
PostgreSQL with fsync on, in a folder of its own. The tool's own work is timed on the same episode and taken off.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = 500
WARM_UP = 30
ARGS = {"name": "a"}
TOOL = "company_directory_find_email_address"


def timed(what: Callable[[], Any], times: int) -> list[float]:
    """Milliseconds of each call, after a warm-up."""
    for _ in range(WARM_UP):
        what()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        what()
        found.append((time.perf_counter() - began) * 1000)
    return found


def told(name: str, values: list[float], off: float = 0.0) -> None:
    ordered = sorted(value - off for value in values)
    p95 = ordered[int(0.95 * len(ordered))]
    print(f"{name:28} median {statistics.median(ordered):6.2f} ms   p95 {p95:6.2f} ms   n {len(ordered)}")


def main(times: int) -> None:
    from django.test import Client

    from apps.core.actions import create_api_key, create_project
    from apps.core.models import Project
    from apps.environments.actions import save_environment, save_verifier
    from apps.environments.clients import load_for
    from apps.environments.protocol import scoring

    project = Project.objects.first() or create_project(slug="bench", name="Bench", by=_person())
    key = create_api_key(project=project, name="bench", by=_person())[1]
    verifier = save_verifier(project=project, name="own", spec={"kind": "tables"}, by=None)
    environment = save_environment(
        project=project, slug="office", builtin="workplace_assistant", harness={}, verifier=verifier, by=None
    )
    client, headers = Client(), {"HTTP_AUTHORIZATION": f"Bearer {key}"}
    row = {"responses_create_params": {"input": "Find a", "tools": []}, "ground_truth": []}
    task = {"id": "1", "messages": [{"role": "user", "content": "Find a"}], "tools": [], "expected": {"calls": []}}
    loaded = load_for(environment)

    def post(path: str, body: dict) -> None:
        answer = client.post(f"/env/{environment}/{path}", json.dumps(body), content_type="application/json", **headers)
        assert answer.status_code == 200, answer.content

    def state_of() -> dict | None:
        from apps.environments.models import EnvironmentSession

        return EnvironmentSession.objects.latest("pk").state

    told("seed_session", timed(lambda: post("seed_session", row), times))
    own = timed(lambda: loaded.open(task, None), times)
    told("  opening an episode", own)
    calls = []
    for _ in range(max(1, times // 6)):  # sessions of a usual length, so that the state does not grow without end
        post("seed_session", row)
        for _ in range(6):
            before = state_of()
            began = time.perf_counter()
            post(TOOL, ARGS)
            whole = time.perf_counter() - began
            began = time.perf_counter()
            scoring.call(loaded, task, before, TOOL, ARGS)
            calls.append((whole - (time.perf_counter() - began)) * 1000)
    told("tool call, overhead", calls)
    body = row | {"response": {"output": []}}
    whole_verify = timed(lambda: post("verify", body), times)
    verify = timed(lambda: scoring.score(loaded, task, []), times)
    told("verify, whole", whole_verify)
    told("verify, overhead", whole_verify, statistics.median(verify))


def _person() -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.get_or_create(username="bench")[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        os.environ["FLYWHEEL_DATA_DIR"] = folder
        os.environ["ALLOWED_HOSTS"] = "testserver"
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
        from flywheel import embedded

        embedded.ensure()
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
