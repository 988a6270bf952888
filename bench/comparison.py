"""A comparison of two evaluations of 10,000 tasks × 8 samples: measures, components, failure modes,
groups, the first page of tasks.

`python -m bench.comparison [--times 10]` works on the database of `bench.eval_page`, which it makes
where it is not there yet. Each part is computed afresh each time, nothing is kept between two.
Prints JSON and writes var/bench/comparison.json. Goal: under 1 s together, as the product runs it.
The CPU seconds are of rounds of their own, in which PostgreSQL has one process: what is to be done
altogether.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.eval_page import made
from bench.peers import HOME, machine
from bench.triage import on_folder, tidy

GOAL_S = 1.0


def cpu_seconds() -> float:
    """Of this process and of its database backend, which is on the same machine."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        fields = Path(f"/proc/{cursor.fetchone()[0]}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parts_of(runs: list[Any]) -> dict[str, tuple[float, float]]:
    """(seconds, CPU seconds) of each part, from nothing."""
    from apps.evals.comparison import report
    from apps.evals.comparison.tasks import Filters, TaskTable

    found: dict[str, tuple[float, float]] = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        at, cpu = time.perf_counter(), cpu_seconds()
        result = act()
        found[name] = time.perf_counter() - at, cpu_seconds() - cpu
        return result

    compared = timed("read and align", lambda: report.compare(runs, details=True))
    timed("measures and intervals", lambda: compared.lines)
    timed("components", lambda: compared.components)
    timed("failure modes", lambda: compared.modes)
    timed("groups", lambda: compared.kinds)
    timed(
        "a page of tasks",
        lambda: TaskTable(compared.tables, Filters(change="regressed", sort="drop")).page(50),
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    on_folder(HOME / "eval_page")
    from django.contrib.auth import get_user_model
    from django.db import connection

    runs = made(10_000, 8, get_user_model().objects.get(username="admin"))
    tidy()
    found: dict[str, Any] = {"machine": machine(), "samples": [run.samples.count() for run in runs]}
    for at, unit in enumerate(("wall", "cpu")):
        if unit == "cpu":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SET max_parallel_workers_per_gather = 0"
                )  # their CPU would be seen nowhere
        rounds = [parts_of(runs) for _ in range(given.times)]
        totals = [sum(part[at] for part in one.values()) for one in rounds]
        found[f"{unit}_s"] = {"best": round(min(totals), 3), "median": round(median(totals), 3)}
        found[f"{unit}_ms"] = {
            name: round(1000 * median(one[name][at] for one in rounds)) for name in rounds[0]
        }
    found |= {"goal_s": GOAL_S, "met": found["wall_s"]["median"] < GOAL_S}
    (HOME / "comparison.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
