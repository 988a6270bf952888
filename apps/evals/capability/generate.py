"""The built-in set of general capability: can a model that was trained on one task still read,
calculate, write and follow instructions? Pure.

Five hundred tasks of ten kinds (`kinds`) on five levels, the same for the same seed. The first
level is for small models, the last leaves room above good ones: a set that is passed or failed
completely would show no drop.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from apps.evals.canonical import canonical_hash
from apps.evals.capability.kinds import KINDS
from apps.evals.capability.kinds.base import Made
from apps.evals.formats.rows import TaskRow

LEVELS = (1, 2, 3, 4, 5)
PER_LEVEL = 10
VERIFIER = {
    "kind": "expected",
    "verifiers": {"answer": {"kind": "exact", "answer_in": "last_line"}},
}


def general_tasks(seed: int = 0) -> list[TaskRow]:
    """The set: PER_LEVEL tasks of each kind and level, no request twice. A demonstration is an
    answer that passes.
    """
    return [row for row, _ in made_tasks(seed)]


def made_tasks(seed: int = 0) -> Iterator[tuple[TaskRow, Made]]:
    seen: set[str] = set()
    for kind, make in KINDS.items():
        for level in LEVELS:
            rng, at = random.Random(f"{seed} {kind} {level}"), 0
            while at < PER_LEVEL:
                made = make(rng, level)
                digest = canonical_hash([{"role": "user", "content": made.request}])
                if digest not in seen and made.right != made.wrong:
                    at += 1
                    seen.add(digest)
                    yield _row(made, kind, level, at), made


def _row(made: Made, kind: str, level: int, at: int) -> TaskRow:
    key = f"general-{kind}-{level}-{at:02d}"
    return TaskRow(
        key=key,
        messages=[{"role": "user", "content": made.request}],
        expected=made.expected,
        tools=made.tools,
        demonstration=made.right,
        group=key,
        split="general",
        metadata={"kind": kind, "level": level, "source": "built in"},
    )
