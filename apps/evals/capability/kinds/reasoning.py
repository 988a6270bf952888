"""Arithmetic with many digits and steps, word problems, orders to be inferred from comparisons.
Pure.
"""

from __future__ import annotations

import random
from itertools import pairwise

from apps.evals.capability.kinds.base import GOODS, LAST_LINE, NAMES, TOWNS, Made, number


def arithmetic(rng: random.Random, level: int) -> Made:
    def digits(count: int) -> int:
        return rng.randrange(10 ** (count - 1), 10**count)

    if level == 1:
        a, b = digits(2), digits(2)
        return (
            number(f"What is {a} + {b}?", a + b)
            if rng.random() < 0.5
            else number(f"What is {a + b} - {b}?", a)
        )
    if level == 2:
        a, b = digits(3), digits(2)
        return number(f"What is {a} × {b}?", a * b)
    if level == 3:
        a, b, c, d = digits(3), digits(3), digits(2), digits(4)
        return number(f"What is ({a} + {b}) × {c} - {d}?", (a + b) * c - d)
    if level == 4:
        a, b, c = digits(5), digits(4), digits(7)
        return number(f"What is {a} × {b} + {c}?", a * b + c)
    a, b, c, m = digits(9), digits(8), digits(12), rng.choice((89, 97, 101, 103, 107))
    return number(f"What is the remainder when {a} × {b} + {c} is divided by {m}?", (a * b + c) % m)


def word_problem(rng: random.Random, level: int) -> Made:
    """Steps that change a stock, with irrelevant facts from level 3 on."""
    goods, town, stock = rng.choice(GOODS), rng.choice(TOWNS), rng.randint(20, 90)
    said = [f"A shop in {town} has {stock} {goods}."]
    for _ in range((1, 3, 5, 8, 12)[level - 1]):
        kind = rng.randrange(5)
        if kind == 0 or stock < 12:
            many, each = rng.randint(2, 6), rng.randint(4, 15)
            stock += many * each
            said.append(f"{many} vans bring {each} {goods} each.")
        elif kind == 1:
            gone = rng.randint(3, stock - 4)
            stock -= gone
            said.append(f"{rng.choice(NAMES)} buys {gone} of them.")
        elif kind == 2:
            part = rng.choice([part for part in (2, 3, 4, 5) if stock % part == 0] or [1])
            stock -= stock // part if part > 1 else 0
            said.append(
                f"One of every {part} is sold." if part > 1 else "Nothing is sold that day."
            )
        elif kind == 3:
            more = rng.randint(2, 9)
            stock += more
            said.append(f"{rng.choice(NAMES)} returns {more} of them.")
        else:
            stock *= 2
            said.append("Then the stock is doubled by a delivery.")
        if level >= 3 and rng.random() < 0.4:
            said.append(
                f"The shop has {rng.randint(2, 9)} windows and {rng.choice(NAMES)} is"
                f" {rng.randint(20, 60)} years old."
            )
    return number(f"{' '.join(said)} How many {goods} does the shop have now?", stock)


def order(rng: random.Random, level: int) -> Made:
    """Who is the k-th oldest? Each neighbour in the order is compared once, in any direction,
    shuffled.
    """
    people = rng.sample(NAMES, (3, 5, 7, 10, 14)[level - 1])
    said = [
        (
            f"{older} is older than {younger}."
            if rng.random() < 0.5
            else f"{younger} is younger than {older}."
        )
        for older, younger in pairwise(people)
    ]
    rng.shuffle(said)
    at = rng.randrange(len(people)) if level > 1 else rng.choice((0, len(people) - 1))
    place = {0: "the oldest", len(people) - 1: "the youngest"}.get(
        at, f"number {at + 1} counted from the oldest"
    )
    wrong = people[(at + 1) % len(people)]
    return Made(
        f"{' '.join(said)} Who is {place}? {LAST_LINE}",
        {"answer": [people[at]]},
        f"So it is\n{people[at]}",
        f"So it is\n{wrong}",
    )
