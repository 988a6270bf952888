"""What a call of the environment protocol costs. `python -m bench.protocol [SESSIONS]`

`manage.py up` on the embedded PostgreSQL (fsync on), one client on one connection, against the
built-in Workplace Assistant: sessions of one seeding, six tool calls and one verification. With
each session the same server's trivial view is asked once (it answers “nothing here” without a key
or the database), and the same work is done in this process without any protocol: an episode opened,
the tool called in the state that it had, the session scored. Overhead is the whole less these two.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.peers import HOME, BenchError, Flywheel, machine, stop_servers_on_sigterm

SESSIONS, WARM_UP = 150, 20
CALLS = 6
TOOL, ARGS = "company_directory_find_email_address", {"name": "a"}
ROW = {"responses_create_params": {"input": "Find a", "tools": []}, "ground_truth": []}
GOAL_MS = 5.0


@dataclass
class Times:
    """Milliseconds by name."""

    found: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.found[name].append((time.perf_counter() - began) * 1000)

    def at(self, name: str, percentile: float) -> float:
        return float(np.percentile(self.found[name], percentile))


@dataclass
class Caller:
    """One connection; keeps the session that the last seeding gave."""

    server: Flywheel
    base: str
    session: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)

    def ask(self, path: str, body: dict | None = None, expected: int = 200) -> None:
        """A POST, or a GET where there is no body. Raises BenchError where the status is
        another.
        """
        headers = self.server.headers | self.session | {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        self.connection.request("GET" if data is None else "POST", path, data, headers)
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status != expected:
            raise BenchError(f"{path} answered {answer.status}: {said[:300]!r}")
        token = answer.getheader("X-Flywheel-Session")
        if token:
            self.session = {"X-Flywheel-Session": token}


def make_environment() -> Any:
    from apps.core.models import ApiKey
    from apps.environments.actions import save_environment, save_verifier

    project = ApiKey.objects.get().project
    verifier = save_verifier(project=project, name="tables", spec={"kind": "tables"}, by=None)
    return save_environment(
        project=project,
        slug="office",
        builtin="workplace_assistant",
        harness={},
        verifier=verifier,
        by=None,
    )


def own_work(environment: Any) -> Callable[[Times], None]:
    """A session's work without the protocol."""
    from apps.environments.protocol import scoring
    from apps.environments.protocol.rows import task_of
    from workers.lib.environments import load

    loaded, task = load(environment.as_spec()), task_of(ROW)

    def run(times: Times) -> None:
        with times.of("own seed"):
            loaded.open(task, None)
        state = None
        for _ in range(CALLS):
            with times.of("own tool"):
                state = scoring.call(loaded, task, state, TOOL, ARGS).state
        with times.of("own verify"):
            scoring.score(loaded, task, [], state)

    return run


def session(caller: Caller, times: Times) -> None:
    with times.of("trivial"):
        caller.ask("/env/nothing", expected=404)
    with times.of("seed"):
        caller.ask(f"{caller.base}/seed_session", ROW)
    for _ in range(CALLS):
        with times.of("tool"):
            caller.ask(f"{caller.base}/{TOOL}", ARGS)
    with times.of("verify"):
        caller.ask(f"{caller.base}/verify", ROW | {"response": {"output": []}})


def show(times: Times) -> None:
    print("| call | p10 / p50 / p95 ms | own work p50 ms | overhead p50 ms |")
    print("|---|---:|---:|---:|")
    print(f"| trivial view | {spread(times, 'trivial')} | | |")
    for name in ("seed", "tool", "verify"):
        own = times.at(f"own {name}", 50)
        overhead = times.at(name, 50) - times.at("trivial", 50) - own
        verdict = "" if overhead < GOAL_MS else " (over the goal)"
        print(f"| {name} | {spread(times, name)} | {own:.2f} | {overhead:.2f}{verdict} |")


def spread(times: Times, name: str) -> str:
    return " / ".join(f"{times.at(name, percentile):.2f}" for percentile in (10, 50, 95))


def measure(server: Flywheel, sessions: int) -> Times:
    environment = make_environment()
    caller, work = Caller(server, f"/env/{environment}"), own_work(environment)
    for times, count in ((Times(), WARM_UP), (Times(), sessions)):
        for _ in range(count):
            session(caller, times)
            work(times)
    return times


def main(sessions: int) -> None:
    stop_servers_on_sigterm()
    folder = HOME / "protocol"
    server = Flywheel("postgresql", folder)
    try:
        server.start()
        for name in ("DATABASE_URL", "BROKER_URL"):
            os.environ.pop(name, None)
        os.environ |= {
            "FLYWHEEL_DATA_DIR": str(folder),
            "DJANGO_SETTINGS_MODULE": "flywheel.settings",
        }
        import django

        django.setup()
        print(json.dumps(machine()))
        show(measure(server, sessions))
    finally:
        server.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS)
