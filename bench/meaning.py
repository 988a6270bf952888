"""Does the semantic check find the same task in other words, and how many false pairs does it list?

`python -m bench.meaning [--model FOLDER]` compares 72 held-out requests (`bench/meaning_pairs.txt`,
written by hand) with the same tasks said otherwise (24 in other words, 24 told freely, 24
translated) among 144 other tasks of the same templates, by the hidden states of SmolLM2-135M or of
a model's folder, with and without each part of the method; then 24 pairs among 48 others that
nothing was chosen by (`bench/meaning_fresh.txt`). Writes var/bench/meaning.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workers.lib.meaning import discriminating, most_alike, unit, wording

PAIRS, FRESH = (Path(__file__).with_name(f"meaning_{name}.txt") for name in ("pairs", "fresh"))
SHOWN, SHOWN_FRESH = (20, 50, 100, 200), (10, 20, 50)
PLANTED, DRAWS = 8, 40  # paraphrases among the distinct tasks, where few are
KINDS = ("words", "free", "translated")


@dataclass(frozen=True)
class Example:
    """A held-out request, the same task in other words, how it is said, and two other tasks of its
    template.
    """

    held: str
    same: str
    kind: str
    others: tuple[str, ...]


def read(path: Path = PAIRS) -> list[Example]:
    found: list[Example] = []
    for block in path.read_text().split("\n= ")[1:]:
        held, same, *others = [
            line for line in block.splitlines() if line and not line.startswith("#")
        ]
        kind, _, said = same.removeprefix("~ ").partition(": ")
        found.append(
            Example(
                held,
                said,
                kind if kind in KINDS else "translated",
                tuple(one.removeprefix("! ") for one in others),
            )
        )
    return found


def texts_of(examples: Sequence[Example]) -> list[str]:
    """The held-out requests, the same said otherwise in the same order, the others."""
    return [
        *(one.held for one in examples),
        *(one.same for one in examples),
        *(text for one in examples for text in one.others),
    ]


def hidden(folder: Path, texts: list[str], threads: int = 0) -> np.ndarray:
    from workers.compare_meaning import of_model
    from workers.lib.specs.engines import InProcess, Model

    found: np.ndarray | None = None
    for positions, vectors in of_model(
        Model(base=str(folder)), InProcess(threads=threads, batch_size=16), texts
    ):
        found = np.zeros((len(texts), vectors.shape[1]), np.float32) if found is None else found
        found[positions] = vectors
    assert found is not None
    return found


def hits(
    vectors: np.ndarray, words: np.ndarray, n: int, planted: Sequence[int], most: int
) -> list[int]:
    """Which of the planted paraphrases are among the pairs shown: the trainable tasks are those and
    all others.
    """
    rows = [*range(n), *(n + at for at in planted), *range(2 * n, len(vectors))]
    found = most_alike(vectors[rows], words[rows], n, range(len(rows) - n), (), most)
    return [
        pair.held
        for pair in found
        if pair.other < len(planted) and planted[pair.other] == pair.held
    ]


Way = Callable[[np.ndarray], np.ndarray]
WAYS: dict[str, tuple[Way, bool]] = {  # (vectors, whether pairs of one wording are left out)
    "cosine of the hidden states": (unit, False),
    "… centred and whitened": (discriminating, False),
    "… pairs of one wording left out (the check)": (discriminating, True),
}


def table(
    examples: Sequence[Example],
    raw: np.ndarray,
    words: np.ndarray,
    ways: Sequence[str],
    shown: Sequence[int],
) -> dict:
    """Prints how many of the pairs are among those shown, all paraphrases being among the trainable
    tasks.
    """
    n, report = len(examples), {}
    of = Counter(one.kind for one in examples)
    print(
        f"| {n} among {2 * n} others | shown | found | {' | '.join(KINDS)} | false pairs"
        " |\n|---|---|---|---|---|---|---|"
    )
    for name in ways:
        way, cut = WAYS[name]
        vectors, mask = way(raw), words if cut else np.zeros_like(words)
        for most in shown:
            found = hits(vectors, mask, n, range(n), most)
            kinds = Counter(examples[at].kind for at in found)
            report[f"{name}, {most}"] = {"found": len(found)} | dict(kinds)
            each = " | ".join(f"{kinds[kind]} of {of[kind]}" for kind in KINDS)
            print(f"| {name} | {most} | {len(found)} of {n} | {each} | {most - len(found)} |")
    print()
    return report


def few(raw: np.ndarray, words: np.ndarray, n: int) -> dict:
    """The same where only a few paraphrases are among the trainable tasks, as in a set that
    somebody took care of.
    """
    report, vectors, rng = {}, discriminating(raw), random.Random(20262)
    draws = [rng.sample(range(n), PLANTED) for _ in range(DRAWS)]
    print(
        f"| {PLANTED} among {2 * n} others, mean of {DRAWS} draws | shown | found | false pairs"
        " |\n|---|---|---|---|"
    )
    for most in SHOWN:
        share = (
            float(np.mean([len(hits(vectors, words, n, some, most)) for some in draws])) / PLANTED
        )
        report[str(most)] = share
        print(f"| the check | {most} | {share:.0%} | {most - share * PLANTED:.0f} |")
    print()
    return report


def main(folder: Path, threads: int) -> None:
    examples, fresh = read(), read(FRESH)
    texts, new = texts_of(examples), texts_of(fresh)
    states = hidden(folder, [*texts, *new], threads)
    raw, words = states[: len(texts)], wording(texts)
    parallel = (unit(raw) @ unit(raw).T)[np.triu_indices(len(texts), 1)].mean()
    print(f"Mean cosine of any two hidden states: {parallel:.2f}\n")
    report = {
        "all": table(examples, raw, words, list(WAYS), SHOWN),
        "few": few(raw, words, len(examples)),
        "fresh": table(fresh, states[len(texts) :], wording(new), list(WAYS)[-1:], SHOWN_FRESH),
    }
    path = Path("var/bench/meaning.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="a base model's folder; else the demo model, made below var/bench/",
    )
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    if given.model is None:
        from workers.prepare_demo_model import prepare

        given.model = prepare(Path("var/bench/demo-model"))
    main(given.model, given.threads)
