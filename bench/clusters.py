"""Clustering of failures: time, memory, agreement with known groups, identity from day to day.
Results: bench/README.md.

`python -m bench.clusters [--cases 50000] [--seed 7] [--names] [--quick] [--tau FILE]`; scikit-learn
is in requirements/dev.txt. The failures are invented: 60 kinds of trouble in 15 tools, sizes by
Zipf's law, five of them new on the second day, wordings and values by chance, every tenth failure
like no other.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from apps.failures.classify import classify
from apps.failures.clusters.cases import Case
from apps.failures.clusters.find import Clustering, Options, cluster
from apps.failures.clusters.identity import Known, match
from apps.failures.clusters.records import case_of
from apps.failures.clusters.signatures import assign

TAU = (
    Path(__file__).resolve().parents[2]
    / "shared"
    / "data"
    / "tau_bench"
    / "gpt-4o-airline-trials-0-1.json"
)
GROUPS, LATE, NOISE, DAY_ONE, SEED = 60, 5, 0.1, 0.8, 7
VERBS = ("create", "update", "cancel", "search", "send")
OBJECTS = {
    "invoice": ("customer_id", "amount", "currency", "due_date", "payment_terms"),
    "shipment": ("tracking_id", "carrier", "address", "weight", "insurance"),
    "ticket": ("ticket_id", "priority", "assignee", "queue", "summary"),
}
TROUBLES = (  # (rule, what its finding names, error, the judge's sentence, mode)
    ("arguments_break_the_schema", "{arg}", "", "", "wrong_arguments"),
    ("expected_calls", "{arg}", "", "", "wrong_arguments"),
    (
        "error_never_recovered",
        "",
        "Error: {arg} {value} is not known for this {object}",
        "",
        "incomplete_execution",
    ),
    (
        "error_never_recovered",
        "",
        "Error 429: rate limit of {number} requests reached, retry after {number} s",
        "",
        "incomplete_execution",
    ),
    ("looped", "", "", "", "bad_planning"),
    ("expected_calls", "{other}", "", "", "wrong_tool_choice"),
    (
        "empty_retrieval_used",
        "",
        "",
        "{tool} found nothing, and the answer gives {arg} as a fact.",
        "retrieval_failure",
    ),
    ("dangerous_without_approval", "", "", "", "unsafe_action"),
    ("", "", "", "The agent {promised} the {object} and never did it.", "incomplete_execution"),
    (
        "claimed_without_a_call",
        "",
        "Permission denied: role {role} may not change {arg}",
        "",
        "incomplete_execution",
    ),
)
NAMES = (
    "Mia Li",
    "Omar Haddad",
    "Ann Novak",
    "Raj Patel",
    "Lena Fischer",
    "Chen Wei",
    "Sara Lopez",
    "Tom Baker",
)
PROMISES = (
    "promised to handle",
    "said it would process",
    "offered to complete",
    "agreed to take care of",
)
SYLLABLES = [
    "ba",
    "ke",
    "lo",
    "mi",
    "nu",
    "pra",
    "sto",
    "tri",
    "vex",
    "wol",
    "zan",
    "qui",
    "fer",
    "gal",
    "hus",
]


def word(chance: random.Random) -> str:
    return "".join(chance.choice(SYLLABLES) for _ in range(chance.randint(2, 4)))


LEXICON = sorted({word(random.Random(number)) for number in range(300)})


def _values(chance: random.Random, verb: str, object_: str, arg: str, other: str) -> dict[str, str]:
    return {
        "verb": verb,
        "object": object_,
        "tool": f"{verb}_{object_}",
        "arg": arg,
        "other": other,
        "value": f"{object_[:3].upper()}-{chance.randint(1000, 999999)}",
        "number": str(chance.randint(2, 900)),
        "name": chance.choice(NAMES),
        "date": f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",
        "email": f"{word(chance)}@example.com",
        "promised": chance.choice(PROMISES),
        "role": "agent",
    }


def _kinds(chance: random.Random) -> list[tuple[str, str, str, str, int]]:
    """GROUPS different (verb, object, argument, other tool, number of the trouble)."""
    found: dict[tuple[str, str, int], tuple[str, str, str, str, int]] = {}
    while len(found) < GROUPS:
        verb, object_, trouble = (
            chance.choice(VERBS),
            chance.choice(list(OBJECTS)),
            chance.randrange(len(TROUBLES)),
        )
        other = f"{chance.choice(VERBS)}_{chance.choice(list(OBJECTS))}"
        found.setdefault(
            (verb, object_, trouble),
            (verb, object_, chance.choice(OBJECTS[object_]), other, trouble),
        )
    return list(found.values())


def failures(count: int, seed: int = SEED) -> tuple[list[Case], list[int]]:
    """(failures, the kind of each; -1 for noise); the last LATE kinds are first seen on the second
    day.
    """
    chance = random.Random(seed)
    kinds = _kinds(chance)
    sizes = [1 / (place + 4) for place in range(GROUPS)]
    labels = []
    for number in range(count):
        known = GROUPS if number >= DAY_ONE * count else GROUPS - LATE
        labels.append(
            -1 if chance.random() < NOISE else chance.choices(range(known), sizes[:known])[0]
        )
    made = [
        _noise(chance, n) if kind < 0 else _failure(chance, n, kinds[kind])
        for n, kind in enumerate(labels)
    ]
    return made, labels


def _failure(chance: random.Random, number: int, kind: tuple[str, str, str, str, int]) -> Case:
    verb, object_, arg, other, trouble = kind
    rule, named, error, cause, mode = TROUBLES[trouble]
    values = _values(chance, verb, object_, arg, other)
    given = {
        name: chance.choice((values["value"], chance.randint(1, 99)))
        for name in OBJECTS[object_]
        if name != arg
    }
    return Case(
        id=f"f{number:06}",
        mode=mode,
        cause=cause.format(**values),
        fact=rule,
        named=(named.format(**values),) if named else (),
        tool=values["tool"],
        arguments=given,
        error=error.format(**values),
    )


def _noise(chance: random.Random, number: int) -> Case:
    """A failure of any tool and mode, in words that come together in no other; half of them are
    words of all.
    """
    said = [chance.choice(LEXICON) if chance.random() < 0.5 else word(chance) for _ in range(30)]
    object_ = chance.choice(list(OBJECTS))
    return Case(
        id=f"f{number:06}",
        mode=chance.choice(TROUBLES)[3],
        cause=" ".join(said[:20]),
        tool=f"{chance.choice(VERBS)}_{object_}",
        arguments={chance.choice(OBJECTS[object_]): said[0]},
        error=" ".join(said[20:]),
    )


def labels_of(clustering: Clustering, cases: Sequence[Case]) -> list[int]:
    places = {id: place for place, group in enumerate(clustering.clusters) for id in group.members}
    return [places.get(case.id, -1) for case in cases]


def agreement(truth: Sequence[int], found: Sequence[int]) -> Iterator[str]:
    """Adjusted Rand index, homogeneity and completeness by scikit-learn, noise as a group of its
    own.
    """
    from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure

    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, found)
    yield f"adjusted Rand index {adjusted_rand_score(truth, found):.3f}"
    yield f"homogeneity {homogeneity:.3f}, completeness {completeness:.3f}"
    quiet = Counter(label == -1 for label, kind in zip(found, truth, strict=True) if kind == -1)
    lost = Counter(label == -1 for label, kind in zip(found, truth, strict=True) if kind != -1)
    yield (
        f"noise left unclustered {quiet[True] / max(1, quiet.total()):.1%}, of the others"
        f" {lost[True] / lost.total():.1%}"
    )


def known_of(clustering: Clustering, ids: Sequence[str]) -> dict[str, Known]:
    return {id: Known.of(group) for id, group in zip(ids, clustering.clusters, strict=True)}


def stability(cases: list[Case], first: int) -> Iterator[str]:
    """The first day's failures, then all of them in another order: whose group has another id on
    the second day?
    """
    day_one = cluster(cases[:first])
    one = match({}, day_one.clusters).ids
    shuffled = random.Random(SEED).sample(cases, len(cases))
    day_two = cluster(shuffled)
    matching = match(known_of(day_one, one), day_two.clusters)
    before = {
        id: key for key, group in zip(one, day_one.clusters, strict=True) for id in group.members
    }
    after = {
        id: key
        for key, group in zip(matching.ids, day_two.clusters, strict=True)
        for id in group.members
    }
    same = sum(after.get(id) == key for id, key in before.items())
    yield f"ids unchanged for {same / len(before):.2%} of the failures that had a group on day one"
    yield (
        f"new ids {len(matching.born)}, gone {len(matching.gone)}, split {len(matching.splits)},"
        f" merged {len(matching.merges)}"
    )
    signatures = {key: group.signature for key, group in zip(one, day_one.clusters, strict=True)}
    news = cases[first:]
    taken = assign(day_one.space, signatures, news)
    agreed = sum(taken.get(case.id) == after.get(case.id) for case in news)
    yield (
        f"assigned by day one's signatures as day two clusters them: {agreed / len(news):.2%} of"
        f" {len(news)}"
    )


def tau_failures(path: Path) -> list[Case]:
    """The failures of a tau-bench result file, classified against its ground truth."""
    cases = []
    for row in json.loads(path.read_text()):
        trajectory = {
            "messages": row["traj"],
            "tools": [],
            "outcome_status": "success" if row["reward"] == 1 else "failure",
            "metadata": {"info": row["info"]},
        }
        if row["reward"] != 1 and (found := classify(trajectory)):
            evidence = [item.as_dict() for item in found.evidence]
            id = f"{row['task_id']:02}-{row['trial']}"
            cases.append(
                case_of(
                    trajectory,
                    id=id,
                    mode=found.mode,
                    blamed_message=found.blamed_message,
                    evidence=evidence,
                )
            )
    return cases


def show(clustering: Clustering) -> None:
    for group in clustering.clusters:
        print(
            f"{len(group.members):6}  {group.cohesion:.2f}  {group.name} "
            f" ({', '.join(group.examples)})"
        )
    print(f"{len(clustering.rest):6}        in no group")


def memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--similarity", type=float, default=Options.similarity)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--names", action="store_true", help="print the groups")
    parser.add_argument("--quick", action="store_true", help="no second day")
    parser.add_argument("--tau", type=Path, default=TAU)
    args = parser.parse_args()
    if args.tau.exists():
        found = tau_failures(args.tau)
        print(f"{len(found)} failures of {args.tau.name}")
        show(cluster(found))
    cases, truth = failures(args.cases, args.seed)
    started = time.perf_counter()
    clustering = cluster(cases, Options(similarity=args.similarity))
    print(
        f"{len(cases)} failures: {time.perf_counter() - started:.1f} s, {memory()},"
        f" {len(clustering.clusters)} groups"
    )
    if args.names:
        show(clustering)
    for line in agreement(truth, labels_of(clustering, cases)):
        print(line)
    if not args.quick:
        for line in stability(cases, int(DAY_ONE * len(cases))):
            print(line)


if __name__ == "__main__":
    main()
