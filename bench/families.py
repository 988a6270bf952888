"""Failures found on families of traffic that no rule was written on. `python -m bench.families
[--data families-sealed]`

The families in bench/data have planted failures, and their truth beside them; outcomes are taken as
unknown, as in production. Only figures are printed, never a run: whoever writes rules may look at
`families-dev` alone. Writes var/bench/families.json.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.failures.classify import Diagnosis, classify
from bench.peers import HOME

DATA = Path(__file__).parent / "data"
UNKNOWN = {"outcome_status": "unknown", "outcome_reason": ""}
Runs = list[tuple[dict, dict]]


def families(path: Path) -> Iterator[tuple[str, Runs]]:
    """(name, [(run, its truth)]) of each folder with runs and their truth."""
    with tarfile.open(path) as archive:
        read: dict[str, dict[str, list[dict]]] = {}
        for member in archive.getmembers():
            folder, _, name = member.name.rpartition("/")
            if name in ("runs.jsonl", "truth.jsonl"):
                lines = archive.extractfile(member)
                read.setdefault(folder, {})[name] = [json.loads(line) for line in lines or ()]
    for folder, files in sorted(read.items()):
        truth = {item["id"]: item for item in files["truth.jsonl"]}
        name = folder.removeprefix("./").replace("/", " ")
        yield name, [(run, truth[run["id"]]) for run in files["runs.jsonl"]]


def found_in(run: dict) -> Diagnosis | None:
    given = {name: run.get(name) or [] for name in ("messages", "tools", "interventions")}
    return classify(given | UNKNOWN | {"metadata": run.get("metadata") or {}})


def figures(runs: Runs, rules: dict[str, Counter[bool]]) -> dict[str, Any]:
    count: Counter[str] = Counter()
    for run, truth in runs:
        found, failed = found_in(run), truth["failed"]
        by_structure = failed and truth["visible_by_structure"]
        count += Counter(failed=failed, fine=not failed, by_structure=by_structure)
        if found:
            step = found.blamed_message == truth["first_wrong_step"]
            count += Counter(
                found=failed,
                found_by_structure=by_structure,
                false=not failed,
                step=failed and step,
            )
            for rule in {item.rule for item in found.evidence}:
                rules.setdefault(rule, Counter())[failed] += 1
    return dict(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="families-dev", help="families-dev or families-sealed")
    chosen = parser.parse_args()
    rules: dict[str, Counter[bool]] = {}
    by_family = {
        name: figures(runs, rules) for name, runs in families(DATA / f"{chosen.data}.tar.xz")
    }
    total = dict(sum(map(Counter, by_family.values()), Counter()))
    table = Table("family", "failed", "found", "of structure", "step", "false alarms")
    for name, row in (by_family | {"all": total}).items():
        of = {key: row.get(key, 0) for key in (*total, "false", "found", "step")}
        table.add_row(
            name,
            str(of["failed"]),
            share(of["found"], of["failed"]),
            share(of.get("found_by_structure", 0), of.get("by_structure", 0)),
            share(of["step"], of["found"]),
            share(of["false"], of["fine"]),
        )
    right = Table("rule", "right")
    for rule, hits in sorted(rules.items(), key=lambda item: -item[1].total()):
        right.add_row(rule, share(hits[True], hits.total()))
    console = Console(width=120)
    console.print(table)
    console.print(right)
    HOME.mkdir(parents=True, exist_ok=True)
    report = {
        "data": chosen.data,
        "families": by_family,
        "rules": {k: v[True] for k, v in rules.items()},
    }
    (HOME / "families.json").write_text(json.dumps(report, indent=1))


def share(hits: int, n: int) -> str:
    if not n:
        return "–"
    low, high = wilson(hits, n)
    return f"{hits} of {n} ({hits / n:.0%} [{low:.0%}, {high:.0%}])"


if __name__ == "__main__":
    main()
