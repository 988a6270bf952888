"""Compares variants of the judge on the same runs, on which people decided: agreement, recall,
false alarms, the blamed step and cost, each with an interval. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from apps.core.intervals import LEVEL, newcombe_paired, student, wilson
from apps.failures.judge.answer import Verdict

Interval = tuple[float, float, float]  # the value, and where it is


@dataclass(frozen=True)
class Answer:
    """A variant's verdict on a run (None: it gave none), what a person decided, and the cost in
    USD. `steps` are the agent's own messages.
    """

    verdict: Verdict | None
    failed: bool
    mode: str = ""
    step: int | None = None
    steps: Sequence[int] = ()
    usd: float = 0.0

    @property
    def says_failed(self) -> bool:
        return self.verdict is not None and self.verdict.failed

    @property
    def agrees(self) -> bool:
        return self.verdict is not None and self.verdict.failed == self.failed

    @property
    def steps_away(self) -> float:
        said = self.verdict.message_index if self.verdict else None
        return distance(self.steps, self.step, said)

    @property
    def same_mode(self) -> bool:
        return self.verdict is not None and self.verdict.mode == self.mode


def distance(steps: Sequence[int], true: int | None, said: int | None) -> float:
    """Between two messages of the agent, in agent steps."""
    if said not in steps or true not in steps:
        return float("inf")
    return abs(steps.index(true) - steps.index(said))


# {measure: (which runs it is about, whether an answer has it)}
MEASURES: dict[str, tuple[Callable[[Answer], bool], Callable[[Answer], bool]]] = {
    "agreement": (lambda _: True, lambda answer: answer.agrees),
    "recall": (lambda answer: answer.failed, lambda answer: answer.says_failed),
    "false_alarms": (lambda answer: not answer.failed, lambda answer: answer.says_failed),
    "same_mode": (lambda answer: bool(answer.mode), lambda answer: answer.same_mode),
    "step": (lambda answer: answer.step is not None, lambda answer: answer.steps_away == 0),
    "near": (lambda answer: answer.step is not None, lambda answer: answer.steps_away <= 1),
}


@dataclass(frozen=True)
class Share:
    hits: int
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Variant:
    """`shares` by measure; `differences` from the first variant, paired by run, in the measures
    that both know. `usd` is per run, with the difference from the first.
    """

    name: str
    n: int
    errors: int
    usd: float
    shares: dict[str, Share]
    differences: dict[str, Interval] = field(default_factory=dict)
    usd_difference: Interval | None = None


def compare(variants: Sequence[tuple[str, Sequence[Answer]]]) -> list[dict[str, Any]]:
    """Of at least one variant; all have the same runs in the same order. The intervals of the
    differences hold together (Bonferroni).
    """
    level = 1 - (1 - LEVEL) / max(1, len(variants) - 1)
    first = variants[0][1]
    return [
        asdict(_variant(name, answers, None if answers is first else first, level))
        for name, answers in variants
    ]


def _variant(
    name: str, answers: Sequence[Answer], first: Sequence[Answer] | None, level: float
) -> Variant:
    errors = sum(answer.verdict is None for answer in answers)
    usd = fmean(answer.usd for answer in answers) if answers else 0.0
    shares, differences = {}, {}
    for measure, (is_about, has) in MEASURES.items():
        hits = [has(answer) for answer in answers if is_about(answer)]
        if not hits:
            continue
        shares[measure] = Share(sum(hits), len(hits), *wilson(sum(hits), len(hits)))
        if first is not None:
            before = [has(answer) for answer in first if is_about(answer)]
            differences[measure] = _paired(before, hits, level)
    gap = None
    if first is not None:
        gaps = [after.usd - before.usd for before, after in zip(first, answers, strict=True)]
        gap = _mean(gaps, level)
    return Variant(name, len(answers), errors, usd, shares, differences, gap)


def _paired(before: Sequence[bool], after: Sequence[bool], level: float) -> Interval:
    pairs = list(zip(before, after, strict=True))
    counts = [pairs.count(pair) for pair in ((1, 1), (1, 0), (0, 1), (0, 0))]
    difference = (sum(after) - sum(before)) / len(pairs)
    return difference, *newcombe_paired(*counts, level)


def _mean(values: Sequence[float], level: float) -> Interval | None:
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = student(len(values) - 1, level) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def better(variants: Sequence[dict[str, Any]], measure: str) -> str:
    """The variant that is better than the first in this measure by an interval, the best of
    several; empty if none is.
    """
    shown = [
        (variant["shares"][measure]["hits"], variant["name"])
        for variant in variants[1:]
        if variant["differences"].get(measure, (0, 0, 0))[1] > 0
    ]
    return max(shown)[1] if shown else ""
