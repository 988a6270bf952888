"""Prints what gets through of the attacks, and which other tasks are refused: `python -m
bench.holdout_attacks [--seed 77] [--each 20]`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from apps.evals.near_duplicates.search import Held, HeldOut, Row
from bench.holdout_attacks.rows import AROUND, CALLS, MORE_CALLS, PLACES, row, user
from bench.holdout_attacks.tasks import FAMILIES, Invented, invent
from bench.holdout_attacks.texts import CIPHERS, KEPT, PARTS

Found = tuple[str, str, int, Counter, int]  # kind, name, tried, through by family, through in all


def attacks(tasks: list[Invented]) -> Iterator[tuple[str, str, list[tuple[Invented, dict]]]]:
    """(kind, name, (task, row that has it))."""
    calls = [task for task in tasks if task.calls]
    for name, dress in (KEPT | PARTS).items():
        yield (
            "embedded",
            name,
            [(task, row(task, user(AROUND.format(dress(task.request))))) for task in tasks],
        )
        yield "alone", name, [(task, row(task, user(dress(task.request)))) for task in tasks]
    for name, dress in CIPHERS.items():
        yield "cipher", name, [(task, row(task, user(dress(task.request)))) for task in tasks]
    for name, place in PLACES.items():
        yield "place", name, [(task, place(task)) for task in tasks]
    for name, place in (CALLS | MORE_CALLS).items():
        yield "calls", name, [(task, place(task)) for task in calls]


def held(task: Invented) -> Held:
    return Held([{"role": "user", "content": task.request}], task.expected, "")


def through(index: HeldOut, pairs: list[tuple[Invented, dict]]) -> list[Invented]:
    found = {
        match.key
        for match in index.search((at, Row.of(made)) for at, (_, made) in enumerate(pairs))
    }
    return [task for at, (task, _) in enumerate(pairs) if at not in found]


def measured(seed: int, each: int) -> Iterator[Found]:
    tasks = invent(seed, each)
    index = HeldOut([held(task) for task in tasks])
    for kind, name, pairs in attacks(tasks):
        passed = through(index, pairs)
        yield kind, name, len(pairs), Counter(task.family for task in passed), len(passed)


def refused(seed: int, each: int) -> Iterator[tuple[str, str, int, int]]:
    """(family, form, refused, tried) of other tasks of the same templates: half of them is held
    out.
    """
    for family in FAMILIES:
        tasks = invent(seed, 2 * each, [family])
        index = HeldOut([held(task) for task in tasks[::2]])
        forms = {
            "as they are": lambda task: task.row(),
            "words around": lambda task: row(
                task, user(AROUND.format(task.request)), expected=task.expected
            ),
            "other answer": lambda task: row(task, user(task.request)),
        }
        for form, made in forms.items():
            rest = [(task, made(task)) for task in tasks[1::2]]
            yield family, form, len(rest) - len(through(index, rest)), len(rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--each", type=int, default=20, help="tasks of each family")
    parser.add_argument(
        "--all", action="store_true", help="also attacks that nothing came through of"
    )
    given = parser.parse_args()
    print("| kind | attack | through | of | families |\n|---|---|---|---|---|")
    for kind, name, tried, families, count in measured(given.seed, given.each):
        if count or given.all:
            shown = ", ".join(f"{family} {n}" for family, n in families.most_common())
            print(f"| {kind} | {name} | {count} | {tried} | {shown} |", flush=True)
    print("\n| family | form | refused | of |\n|---|---|---|---|")
    for family, form, count, tried in refused(given.seed, given.each * 5):
        if count or given.all:
            print(f"| {family} | {form} | {count} | {tried} |", flush=True)


if __name__ == "__main__":
    main()
