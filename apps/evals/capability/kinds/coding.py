"""Functions to write, graded by tests in the sandbox: one more step on a list of numbers with each
level. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from apps.evals.capability.kinds.base import Made

Step = tuple[str, str, Callable[[list[int]], list[int]]]
"""What it does in words, as a line of Python on `x`, and as a function."""
RUNS = 6


def code(rng: random.Random, level: int) -> Made:
    name = f"{rng.choice(('collect', 'refine', 'reduce', 'select', 'tally'))}_{rng.randint(10, 99)}"
    steps = [_step(rng) for _ in range((1, 2, 3, 5, 7)[level - 1])]
    end, last, finish = _end(rng)
    listed = " ".join(f"{at}. {said}" for at, (said, _, _) in enumerate(steps, 1))
    request = (
        f"Write a Python function {name}(x) that takes a list of whole numbers and does this, in"
        f" this order: {listed} Finally it returns {end} Answer with the code alone."
    )
    lines = [line for _, line, _ in steps]
    right = "\n    ".join([f"def {name}(x):", *lines, f"return {last}"])
    wrong = "\n    ".join([f"def {name}(x):", *lines, f"return ({last}) + 1"])
    tests = []
    for run in range(RUNS):
        given = [rng.randint(-30, 60) for _ in range(0 if run == 0 else rng.randint(4, 14))]
        found = list(given)
        for _, _, do in steps:
            found = do(found)
        tests.append({"call": f"{name}({given})", "expected": finish(found)})
    return Made(request, {"tests": tests}, f"```python\n{right}\n```", f"```python\n{wrong}\n```")


def _step(rng: random.Random) -> Step:
    a, b = rng.randint(2, 6), rng.randint(3, 25)
    return rng.choice(
        (
            (
                f"Drop the multiples of {a}.",
                f"x = [n for n in x if n % {a}]",
                lambda x: [n for n in x if n % a],
            ),
            (
                f"Keep only what is above {b}.",
                f"x = [n for n in x if n > {b}]",
                lambda x: [n for n in x if n > b],
            ),
            (f"Add {b} to each number.", f"x = [n + {b} for n in x]", lambda x: [n + b for n in x]),
            (
                f"Multiply each number by {a}.",
                f"x = [n * {a} for n in x]",
                lambda x: [n * a for n in x],
            ),
            (
                "Replace each number by its absolute value.",
                "x = [abs(n) for n in x]",
                lambda x: [abs(n) for n in x],
            ),
            (
                "Sort from large to small.",
                "x = sorted(x, reverse=True)",
                lambda x: sorted(x, reverse=True),
            ),
            ("Reverse the list.", "x = x[::-1]", lambda x: x[::-1]),
            (f"Keep only the first {a} numbers.", f"x = x[:{a}]", lambda x: x[:a]),
            (
                "Keep each number only the first time it occurs.",
                "x = list(dict.fromkeys(x))",
                lambda x: list(dict.fromkeys(x)),
            ),
            (
                "Subtract from each number the one before it, and leave the first as it is.",
                "x = x[:1] + [b - a for a, b in zip(x, x[1:])]",
                lambda x: x[:1] + [after - before for before, after in pairwise(x)],
            ),
            (
                "Replace each number by the sum of all numbers up to and including it.",
                "x = [sum(x[:i + 1]) for i in range(len(x))]",
                lambda x: [sum(x[: at + 1]) for at in range(len(x))],
            ),
        )
    )


def _end(rng: random.Random) -> tuple[str, str, Callable[[list[int]], int]]:
    return rng.choice(
        (
            ("the sum of the numbers.", "sum(x)", sum),
            ("how many numbers are left.", "len(x)", len),
            (
                "the largest number, or 0 if there is none.",
                "max(x, default=0)",
                lambda x: max(x, default=0),
            ),
            (
                "the smallest number, or 0 if there is none.",
                "min(x, default=0)",
                lambda x: min(x, default=0),
            ),
        )
    )
