"""How pure clusters of tau-bench's failures are by the 40 modes that a person gave by hand. `python
-m bench.cluster_purity`

Purity is the share of the labelled failures, in clusters with at least two of them, that have their
cluster's most common mode. It is compared with the mean of 2,000 random groupings into clusters of
the same sizes. Prints the clusters of the half that was looked at.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter

from apps.core.intervals import wilson
from apps.failures.classify import classify
from apps.failures.clusters.find import cluster
from apps.failures.clusters.records import case_of
from bench.failures import LABELS, tau_inputs
from bench.without_truth import LOOKED_AT, half_of, without_truth

DRAWS = 2_000


def purity(groups: list[list[str]]) -> tuple[int, int]:
    """(failures with their group's most common mode, failures), over groups of two or more."""
    counted = [Counter(group) for group in groups if len(group) > 1]
    return sum(modes.most_common(1)[0][1] for modes in counted), sum(
        modes.total() for modes in counted
    )


def by_chance(groups: list[list[str]], seed: int = 0) -> float:
    chance, modes = random.Random(seed), [mode for group in groups for mode in group]
    found = []
    for _ in range(DRAWS):
        drawn = iter(chance.sample(modes, len(modes)))
        hits, n = purity([[next(drawn) for _ in group] for group in groups])
        found.append(hits / n)
    return statistics.fmean(found)


def report(*, known: bool) -> None:
    """`known`: the recorded right calls are left in the runs."""
    labels = {label["id"]: label["mode"] for label in json.loads(LABELS.read_text())}
    cases = []
    for run in tau_inputs():
        given = run if known else without_truth(run)
        if run["outcome_status"] == "failure" and (found := classify(given)):
            evidence = [item.as_dict() for item in found.evidence]
            cases.append(
                case_of(
                    given,
                    id=run["id"],
                    mode=found.mode,
                    blamed_message=found.blamed_message,
                    evidence=evidence,
                )
            )
    made = cluster(cases)
    groups = [[labels[id] for id in group.members if id in labels] for group in made.clusters]
    hits, n = purity(groups)
    print(
        f"{'Right calls known' if known else 'Only the outcome known'}: {len(cases)} failures,"
        f" {len(made.clusters)} clusters"
    )
    if not n:
        return
    low, high = wilson(hits, n)
    print(
        f"  {len(made.rest)} in no cluster; purity {hits}/{n} = {hits / n:.0%} [{low:.0%},"
        f" {high:.0%}]; at random {by_chance(groups):.0%}"
    )
    for group in made.clusters:
        if seen := [id for id in group.members if half_of(id) == LOOKED_AT]:
            modes = Counter(labels[id] for id in seen if id in labels)
            print(f"  {group.name}: {len(group.members)}; looked-at labels {dict(modes)}")


def main() -> None:
    report(known=False)
    report(known=True)


if __name__ == "__main__":
    main()
