"""Answers in mathematics: ours and math-verify alone, against pairs of known truth. See README.md.

`python -m bench.maths [--file PAIRS] [--wrong]`: errors, false positives and false negatives by kind.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAIRS = Path(__file__).parent / "data" / "maths_pairs.txt"


@dataclass(frozen=True, slots=True)
class Pair:
    kind: str
    gold: str
    answer: str
    truth: bool


def pairs(path: Path = PAIRS) -> Iterator[Pair]:
    """Lines “= GOLD :: ANSWER” are right, “! GOLD :: ANSWER” wrong; “# KIND” heads a group; ⏎ in an answer is the end of a line."""
    kind = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
        elif line[:2] in ("= ", "! "):
            gold, answer = line[2:].split(" :: ", 1)
            yield Pair(kind, gold, answer.replace("⏎", "\n"), line[0] == "=")


def ours(pair: Pair) -> bool | None:
    from workers.lib.verifiers import Rollout, build

    task = {"id": "t", "messages": [], "expected": {"answer": pair.gold}}
    score = build({"kind": "math"}).score(Rollout.of_text(task, pair.answer))
    return None if score.masked else score.success


def theirs(pair: Pair) -> bool:
    """With the defaults. A bare answer goes between dollar signs, as its documentation asks for."""
    from math_verify import parse, verify

    is_bare = not any(sign in pair.answer for sign in ("$", "\\boxed", "\\(", "\\[", "nswer"))
    return verify(parse(f"${pair.gold}$"), parse(f"${pair.answer}$" if is_bare else pair.answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=PAIRS)
    parser.add_argument("--wrong", action="store_true", help="print the pairs that ours gets wrong")
    parser.add_argument("--ours", action="store_true", help="leave math-verify out")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # math-verify has no limit of memory
    counts: Counter = Counter()
    judges = {"ours": ours} if chosen.ours else {"ours": ours, "math-verify": theirs}
    seconds: Counter = Counter()
    for pair in pairs(chosen.file):
        counts[pair.kind, "n"] += 1
        for name, judge in judges.items():
            started = time.process_time()
            try:
                verdict = judge(pair)
            except Exception as error:
                verdict = None
                print(f"{name}: {type(error).__name__} for {pair}")
            seconds[name] += time.process_time() - started
            if verdict != pair.truth:
                counts[
                    pair.kind, name, "masked" if verdict is None else "false positive" if verdict else "false negative"
                ] += 1
                if chosen.wrong and name == "ours":
                    print(
                        f"{'MASKED' if verdict is None else 'PAID' if verdict else 'REFUSED'} {pair.gold} :: {pair.answer}"
                    )
    report(counts, list(judges))


def report(counts: Counter, names: list[str]) -> None:
    faults = ("false positive", "false negative", "masked")
    print("| kind | pairs | " + " | ".join(f"{name}: paid wrongly | refused wrongly | masked" for name in names) + " |")
    print("|---" * (2 + 3 * len(names)) + "|")
    kinds = [key[0] for key in counts if key[1:] == ("n",)]
    for kind in [*kinds, "all"]:
        cells = [sum(counts[k, "n"] for k in (kinds if kind == "all" else [kind]))]
        cells += [
            sum(counts[k, name, f] for k in (kinds if kind == "all" else [kind])) for name in names for f in faults
        ]
        print(f"| {kind} | " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
