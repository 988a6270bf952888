"""Near-duplicates among 100,000 tasks. `python -m bench.near_duplicates [--tasks 100000] [--held 10000] [--words 30]`

Makes tasks from templates with slots and free words, plants paraphrases of held-out ones, then times signatures, tasks
against the hold-out, and tasks against each other; says how many of the planted ones were found. Writes var/bench/near_duplicates.json.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apps.evals.near_duplicates.compare import Document, document, pairs, signatures

TEMPLATES, VOCABULARY, NAMES, PLANTED = 300, 6000, 800, 500
FILLER = ("please", "hey, could you kindly", "thanks a lot", "when you have a moment")
Item = tuple[str, Document]


def made_word(rng: random.Random) -> str:
    return "".join(rng.choice("bcdfglmnprstv") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))


class Templates:
    """Requests as production has them: few templates, many names, numbers and days, some words of the user's own."""

    def __init__(self, words: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.words = [made_word(self.rng) for _ in range(VOCABULARY)]
        self.names = [made_word(self.rng).title() for _ in range(NAMES)]
        self.own = max(2, words // 3)
        self.templates = [self.rng.sample(self.words, max(3, words - self.own - 3)) for _ in range(TEMPLATES)]

    def task(self) -> tuple[list[str], dict]:
        """The words of a request, and its call."""
        rng, number = self.rng, self.rng.randrange(len(self.templates))
        name, amount, day = rng.choice(self.names), rng.randint(10, 99_999), rng.choice(("Monday", "Friday", "3 May"))
        text = [*self.templates[number], name, str(amount), day, *rng.sample(self.words, self.own)]
        return text, {"tool": f"tool_{number}", "args": {"who": name, "amount": amount, "day": day}}

    def paraphrase(self, text: list[str]) -> str:
        """The same words in another order and case, with fillers and punctuation."""
        cut = self.rng.randrange(1, len(text))
        turned = " ".join(text[cut:] + text[:cut])
        return f"{self.rng.choice(FILLER).upper()}: {turned.swapcase()} — {self.rng.choice(FILLER)}!"


def asked(text: str, expected: dict) -> Document:
    return document([{"role": "user", "content": text}], expected)


def timed(name: str, act: Callable[[], Any], seconds: dict[str, float]) -> Any:
    began = time.perf_counter()
    made = act()
    seconds[name] = round(time.perf_counter() - began, 1)
    print(f"{name}: {seconds[name]} s")
    return made


def texts_with_planted(
    tasks: int, held: int, words: int
) -> tuple[list[tuple[str, str, dict]], list[tuple[str, str, dict]]]:
    """(key, text, expected) of tasks and of held-out ones; the first PLANTED tasks are paraphrases of held-out ones."""
    templates = Templates(words, seed=0)
    out = [templates.task() for _ in range(held)]
    count = min(PLANTED, held, tasks)
    planted = [(f"planted-{i}", templates.paraphrase(text), expected) for i, (text, expected) in enumerate(out[:count])]
    rest = [
        (f"task-{i}", " ".join(text), expected)
        for i, (text, expected) in enumerate(templates.task() for _ in range(tasks - count))
    ]
    return planted + rest, [(f"held-{i}", " ".join(text), expected) for i, (text, expected) in enumerate(out)]


def run(tasks: int, held: int, words: int) -> dict:
    seconds: dict[str, float] = {}
    given = timed("inventing texts", lambda: texts_with_planted(tasks, held, words), seconds)
    left, right = timed(
        "normalising", lambda: [[(key, asked(text, calls)) for key, text, calls in side] for side in given], seconds
    )
    timed("signatures", lambda: signatures(one for _, one in left), seconds)
    across = timed("against the hold-out", lambda: pairs(left, right), seconds)
    within = timed("against each other", lambda: pairs(left), seconds)
    found = {(a, b) for a, b, _ in across}
    planted = [key for key, _ in left if key.startswith("planted-")]
    caught = sum((key, key.replace("planted", "held")) in found for key in planted)
    return {
        "tasks": tasks, "held": held, "words": words, "seconds": seconds, "planted": len(planted), "caught": caught,
        "pairs across": len(across), "pairs within": len(within),
        "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--tasks", 100_000), ("--held", 10_000), ("--words", 30)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    report = run(options.tasks, options.held, options.words)
    path = Path("var/bench/near_duplicates.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
