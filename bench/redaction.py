"""How many secrets the rules of a new project take out, and what they take that is none. `python -m bench.redaction [--missed]`"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.trajectories.redaction import Redactor, Rule, strings
from bench.secret_rows import ORDINARY, SECRETS

ON_FROM_THE_START = ("api_key", "password", "card")  # as apps.trajectories.actions.redaction has it; a test compares
HARD = "-hard"  # nobody could tell without the message before it


def missed(redactor: Redactor) -> list[tuple[str, dict, str]]:
    """The rows (kind, row, secret) whose secret is still there."""
    return [
        (kind, row, secret) for kind, row, secret in SECRETS if secret in "\n".join(strings(redactor.redact(row)[0]))
    ]


def touched(redactor: Redactor) -> list[dict]:
    """The ordinary rows of which something was taken."""
    return [row for row in ORDINARY if redactor.redact(row)[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missed", action="store_true", help="show what was not found")
    shown = parser.parse_args().missed
    redactor = Redactor([Rule(kind, kind) for kind in ON_FROM_THE_START])
    left = missed(redactor)
    table = Table("rows", "found", "share", "95%")
    for name, hard in (("secrets", False), ("secrets that need the message before", True)):
        total = sum(kind.endswith(HARD) == hard for kind, _, _ in SECRETS)
        found = total - sum(kind.endswith(HARD) == hard for kind, _, _ in left)
        low, high = wilson(found, total)
        table.add_row(name, f"{found} of {total}", f"{found / total:.1%}", f"[{low:.1%}, {high:.1%}]")
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
    Console().print(f"{(time.process_time() - begun) / len(ORDINARY) * 1e6:.0f} µs of CPU a row of ordinary traffic")
    for kind, _, secret in left if shown else ():
        Console().print(kind, secret)


if __name__ == "__main__":
    main()
