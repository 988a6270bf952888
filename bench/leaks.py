"""What of a hold-out is caught on its way into training, and what is refused that is another task.

`python -m bench.leaks [--seed 20261] [--held 300]` prints the table of routes and the false
refusals; `--speed [--candidates 1000000] [--hold-out 10000]` searches that many invented texts.
Writes var/bench/leaks.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from apps.evals.formats.bfcl import read as read_bfcl
from apps.evals.formats.rows import TaskRow
from apps.evals.near_duplicates.search import Held, HeldOut, Row
from apps.evals.near_duplicates.text import words
from bench.leak_routes import (
    CALLS,
    MARKUP,
    TYPOS,
    VERBATIM,
    Route,
    chat,
    in_kind,
    in_words,
    paraphrase,
)
from bench.leak_tasks import FAMILIES, Invented, World

DATA = Path("../shared/data")
SEED = 20261
MANY = (
    "meeting",
    "ticket",
    "email",
    "transfer",
    "product",
    "flight",
    "translation",
    "salad",
    "boilerplate",
)  # with room for a million
Rate = tuple[int, int]


def leaked(index: HeldOut, world: World, held: list[Invented], route: Route) -> list[Invented]:
    rows = [(at, Row.of(route(world, task))) for at, task in enumerate(held)]
    caught = {match.key for match in index.search(rows)}
    return [task for at, task in enumerate(held) if at not in caught]


def refused(index: HeldOut, rows: Iterable[tuple[str, dict]]) -> list:
    return list(index.search((key, Row.of(row)) for key, row in rows))


def routes(world: World, held: list[Invented]) -> Iterator[tuple[str, str, Rate]]:
    """(kind, route, (leaked, tried)); the tasks held out expect calls."""
    index = HeldOut([task.held() for task in held])
    more = {"words turned round, fillers": paraphrase}
    for kind, some in (
        ("verbatim", VERBATIM),
        ("markup", MARKUP),
        ("typos", TYPOS),
        ("calls", CALLS),
        ("more", more),
    ):
        for name, route in some.items():
            yield kind, name, (len(leaked(index, world, held, route)), len(held))


def distinct(seed: int, count: int) -> Iterator[tuple[str, Rate]]:
    """(family, (refused, tried)) of other tasks of the same templates, answered in three ways."""
    for family in FAMILIES:
        world = World(seed)
        some = world.tasks(2 * count, [family])
        held, rest = some[::2], some[1::2]
        for name, calls, answer in (("calls", True, in_kind), ("words only", False, in_words)):
            index = HeldOut([task.held(calls) for task in held])
            rows = ((task.request, chat(world, task.request, answer(task))) for task in rest)
            yield f"{family}, {name}", (len(refused(index, rows)), len(rest))


def real(data: Path = DATA) -> Iterator[tuple[str, Rate]]:
    """(data set, (refused, tried)): every second task held out, the others as training rows."""
    for name in ("simple_python", "multiple", "parallel"):
        files = [data / "bfcl" / f"{part}{name}.json" for part in ("BFCL_v4_", "possible_answer_")]
        if all(path.exists() for path in files):
            lines = [path.read_text().splitlines() for path in files]
            tasks = [row for row in read_bfcl(*lines) if isinstance(row, TaskRow)]
            rows = [{"messages": row.messages, "expected": row.expected} for row in tasks]
            yield f"BFCL {name}", halves(rows)
    for name, question in (
        ("gsm8k/train-1500.jsonl", "question"),
        ("svamp/svamp.jsonl", "question"),
    ):
        if (path := data / name).exists():
            found = [json.loads(line) for line in path.read_text().splitlines()]
            yield name.partition("/")[0], halves([as_task(one, question) for one in found])


def as_task(row: dict, question: str) -> dict:
    asked = " ".join(
        str(row[name]) for name in ("Body", "body", question, "Question") if name in row
    )
    return {
        "messages": [{"role": "user", "content": asked}],
        "expected": {"answer": str(row.get("answer", row.get("Answer")))},
    }


def halves(rows: list[dict]) -> Rate:
    """Rows that ask the very same (BFCL has some twice) are left out."""
    held = rows[::2]
    said = {asked(row) for row in held}
    rest = [row for row in rows[1::2] if asked(row) not in said]
    index = HeldOut([Held(row["messages"], row["expected"]) for row in held])
    return len(refused(index, ((str(at), row) for at, row in enumerate(rest)))), len(rest)


def run_twice(data: Path = DATA) -> Iterator[tuple[str, Rate]]:
    """(what, (missed, pairs)): τ-bench's airline tasks were run twice, each time with another
    conversation.
    """
    path = data / "tau_bench" / "gpt-4o-airline-trials-0-1.json"
    runs: dict[int, list[dict]] = {}
    for run in json.loads(path.read_text()) if path.exists() else ():
        calls = [
            {"tool": one["name"], "args": one["kwargs"]} for one in run["info"]["task"]["actions"]
        ]
        request = next(message for message in run["traj"] if message["role"] == "user")
        runs.setdefault(run["task_id"], []).append(
            {"messages": [request], "expected": {"calls": calls}}
        )
    pairs = [pair for pair in runs.values() if len(pair) == 2 and pair[0]["expected"]["calls"]]
    missed = sum(not refused(HeldOut([Held(**one)]), [("", other)]) for one, other in pairs)
    if pairs:
        yield "τ-bench, the same task run twice", (missed, len(pairs))


def asked(row: dict) -> tuple[str, ...]:
    return tuple(words(row["messages"][-1]["content"]))


def speed(seed: int, candidates: int, hold_out: int) -> dict:
    world = World(seed)
    held = world.tasks(hold_out, MANY)
    began = time.process_time()
    index = HeldOut([task.held() for task in held])
    built = time.process_time() - began
    planted = list(VERBATIM.values())

    def rows() -> Iterator[tuple[int, Row]]:
        for at in range(candidates):
            if at % 1000 == 0:
                task = world.rng.choice(held)
                yield at, Row.of(planted[at // 1000 % len(planted)](world, task))
            else:
                task = world.task(MANY)
                yield at, Row.of(chat(world, task.request, in_kind(task)))

    began = time.process_time()
    found = [match.key for match in index.search(rows())]
    spent = time.process_time() - began
    began = time.process_time()
    for _ in range(min(candidates, 20_000)):
        world.task(MANY)
    inventing = (time.process_time() - began) / min(candidates, 20_000) * candidates
    return {
        "candidates": candidates,
        "held out": hold_out,
        "CPU s, index": round(built, 1),
        "CPU s, search": round(spent - inventing, 1),
        "CPU s, inventing texts": round(inventing, 1),
        "planted": -(-candidates // 1000),
        "planted found": sum(key % 1000 == 0 for key in found),
        "others found": sum(key % 1000 != 0 for key in found),
        "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def shown(rows: Iterable[tuple]) -> list:
    made = []
    for *names, (bad, of) in rows:
        made.append((*names, bad, of))
        print(" | ".join((*names, f"{bad} of {of}", f"{bad / max(of, 1):.1%}")), flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--held", type=int, default=300)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--hold-out", type=int, default=10_000)
    given = parser.parse_args()
    if given.speed:
        report: dict = speed(given.seed, given.candidates, given.hold_out)
        print(json.dumps(report, indent=1))
    else:
        world = World(given.seed)
        print("leaked")
        report = {
            "seed": given.seed,
            "leaked": shown(routes(world, world.tasks(given.held))) + shown(run_twice()),
        }
        print("refused though distinct")
        report["refused"] = shown(distinct(given.seed, given.held)) + shown(real())
    path = Path("var/bench/leaks.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
