"""Answers in mathematics: ours and math-verify alone, against pairs of known truth. See README.md.

`python -m bench.maths [--file PAIRS] [--tests MATH-VERIFY] [--wrong]`: errors, false positives and
false negatives by kind.
"""

from __future__ import annotations

import argparse
import ast
import resource
import subprocess
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
    """Lines “= GOLD :: ANSWER” are right, “! GOLD :: ANSWER” wrong; “# KIND” heads a group; ⏎ in an
    answer is the end of a line.
    """
    kind = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
        elif line[:2] in ("= ", "! "):
            gold, answer = line[2:].split(" :: ", 1)
            yield Pair(kind, gold, answer.replace("⏎", "\n"), line[0] == "=")


def their_pairs(repository: Path) -> Iterator[Pair]:
    """The (gold, prediction, verdict) triples in the tests of a clone of huggingface/Math-Verify;
    `repository` may be bare.
    """
    for name in (
        "test_all",
        "test_numina_cases",
        "test_open_thoughts",
        "test_yujianll",
        "test_boxed",
    ):
        source = subprocess.run(
            ["git", "-C", repository, "show", f"HEAD:tests/{name}.py"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for node in ast.walk(ast.parse(source)):
            values = (
                [item.value for item in node.elts if isinstance(item, ast.Constant)]
                if isinstance(node, ast.Tuple)
                else []
            )
            if (
                len(values) >= 3
                and isinstance(values[0], str)
                and isinstance(values[1], str)
                and values[2] in (0, 1)
            ):
                yield Pair(name, values[0], values[1], bool(values[2]))


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
    parser.add_argument(
        "--tests",
        type=Path,
        help="a clone of Math-Verify, whose own test pairs are judged by ours instead",
    )
    parser.add_argument("--wrong", action="store_true", help="print the pairs that ours gets wrong")
    parser.add_argument("--ours", action="store_true", help="leave math-verify out")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # math-verify has no limit of memory
    counts: Counter = Counter()
    judges = (
        {"ours": ours} if chosen.ours or chosen.tests else {"ours": ours, "math-verify": theirs}
    )
    for pair in their_pairs(chosen.tests) if chosen.tests else pairs(chosen.file):
        counts[pair.kind, "n"] += 1
        for name, judge in judges.items():
            try:
                verdict = judge(pair)
            except Exception as error:
                verdict = None
                print(f"{name}: {type(error).__name__} for {pair}")
            if verdict != pair.truth:
                counts[
                    pair.kind,
                    name,
                    (
                        "masked"
                        if verdict is None
                        else "false positive"
                        if verdict
                        else "false negative"
                    ),
                ] += 1
                if chosen.wrong and name == "ours":
                    print(
                        f"{'MASKED' if verdict is None else 'PAID' if verdict else 'REFUSED'}"
                        f" {pair.gold} :: {pair.answer}"
                    )
    report(counts, list(judges))


def report(counts: Counter, names: list[str]) -> None:
    faults = ("false positive", "false negative", "masked")
    print(
        "| kind | pairs | "
        + " | ".join(f"{name}: paid wrongly | refused wrongly | masked" for name in names)
        + " |"
    )
    print("|---" * (2 + 3 * len(names)) + "|")
    kinds = [key[0] for key in counts if key[1:] == ("n",)]
    for kind in [*kinds, "all"]:
        cells = [sum(counts[k, "n"] for k in (kinds if kind == "all" else [kind]))]
        cells += [
            sum(counts[k, name, f] for k in (kinds if kind == "all" else [kind]))
            for name in names
            for f in faults
        ]
        print(f"| {kind} | " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
