"""Rules of system prompts in six languages: which prompts the judge is asked to read, whether
quotes are found, and what checks find. `python -m bench.policy_rules`

`data/policy_rules.json` stands in for the judge. It was written from the prompts and the names of
tools alone, before any run was looked at, and must not be changed after a look at the runs. So this
measures everything but the real judge's reading. Writes var/bench/policy_rules.json.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from apps.failures.judge.answer import AnswerError
from apps.failures.judge.prompt_rules import Proposed, Reader
from apps.failures.rules.policy import Tools, tools_of, violations
from apps.failures.rules.reading import Run, read
from apps.failures.rules.statements import RECENT, next_unread, parts_of
from bench.families import DATA, Family, planted, tau_bench
from bench.peers import HOME

RULES = json.loads((DATA / "policy_rules.json").read_text())
AT_ONCE = 10  # runs that arrive between two looks
PROFILES, VISITS = 40, 8  # customers whose names stand in the prompts, and runs of each


def traffic() -> Iterator[tuple[str, Family]]:
    yield "airline", tau_bench()
    yield from planted(DATA / "families-dev.tar.xz")


def questions(prompts: Sequence[tuple[str, ...]]) -> int:
    """How many prompts the judge reads while these runs arrive. No pause is kept, which makes it
    an upper bound.
    """
    known, asked = set[str](), 0
    for end in range(AT_ONCE, len(prompts) + AT_ONCE, AT_ONCE):
        recent = prompts[:end][::-1][:RECENT]
        while (at := next_unread(recent, known)) is not None:
            known.update(recent[at])
            asked += 1
    return asked


def templated(systems: Sequence[str], chance: random.Random) -> list[tuple[str, ...]]:
    """As if a line about the customer stood in each prompt."""
    customers = list(range(PROFILES)) * VISITS
    chance.shuffle(customers)
    return [
        parts_of(f"{chance.choice(systems)}\nCustomer: {chr(0x4E00 + 97 * customer)} Example")
        for customer in customers
    ]


def figures(name: str, family: Family, checks: list[dict[str, Any]]) -> dict[str, Any]:
    runs = [read(case.run) for case in family]
    tools = tools_of(
        (case.run.get("tools") for case in family),
        (call.tool for run in runs for call in run.calls if call.tool),
    )
    systems = [run.system for run in runs]
    found = {}
    for system in sorted(set(systems)):
        found |= {rule.sentence: rule for rule in _read(system, name, tools)}
    for rule in found.values():
        if rule.check:
            checks.append(_hits(name, rule.sentence, rule.check, set(rule.parts), family, runs))
    return {
        "runs": len(runs),
        "prompts": len(set(systems)),
        "questions": questions([parts_of(system) for system in systems]),
        "questions, a customer in each": questions(
            templated(sorted(set(systems)), random.Random(1))
        ),
        "rules": len(RULES[name]),
        "quotes found": len(found),
        "checks": sum(bool(rule["check"]) for rule in RULES[name]),
        "checks that can be made": sum(bool(rule.check) for rule in found.values()),
    }


def _read(system: str, name: str, tools: Tools) -> list[Proposed]:
    """The rules whose quotes stand in one of the prompts of a family."""
    reader, text = Reader(system, tools), json.dumps({"rules": RULES[name]})
    try:
        return reader(text).rules
    except AnswerError:  # the judge would mend it; what is right is kept
        return reader(text).rules


def _hits(
    name: str, sentence: str, check: dict, parts: set[str], family: Family, runs: list[Run]
) -> dict[str, Any]:
    count: Counter[str] = Counter()
    for case, run in zip(family, runs, strict=True):
        applies = parts.issubset(parts_of(run.system))
        hit = applies and bool(violations(check, run))
        count += Counter(applies=applies, failed=hit and case.failed, fine=hit and not case.failed)
    return {"family": name, "rule": sentence, **count}


def main() -> None:
    checks: list[dict[str, Any]] = []
    by_family = {name: figures(name, family, checks) for name, family in traffic()}
    columns = list(next(iter(by_family.values())))
    table = Table("family", *columns)
    for name, row in by_family.items():
        table.add_row(name, *(str(row[column]) for column in columns))
    hits = Table("family", "check of", "runs", "hits in failed runs", "hits in others")
    for row in checks:
        shown = (str(row.get(column, 0)) for column in ("applies", "failed", "fine"))
        hits.add_row(row["family"], row["rule"], *shown)
    console = Console(width=180)
    console.print(table)
    console.print(hits)
    HOME.mkdir(parents=True, exist_ok=True)
    written = {"families": by_family, "checks": checks}
    (HOME / "policy_rules.json").write_text(json.dumps(written, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
