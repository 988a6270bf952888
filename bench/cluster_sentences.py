"""How well clusters of small projects agree with the causes that were planted. `python -m
bench.cluster_sentences [--data FILE] [--seeds 10] [--facts 0.5]`

`bench/data/cause-sentences.json` has five projects in five languages; a cause is said in up to four
ways. The scripted judge names the planted cause in 85% of the failures, and another cause of the
project in the rest. Compared are clusters by words alone, and with its answer to the question which
causes are the same, in which it puts 15% of the sentences alone or into a wrong cause. B³ and
V-measure count a failure in no cluster as a cluster of its own. `--data` may be a file of the same
form, or of a list of {"cause", "mode", "tool", "error", "planted"} by project.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from apps.failures.clusters.cases import Case
from apps.failures.clusters.find import Label, Labeller, cluster, unlabelled
from apps.failures.clusters.names import sentence_of

SENTENCES = Path(__file__).parent / "data" / "cause-sentences.json"
RIGHT = 0.85
SENTENCES_ASKED: list[int] = []
SIZES = (2, 9)  # failures of a cause that is said in several ways


@dataclass(frozen=True)
class Failed:
    """`planted` is why it failed, `said` the cause that the judge named."""

    case: Case
    planted: str
    said: str


def projects(data: dict, seeds: int, facts: float) -> Iterator[tuple[str, list[Failed]]]:
    for name, project in data.items():
        if isinstance(project, list):
            yield name, [_failed(number, row) for number, row in enumerate(project)]
            continue
        for seed in range(seeds):
            yield name, failures(project, random.Random(f"{name} {seed}"), facts)


def _failed(number: int, row: dict) -> Failed:
    names = ("cause", "mode", "tool", "error", "fact")
    case = Case(id=f"{number:03}", **{name: row.get(name, "") for name in names})
    return Failed(case, row["planted"], row.get("said") or row["planted"])


def failures(project: dict, chance: random.Random, facts: float) -> list[Failed]:
    """`facts` of the failures that structure shows have no sentence of the judge."""
    causes, found = project["causes"], []
    for planted, (_, tool, error, sentences) in causes.items():
        for _ in range(1 if len(sentences) == 1 else chance.randint(*SIZES)):
            is_right = chance.random() < RIGHT
            said = planted if is_right else chance.choice([one for one in causes if one != planted])
            is_fact = bool(error) and random.Random(f"{planted} {len(found)}").random() < facts
            said = planted if is_fact else said
            mode, _, _, ways = causes[said]
            text = chance.choice(ways).replace("{v}", chance.choice(project["values"]))
            case = Case(
                id=f"{len(found):03}",
                mode=mode,
                cause="" if is_fact else text,
                fact="error_never_recovered" if error else "",
                tool=tool,
                error=error,
            )
            found.append(Failed(case, planted, said))
    return found


@dataclass(frozen=True)
class Agreement:
    """Of one grouping with the truth. `purity` is over the failures in a cluster."""

    failures: int
    grouped: int
    clusters: int
    purity: float
    precision: float
    recall: float
    v: float

    @property
    def f1(self) -> float:
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def agreement(truth: Sequence[str], labels: Sequence[int]) -> Agreement:
    from sklearn.metrics import v_measure_score

    alone = [-place - 2 if label < 0 else label for place, label in enumerate(labels)]
    both, found, causes = Counter(zip(truth, alone, strict=True)), Counter(alone), Counter(truth)
    precision = sum(n * n / found[label] for (_, label), n in both.items()) / len(truth)
    recall = sum(n * n / causes[cause] for (cause, _), n in both.items()) / len(truth)
    largest: Counter[int] = Counter()
    for (_, label), n in both.items():
        largest[label] = max(largest[label], n)
    grouped = sum(label >= 0 for label in labels)
    hits = sum(n for label, n in largest.items() if label >= 0)
    return Agreement(
        failures=len(truth),
        grouped=grouped,
        clusters=len(set(labels) - {-1}),
        purity=hits / max(grouped, 1),
        precision=precision,
        recall=recall,
        v=v_measure_score(truth, alone),
    )


def scripted(found: Sequence[Failed], chance: random.Random) -> Labeller:
    """Says what the judge meant by each cause, in 85%; else that it is alone, or another one."""
    said = {sentence_of(failed.case): failed.said for failed in found}
    causes = sorted(set(said.values()))

    def label(units: Sequence[Sequence[str]]) -> list[Label]:
        SENTENCES_ASKED.append(len(units))
        labels = []
        for place, unit in enumerate(units):
            alone = f"alone {place}"
            wrong = chance.choice((alone, chance.choice(causes)))
            id = said[unit[0]] if chance.random() < RIGHT else wrong
            labels.append(Label(id, id))
        return labels

    return label


def labels_of(found: Sequence[Failed], labeller: Labeller = unlabelled) -> list[int]:
    made = cluster([failed.case for failed in found], labeller=labeller)
    places = {id: place for place, group in enumerate(made.clusters) for id in group.members}
    return [places.get(failed.case.id, -1) for failed in found]


def report(title: str, rows: Sequence[Agreement]) -> None:
    def mean(name: str) -> float:
        return statistics.fmean(getattr(row, name) for row in rows)

    grouped = sum(row.grouped for row in rows) / sum(row.failures for row in rows)
    print(
        f"{title:28} {mean('failures'):5.1f} failures, {grouped:4.0%} in {mean('clusters'):4.1f}"
        f" clusters, purity {mean('purity'):.2f}; B³ precision {mean('precision'):.2f}, recall"
        f" {mean('recall'):.2f}, F {mean('f1'):.2f}; V {mean('v'):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SENTENCES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--facts", type=float, default=0, help="share of facts without a sentence")
    args = parser.parse_args()
    for with_judge in (False, True):
        by_project: dict[str, list[tuple[Agreement, Agreement]]] = {}
        made = projects(json.loads(args.data.read_text()), args.seeds, args.facts)
        for number, (name, found) in enumerate(made):
            chance = random.Random(number)
            labeller = scripted(found, chance) if with_judge else unlabelled
            labels = labels_of(found, labeller)
            both = (
                agreement([failed.said for failed in found], labels),
                agreement([failed.planted for failed in found], labels),
            )
            by_project.setdefault(name, []).append(both)
        print("with the judge's answer" if with_judge else "by words alone")
        for name, rows in by_project.items():
            report(f"  {name}: as said", [said for said, _ in rows])
        rows = [row for rows in by_project.values() for row in rows]
        report("  all: as said by the judge", [said for said, _ in rows])
        report("  all: as planted", [planted for _, planted in rows])
    print(f"{statistics.fmean(SENTENCES_ASKED):.0f} sentences asked about per project")


if __name__ == "__main__":
    main()
