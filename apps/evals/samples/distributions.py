"""Latency, tokens and cost of samples as distributions, for one evaluation or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db.models import QuerySet

from apps.core.charts import BAD, GOOD, UNKNOWN, bars, lines
from apps.evals.costs import price_of, rates_of
from apps.evals.models import EvalRun, Sample

BINS = 30
# what lies above this quantile is counted in the last bar, so that one slow answer does not squeeze
# the others
REST = 0.995
KINDS = {
    "latency_ms": "Latency, ms",
    "input_tokens": "Tokens in",
    "output_tokens": "Tokens out",
    "cost": "Cost, US cents",
}
OUTCOMES = {"passed": GOOD, "failed": BAD, "masked": UNKNOWN}


@dataclass(frozen=True)
class Measured:
    """Measurements of the samples of an evaluation: an array for each of KINDS, NaN if unknown."""

    values: Mapping[str, np.ndarray]
    outcome: np.ndarray

    def known(self, kind: str, outcome: str = "") -> np.ndarray:
        found = self.values[kind]
        chosen = ~np.isnan(found) & ((self.outcome == outcome) if outcome else True)
        return found[chosen]


def measured(run: EvalRun, rows: QuerySet[Sample] | None = None) -> Measured:
    chosen = run.samples.all() if rows is None else rows
    found = chosen.order_by().values_list(
        "latency_ms", "input_tokens", "output_tokens", "success", "masked"
    )
    table = np.array(
        [tuple(np.nan if value is None else value for value in row) for row in found], dtype=float
    ).reshape(-1, 5)
    rates = rates_of(price_of(run))
    cents = (table[:, 1] * rates[0] + table[:, 2] * rates[1]) * 100
    outcome = np.where(table[:, 4] > 0, "masked", np.where(table[:, 3] > 0, "passed", "failed"))
    return Measured(
        {
            "latency_ms": table[:, 0],
            "input_tokens": table[:, 1],
            "output_tokens": table[:, 2],
            "cost": cents,
        },
        outcome,
    )


def edges_of(values: np.ndarray) -> np.ndarray:
    """The borders of the bars; a single bar around equal values."""
    low, high = float(values.min()), float(np.quantile(values, REST))
    if high <= low:
        half = abs(low) / 20 or 0.5
        return np.array([low - half, low + half])
    return np.linspace(low, high, BINS + 1)


def counted(values: np.ndarray, edges: np.ndarray) -> list[int]:
    """The count in each bar; values beyond the ends are in the first and the last."""
    return np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].tolist()


def middles(edges: np.ndarray) -> list[float]:
    return ((edges[:-1] + edges[1:]) / 2).tolist()


def summary(values: np.ndarray) -> dict[str, float | int]:
    p50, p95 = np.quantile(values, [0.5, 0.95]).tolist()
    return {
        "n": len(values),
        "p50": p50,
        "p95": p95,
        "mean": float(values.mean()),
        "sum": float(values.sum()),
    }


def figures(found: Measured) -> list[tuple[str, dict]]:
    """(id, chart) for each kind that was measured: bars, stacked by outcome."""
    made = []
    for kind, title in KINDS.items():
        values = found.known(kind)
        if not len(values):
            continue
        edges, numbers = edges_of(values), summary(values)
        xs = middles(edges)
        series = {
            name: (xs, counted(found.known(kind, name), edges))
            for name in OUTCOMES
            if len(found.known(kind, name))
        }
        words = f"{title}: median {_short(numbers['p50'])}, p95 {_short(numbers['p95'])}"
        if kind == "cost":
            words += f", total ${numbers['sum'] / 100:,.4f}"
        made.append(
            (
                f"d-{kind}",
                bars(
                    series,
                    words,
                    y=f"samples (n = {numbers['n']:,})",
                    stacked=True,
                    colours=OUTCOMES,
                ),
            )
        )
    return made


def compared(found: Sequence[tuple[str, Measured]]) -> list[tuple[str, dict]]:
    """(id, chart) for each kind that at least one was measured by: the share of samples, a line for
    each evaluation.
    """
    made = []
    for kind, title in KINDS.items():
        known = [(name, item.known(kind)) for name, item in found]
        known = [(name, values) for name, values in known if len(values)]
        if not known:
            continue
        edges = edges_of(np.concatenate([values for _, values in known]))
        xs = middles(edges)
        series: dict[str, Any] = {
            name: (xs, [100 * n / len(values) for n in counted(values, edges)])
            for name, values in known
        }
        chart = lines(series, title, x="", y="% of samples", height=250)
        chart["layout"]["yaxis"]["rangemode"] = (
            "tozero"  # or one line at 100% would have an axis about 100
        )
        made.append((f"d-{kind}", chart))
    return made


def _short(value: float | int) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
