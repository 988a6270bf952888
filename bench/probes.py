"""How many planted holes the probes find, and how many sound verifiers they accuse. `python -m
bench.probes` (bench/README.md).

Every verifier of `bench.probe_suite` is probed with a few generated tasks. A hole counts as found
by at least one finding of an attack, a measure or the search; a sound verifier is accused by any
finding at all. Judges are the product's own, with a stand-in of the model behind HTTP. Work is
counted in calls of the verifier and in CPU time, not in seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from bench.probe_suite import PLANTED, SOUND, Entry, held_out
from bench.probe_suite.judges import serving
from bench.probe_suite.tasks import tasks_of
from workers.lib.clients import clients_of
from workers.lib.probes import Finding, Options, Report, Scorer, attack
from workers.lib.probes.promises import is_stochastic, promises_of, rubrics_of
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import Clients
from workers.lib.specs.probe import ALWAYS_PROMISED

RIGHT_FORMS = "perturbation"


@dataclass(frozen=True)
class Outcome:
    entry: Entry
    report: Report
    calls: int
    cpu_s: float

    @property
    def found(self) -> list[Finding]:
        """Findings about wrong outputs."""
        kinds = {row.name: row.kind for row in self.report.probes}
        return [item for item in self.report.failed if kinds.get(item.probe) != RIGHT_FORMS]


def counted(score: Scorer) -> tuple[Scorer, list[int]]:
    calls = [0]

    def counting(task: dict, messages: list[dict]):
        calls[0] += 1
        return score(task, messages)

    return counting, calls


def probe(entry: Entry, seed: int, url: str, search: bool) -> Outcome:
    clients = (
        clients_of(Clients(judge=ModelServer(base_url=url, model=entry.model, allow_private=True)))
        if entry.model
        else {}
    )
    score, calls = counted(entry.make(clients))
    defaults = Options()
    options = Options(
        promises=promises_of(entry.spec) if entry.spec else ALWAYS_PROMISED,
        stochastic=is_stochastic(entry.spec),
        rubrics=rubrics_of(entry.spec),
        search_scores=defaults.search_scores if search else 0,
        max_repeats=200 if entry.model else defaults.max_repeats,
        seed=seed,
    )
    began = time.process_time()
    report = attack(score, tasks_of(entry.tasks, seed), options=options)
    print(entry.kind, entry.name, calls[0], file=sys.stderr, flush=True)
    return Outcome(entry, report, calls[0], time.process_time() - began)


def chosen(entries: list[Entry], part: str, only: str) -> list[Entry]:
    apart = held_out(PLANTED)
    kept = [
        entry for entry in entries if part == "all" or (entry.name in apart) == (part == "held-out")
    ]
    return [entry for entry in kept if not only or entry.name in only.split(",")]


def row(name: str, outcomes: list[Outcome], accused: bool) -> str:
    """A line of the table: findings of the list alone, then of list and search."""
    n = len(outcomes)
    findings = [one.report.failed if accused else one.found for one in outcomes]
    listed = sum(any(item.probe != "search" for item in items) for items in findings)
    both, locked = sum(map(bool, findings)), sum(one.report.locks > 0 for one in outcomes)
    calls, cpu = sum(one.calls for one in outcomes), sum(one.cpu_s for one in outcomes)
    shares = " | ".join(f"{k} ({k / n:.0%})" if n else "–" for k in (listed, both, locked))
    return f"| {name} | {n} | {shares} | {calls / max(1, n):,.0f} | {cpu / max(1, n):.1f} s |"


def shown(outcomes: Iterable[Outcome], accused: bool) -> None:
    """The ones that went wrong, with the first findings."""
    for one in outcomes:
        findings = one.report.failed if accused else one.found
        if bool(findings) == accused:
            print(f"  {one.entry.kind}/{one.entry.name}: {one.calls} calls, {one.cpu_s:.1f} s CPU")
            for item in findings[:6]:
                told = (
                    f"{item.severity} {item.probe} {item.reward} of {item.gold_reward}:"
                    f" {item.reason[:110]}"
                )
                print(f"      {told} | {item.shown[:70]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--part", choices=("all", "tuning", "held-out"), default="all", help="of the planted ones"
    )
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--search", action="store_true", help="also search, beside the list")
    given = parser.parse_args()
    with serving() as url:
        planted = [
            probe(one, given.seed, url, given.search)
            for one in chosen(PLANTED, given.part, given.only)
        ]
        sound = [
            probe(one, given.seed, url, given.search) for one in chosen(SOUND, "all", given.only)
        ]
    apart = held_out(PLANTED)
    print(
        "| verifiers | n | accused by the list | list and search | locked | calls each | CPU each |"
    )
    print("|---|---|---|---|---|---|---|")
    print(row("planted, tuned on", [one for one in planted if one.entry.name not in apart], False))
    print(row("planted, held out", [one for one in planted if one.entry.name in apart], False))
    print(row("sound", sound, True))
    shown(planted, False)
    shown(sound, True)


if __name__ == "__main__":
    main()
