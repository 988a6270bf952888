"""How many secrets the rules of a new project take out, and what they take that is none. `python -m
bench.redaction [--missed]`

With `--presidio MODEL` (a model on this machine, or `patterns`), also how many people and places
Presidio finds in the same rows.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.trajectories.redaction import Redactor, Rule, presidio, strings
from bench.secret_rows import CITY, FIRST, LAST, ORDINARY, SECRETS

ON_FROM_THE_START = (
    "api_key",
    "password",
    "card",
)  # as apps.trajectories.actions.redaction has it; a test compares
HARD = "-hard"  # nobody could tell without the message before it


def missed(redactor: Redactor) -> list[tuple[str, dict, str]]:
    """The rows (kind, row, secret) whose secret is still there."""
    return [
        (kind, row, secret)
        for kind, row, secret in SECRETS
        if secret in "\n".join(strings(redactor.redact(row)[0]))
    ]


def touched(redactor: Redactor) -> list[dict]:
    """The ordinary rows of which something was taken."""
    return [row for row in ORDINARY if redactor.redact(row)[1]]


PEOPLE = frozenset((*FIRST, *LAST))
PLACES = frozenset(CITY)
_WORD = re.compile(r"(?<![\w@.])[^\W\d_]+(?![\w@])")


def words_of(row: dict) -> list[str]:
    return _WORD.findall("\n".join(strings(row)))


def measure_names(redactor: Redactor) -> dict[str, tuple[int, int]]:
    """(found, all): people and places by each time one is named, and rows that name nobody of which
    something was taken.
    """
    counts = {"people": [0, 0], "places": [0, 0], "ordinary rows that name neither": [0, 0]}
    for row in [*(row for _, row, _ in SECRETS), *ORDINARY]:
        done, _ = redactor.redact(row)
        before, after = Counter(words_of(row)), Counter(words_of(done))
        for what, known in (("people", PEOPLE), ("places", PLACES)):
            named = sum(before[word] for word in known)
            counts[what][0] += named - sum(min(before[word], after[word]) for word in known)
            counts[what][1] += named
    plain = [row for row in ORDINARY if not (PEOPLE | PLACES) & set(words_of(row))]
    counts["ordinary rows that name neither"] = [
        sum(bool(redactor.redact(row)[1]) for row in plain),
        len(plain),
    ]
    return {what: (found, total) for what, (found, total) in counts.items()}


def show_names(model: str) -> None:
    for entities in (
        (("PERSON",), ("PERSON", "LOCATION", "NRP"))
        if model != presidio.PATTERNS
        else (("US_ITIN", "UK_NHS"),)
    ):
        settings = presidio.Settings(entities=entities, model=model)
        redactor = Redactor(
            [Rule("presidio", "presidio", presidio.pattern_of(settings))]
        )  # loads the model
        begun = time.process_time()
        for row in ORDINARY:
            redactor.redact(row)
        spent, size = (
            time.process_time() - begun,
            sum(len("".join(strings(row))) for row in ORDINARY),
        )
        table = Table(f"{model}: {', '.join(entities)}", "found", "share", "95%")
        for what, (some, total) in measure_names(redactor).items():
            low, high = wilson(some, total)
            table.add_row(
                what, f"{some} of {total}", f"{some / total:.1%}", f"[{low:.1%}, {high:.1%}]"
            )
        Console().print(table)
        Console().print(
            f"{spent / len(ORDINARY) * 1e3:.1f} ms of CPU a row of ordinary traffic"
            f" ({size / len(ORDINARY):.0f} characters)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missed", action="store_true", help="show what was not found")
    parser.add_argument(
        "--presidio", metavar="MODEL", help="also look for people and places, with this model"
    )
    given = parser.parse_args()
    shown = given.missed
    redactor = Redactor([Rule(kind, kind) for kind in ON_FROM_THE_START])
    left = missed(redactor)
    table = Table("rows", "found", "share", "95%")
    for name, hard in (("secrets", False), ("secrets that need the message before", True)):
        total = sum(kind.endswith(HARD) == hard for kind, _, _ in SECRETS)
        found = total - sum(kind.endswith(HARD) == hard for kind, _, _ in left)
        low, high = wilson(found, total)
        table.add_row(
            name, f"{found} of {total}", f"{found / total:.1%}", f"[{low:.1%}, {high:.1%}]"
        )
    low, high = wilson(len(touched(redactor)), len(ORDINARY))
    table.add_row(
        "ordinary",
        f"{len(touched(redactor))} of {len(ORDINARY)}",
        f"{len(touched(redactor)) / len(ORDINARY):.1%}",
        f"[{low:.1%}, {high:.1%}]",
    )
    Console().print(table)
    begun = time.process_time()
    for row in ORDINARY:
        redactor.redact(row)
    Console().print(
        f"{(time.process_time() - begun) / len(ORDINARY) * 1e6:.0f} µs of CPU a row of ordinary"
        " traffic"
    )
    for kind, _, secret in left if shown else ():
        Console().print(kind, secret)
    if given.presidio:
        show_names(given.presidio)


if __name__ == "__main__":
    main()
