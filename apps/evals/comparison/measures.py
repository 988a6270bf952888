"""The measures by which evaluations are compared: each with the tasks' own means, the overall mean,
and the difference from the baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.core.intervals import LEVEL
from apps.evals.comparison.tables import Tables
from apps.evals.paired import Mean, corrected, difference, mean_of, pass_at, pass_hat
from apps.evals.stats import PASS_AT

RATE, REWARD, MS, TOKENS, USD = "rate", "reward", "ms", "tokens", "usd"


@dataclass(frozen=True)
class Measure:
    """`values`: [runs, tasks], NaN if unknown. `better`: 1 if more is better, -1 if less is, 0 for
    neither.
    """

    key: str
    title: str
    unit: str
    better: int
    values: np.ndarray

    @property
    def span(self) -> float | None:
        """The largest possible difference."""
        return 1.0 if self.unit == RATE else None


@dataclass(frozen=True)
class Cell:
    """A measure of one evaluation. `difference` is None for the baseline, and if the two cannot be
    compared.
    """

    value: Mean
    difference: Mean | None = None
    verdict: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "value": self.value.as_dict(),
            "difference": self.difference and self.difference.as_dict(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Line:
    measure: Measure
    cells: list[Cell]


def measures_of(tables: Tables) -> list[Measure]:
    """The measures that at least one of the evaluations has."""
    scored, passed = (tables.sums[name].astype(int) for name in ("scored", "passed"))
    most = min((run.samples_per_task for run in tables.runs), default=0)
    ks = [k for k in PASS_AT if 1 < k <= most]
    found = [
        Measure("success", "Success (pass@1)", RATE, 1, tables.rates),
        *(Measure(f"pass_at_{k}", f"pass@{k}", RATE, 1, pass_at(scored, passed, k)) for k in ks),
        *(Measure(f"pass_hat_{k}", f"pass^{k}", RATE, 1, pass_hat(scored, passed, k)) for k in ks),
        Measure("reward", "Mean reward", REWARD, 1, tables.mean("reward")),
        Measure("invalid", "Invalid outputs", RATE, -1, 1 - tables.mean("valid", "valid_known")),
        Measure("unsafe", "Unsafe actions", RATE, -1, tables.mean("unsafe")),
        Measure("correct_tool", "Correct tool", RATE, 1, tables.mean("tool_ok", "tool_known")),
        Measure(
            "correct_arguments",
            "Correct arguments",
            RATE,
            1,
            tables.mean("arguments", "arguments_known"),
        ),
        Measure(
            "execution_success",
            "Execution success",
            RATE,
            1,
            tables.mean("executed", "executed_known"),
        ),
        Measure("latency_ms", "Latency", MS, -1, tables.mean("latency", "timed")),
        Measure("input_tokens", "Tokens in", TOKENS, -1, tables.mean("input", "input_known")),
        Measure("output_tokens", "Tokens out", TOKENS, -1, tables.mean("output", "output_known")),
        Measure("cost_usd", "Cost per answer", USD, -1, tables.cost),
    ]
    return [measure for measure in found if not np.isnan(measure.values).all()]


def lines_of(
    measures: Iterable[Measure],
    groups: np.ndarray | None,
    comparable: Collection[int],
    comparisons: int = 0,
) -> list[Line]:
    """`comparable`: the numbers of the evaluations that the first is compared with. The intervals
    of all differences hold simultaneously, over all lines, or over `comparisons` of them; the
    interval of a value is independent.
    """
    chosen = list(measures)
    level = corrected(comparisons or len(chosen) * len(comparable))
    return [Line(one, cells_of(one, groups, comparable, level)) for one in chosen]


def cells_of(
    measure: Measure, groups: np.ndarray | None, comparable: Collection[int], level: float
) -> list[Cell]:
    bounds = (0.0, 1.0) if measure.unit == RATE else None
    found = []
    for at, values in enumerate(measure.values):
        value = mean_of(values, level=LEVEL, bounds=bounds)
        if at == 0 or at not in comparable:
            found.append(Cell(value))
            continue
        gap = difference(measure.values[0], values, groups, level=level, span=measure.span)
        found.append(Cell(value, gap, verdict_of(gap, measure.better)))
    return found


def verdict_of(gap: Mean, better: int) -> str:
    """“better” or “worse” if the interval excludes 0; “differs” if neither direction is better."""
    if not gap.sign:
        return ""
    return "differs" if not better else "better" if gap.sign == better else "worse"


@dataclass(frozen=True)
class Counts:
    """How many tasks an evaluation won, lost, and left unchanged against the baseline, by the share
    of passes.
    """

    won: int
    lost: int
    same: int


def counts_of(tables: Tables, at: int) -> Counts:
    gaps = tables.rates[at] - tables.rates[0]
    return Counts(int((gaps > 0).sum()), int((gaps < 0).sum()), int((gaps == 0).sum()))


def shared(tables: Tables, at: int) -> int:
    """The number of tasks that both this evaluation and the baseline could score."""
    return int((~np.isnan(tables.rates[0]) & ~np.isnan(tables.rates[at])).sum())


def sequence(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "key": line.measure.key,
            "title": line.measure.title,
            "unit": line.measure.unit,
            "better": line.measure.better,
            "cells": [cell.as_dict() for cell in line.cells],
        }
        for line in lines
    ]
