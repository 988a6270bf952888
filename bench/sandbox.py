"""Python graders in the sandbox: grades per second over warm processes, and what a start costs.
Results: bench/README.md.

`python -m bench.sandbox [--grades 1000] [--processes 2] [--threads 4]`
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from workers.lib.sandbox import Pool

GRADERS = {
    "trivial": "def grade(sample, item): return 1.0",
    "json and regular expressions": (
        """
import json, re
def grade(sample, item):
    found = json.loads(sample["output_text"])
    words = set(re.findall(r"\\w+", found["answer"].lower()))
    wanted = set(re.findall(r"\\w+", item["answer"].lower()))
    return len(words & wanted) / len(words | wanted)
"""
    ),
    "difflib over 2 KB": (
        """
import difflib
def grade(sample, item): return difflib.SequenceMatcher(None, sample["output_text"], \
item["long"]).quick_ratio()
"""
    ),
}
ITEM = {"answer": "The parcel was sent on Monday.", "long": "a parcel, a letter, " * 100}
SAMPLE = {"output_text": '{"answer": "The parcel was sent on Tuesday."}'}


@contextmanager
def opened(size: int) -> Iterator[tuple[Pool, float]]:
    """A pool with all of its processes started, and the seconds that one start took."""
    pool = Pool(size)
    began = time.perf_counter()
    pool.guards()
    seconds = time.perf_counter() - began
    with ThreadPoolExecutor(size) as threads:
        list(threads.map(lambda _: pool.grade(GRADERS["trivial"], SAMPLE, ITEM), range(4 * size)))
    try:
        yield pool, seconds
    finally:
        pool.close()


def measure(pool: Pool, source: str, grades: int, threads: int) -> tuple[float, list[float]]:
    """Grades per second, and each one's seconds from call to value."""

    def one(_: int) -> float:
        began = time.perf_counter()
        pool.grade(source, SAMPLE, ITEM)
        return time.perf_counter() - began

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as workers:
        each = list(workers.map(one, range(grades)))
    return grades / (time.perf_counter() - began), each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grades", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) > 2:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with opened(options.processes) as (pool, start):
        guards = pool.guards()
        print("in force:", ", ".join(name for name, held in guards.items() if held))
        print("not:", ", ".join(name for name, held in guards.items() if not held) or "—")
        print(f"start of one process: {start * 1000:.0f} ms")
        for name, source in GRADERS.items():
            rate, each = measure(pool, source, options.grades, options.threads)
            quantiles = statistics.quantiles(each, n=100)
            print(
                f"{name}: {rate:.0f} grades/s, median {quantiles[49] * 1000:.1f} ms, 99%"
                f" {quantiles[98] * 1000:.1f} ms"
            )


if __name__ == "__main__":
    main()
