"""Where the CPU time of receiving goes, by part, in one process and its database connection:
`python -m bench.ingest --parts cpu`, or `python -m bench.ingest_cpu [--profile tottime]`

Each part is called as its process calls it (the WSGI application, the tasks' steps), so nothing
waits and other work on the machine changes little: what is counted is the time that the kernel
charged to this process and to PostgreSQL's process of its connection. HTTP parsing by granian, the
client, and PostgreSQL's background processes are not in it.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import os
import pstats
import secrets
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.bodies import TRACES, Body, Rows, otlp_bodies
from bench.peers import HOME, wait_released

FOLDER = HOME / "runs" / "ingest-cpu"
ROW_BYTES, DISTINCT = 4000, 500
BATCH_ROWS, BATCHES, SINGLES, BODIES = 100, 20, 300, 100
LINES = 40  # of a profile
WARM_UP = 2  # rounds that are not counted
Spent = tuple[float, float]


class Meter:
    """CPU seconds of this process and of its database process, by part and round."""

    def __init__(self, is_profiled: bool = False) -> None:
        self.rounds: dict[str, list[Spent]] = {}
        self.is_profiled, self.profiles = is_profiled, defaultdict(cProfile.Profile)

    @contextmanager
    def part(self, name: str, units: int) -> Iterator[None]:
        ours, theirs = time.process_time(), database_s()
        with self.profiles[name] if self.is_profiled else nullcontext():
            yield
        spent = time.process_time() - ours, database_s() - theirs
        self.rounds.setdefault(name, []).append((spent[0] / units, spent[1] / units))

    def summary(self) -> dict[str, dict[str, float]]:
        """The median of the rounds after the warm-up, µs of a unit."""
        counted = {name: rounds[WARM_UP:] or rounds for name, rounds in self.rounds.items()}
        return {
            name: {
                side: round(statistics.median(spent[at] for spent in rounds) * 1e6, 1)
                for at, side in enumerate(("ours", "database"))
            }
            for name, rounds in counted.items()
        }

    def print_profiles(self, order: str) -> None:
        for name, profile in self.profiles.items():
            print(f"\n{name}")
            pstats.Stats(profile).sort_stats(order).print_stats(LINES)


def database_s() -> float:
    """CPU seconds of the database process of this connection, to the nanosecond."""
    from django.db import connection

    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def installation(keep: bool) -> Iterator[str]:
    """In this process: a fresh one, or the one that was kept. Its API key."""
    if not keep:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "bench_key"
    key = kept.read_text() if kept.exists() else "fw_" + secrets.token_hex(20)
    kept.write_text(key)
    os.environ |= {"FLYWHEEL_DATA_DIR": str(FOLDER), "FLYWHEEL_API_KEY": key}
    os.environ |= {"DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    from flywheel import embedded

    embedded.ensure()
    import django

    django.setup()
    from django.core.management import call_command

    call_command("prepare", stdout=io.StringIO())
    try:
        yield key
    finally:
        from django.db import connections

        connections.close_all()
        embedded.stop_unused()
        wait_released(FOLDER)
        if not keep:
            shutil.rmtree(FOLDER, ignore_errors=True)


class Client:
    """Calls the application as granian does."""

    def __init__(self, key: str) -> None:
        from flywheel.wsgi import application

        self.application, self.key = application, key

    def post(self, path: str, kind: str, body: Body) -> None:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "SCRIPT_NAME": "",
            "QUERY_STRING": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "localhost",
            "HTTP_AUTHORIZATION": f"Bearer {self.key}",
            "CONTENT_TYPE": kind,
            "CONTENT_LENGTH": str(len(body.data)),
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body.data),
            "wsgi.errors": io.StringIO(),
        }
        status: list[str] = []
        answer = self.application(environ, lambda line, headers: status.append(line))
        text = b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        if status[0][0] != "2":
            raise SystemExit(f"{path}: {status[0]} {text[:300]!r}")


def measure(rounds: int, is_profiled: bool, keep: bool) -> Meter:
    meter = Meter(is_profiled)
    with installation(keep) as key:
        client = Client(key)
        parts: dict[str, Callable[[], int]] = background()
        rows, path = (
            Rows(ROW_BYTES, DISTINCT, seed=time.time_ns() // 10**9 % 10**4),
            "/api/v1/trajectories/",
        )
        json, protobuf = "application/json", "application/x-protobuf"
        for _ in range(rounds):
            batches = [rows.array(BATCH_ROWS) for _ in range(BATCHES)]
            with meter.part("REST, 100 rows", BATCHES * BATCH_ROWS):
                for body in batches:
                    client.post(path + "batch/", json, body)
            drain(meter, parts, "of REST, 100 rows", BATCHES * BATCH_ROWS)
            ones = [rows.one() for _ in range(SINGLES)]
            with meter.part("REST, one row", SINGLES):
                for body in ones:
                    client.post(path, json, body)
            drain(meter, parts, "of REST, one row", SINGLES)
            bodies = otlp_bodies(BODIES, time.time_ns())
            with meter.part("OTLP, acknowledged", BODIES * TRACES):
                for body in bodies:
                    client.post("/v1/traces", protobuf, body)
            drain(meter, parts, "of OTLP", BODIES * TRACES)
    return meter


def background() -> dict[str, Callable[[], int]]:
    """What workers do after the acknowledgement, in their order; each until nothing is left."""
    from apps.core.models import Project
    from apps.failures import classify_job
    from apps.failures.classify import RULES_VERSION
    from apps.failures.models import Classifier
    from apps.trajectories import assembly, digest, traces

    project = Project.objects.get()
    Classifier.objects.get_or_create(project=project, defaults={"rules": RULES_VERSION})
    return {
        "sorted": traces.sort_some,
        "assembled": assembly.step,
        "digested": digest.step,
        "classified": lambda: classify_job.classify_new(project, for_s=60.0),
    }


def drain(meter: Meter, parts: dict[str, Callable[[], int]], of: str, units: int) -> None:
    for name, step in parts.items():
        if of.startswith("of REST") and name in ("sorted", "assembled"):
            continue
        with meter.part(f"{name}, {of}", units):
            while step():
                pass


def show(found: dict[str, dict[str, float]]) -> None:
    print("| CPU time of a row or trace, µs | ours | database | sum |\n|---|---|---|---|")
    for name, spent in found.items():
        ours, theirs = spent["ours"], spent["database"]
        print(f"| {name} | {ours:.0f} | {theirs:.0f} | {ours + theirs:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", choices=("tottime", "cumtime"), help="sorted by it")
    parser.add_argument("--keep", action="store_true", help="and use, the data of another time")
    chosen = parser.parse_args()
    meter = measure(chosen.rounds, bool(chosen.profile), chosen.keep)
    found = meter.summary()
    show(found)
    if chosen.profile:
        meter.print_profiles(chosen.profile)


if __name__ == "__main__":
    main()
