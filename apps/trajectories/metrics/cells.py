"""What is known of a group of trajectories, added up, and the figures that it gives. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apps.core.intervals import wilson
from apps.trajectories.metrics import sketch
from apps.trajectories.metrics.sketch import Sketch
from workers.lib.prices import AT_LEAST, COMPLETE, PRICED, Cost
from workers.lib.token_usage import TOKENS

# What is added up of tokens and money; `unpriced` are runs whose whole cost is not known.
SPENT = (*TOKENS, "cost_usd", "unpriced")
COUNTED = ("runs", "failed", "unknown", *SPENT)
SKETCHED = ("latency", "cost", "tokens")
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one trajectory: what cells add up. `spent` are SPENT; `buckets` are of SKETCHED, None
    if the number is not known.
    """

    failed: bool
    unknown: bool
    spent: tuple[float, ...]
    buckets: tuple[int | None, int | None, int | None]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Numbers:
        """`row` has the columns of a Trajectory by name."""
        outcome, cost, sent, got = (
            row[name] for name in ("outcome_status", "cost_usd", "input_tokens", "output_tokens")
        )
        tokens = None if sent is None and got is None else (sent or 0) + (got or 0)
        buckets = [
            None if value is None else sketch.bucket_of(value)
            for value in (row["latency_ms"], cost, tokens)
        ]
        unknown = outcome not in ("failure", "success")
        spent = [row[name] or 0 for name in (*TOKENS, "cost_usd")]
        unpriced = row["cost_basis"] not in COMPLETE
        return cls(outcome == "failure", unknown, (*spent, int(unpriced)), tuple(buckets))


@dataclass(slots=True)
class Cell:
    """Sums and distributions of some trajectories. Cells of different trajectories can be
    merged.
    """

    runs: int = 0
    failed: int = 0
    unknown: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    latency: Sketch = field(default_factory=dict)
    cost: Sketch = field(default_factory=dict)
    tokens: Sketch = field(default_factory=dict)

    def add(self, one: Numbers, sign: int = 1) -> None:
        """Counts a trajectory; a `sign` of -1 takes it away."""
        self.runs += sign
        self.failed += sign * one.failed
        self.unknown += sign * one.unknown
        for name, value in zip(SPENT, one.spent, strict=True):
            if value:
                setattr(self, name, getattr(self, name) + sign * value)
        for counts, bucket in zip((self.latency, self.cost, self.tokens), one.buckets, strict=True):
            if bucket is not None:
                counts[bucket] = counts.get(bucket, 0) + sign

    def merge(self, other: Cell) -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in SKETCHED:
            sketch.merge(getattr(self, name), getattr(other, name))

    @property
    def whole_cost(self) -> Cost:
        """At least what is known of it, where the cost of some runs is not."""
        if not self.cost:
            return Cost()
        return Cost(self.cost_usd, AT_LEAST if self.unpriced > 0 else PRICED)

    @property
    def known(self) -> int:
        """Trajectories whose outcome is known."""
        return self.runs - self.unknown

    @property
    def failure_interval(self) -> tuple[float, float]:
        """Wilson's, 95%, of the failure rate of known outcomes."""
        return wilson(min(max(self.failed, 0), max(self.known, 0)), max(self.known, 0))

    def as_list(self) -> list[Any]:
        return [getattr(self, name) for name in COUNTED] + [
            sketch.as_json(getattr(self, name)) for name in SKETCHED
        ]

    @classmethod
    def from_list(cls, given: list[Any]) -> Cell:
        counted = len(COUNTED)
        return cls(*given[:counted], *(sketch.from_json(item) for item in given[counted:]))


@dataclass(frozen=True)
class Measure:
    """A figure of a cell: `value` is None if the cell says nothing of it. `interval` where it is a
    proportion.
    """

    title: str
    unit: str  # of the value: runs, share, tokens, usd, ms
    value: Callable[[Cell], float | None]
    n: Callable[[Cell], int] = lambda cell: cell.runs
    interval: Callable[[Cell], tuple[float, float]] | None = None
    adds_up: bool = False  # of groups and of times: what has no runs is 0, and bars may be stacked


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _percentile(name: str, share: str) -> Callable[[Cell], float | None]:
    return lambda cell: sketch.percentiles(getattr(cell, name), (SHARES[share],))[0]


def _measured(name: str) -> Callable[[Cell], int]:
    return lambda cell: sum(getattr(cell, name).values())


def _spent(known: str, *names: str) -> Callable[[Cell], float | None]:
    """The sum of SPENT, None where no run tells of it: `known` of SKETCHED counts those that do."""

    def value(cell: Cell) -> float | None:
        told = any(n > 0 for n in getattr(cell, known).values())
        return sum(getattr(cell, name) for name in names) if told else None

    return value


MEASURES: dict[str, Measure] = {
    "runs": Measure("Runs", "runs", lambda cell: cell.runs, adds_up=True),
    "errors": Measure("Failed runs", "runs", lambda cell: cell.failed, adds_up=True),
    "failure_rate": Measure(
        "Failure rate (known outcomes)",
        "share",
        lambda cell: _share(cell.failed, cell.known),
        lambda cell: cell.known,
        lambda cell: cell.failure_interval,
    ),
    "unknown_rate": Measure(
        "Unknown outcomes", "share", lambda cell: _share(cell.unknown, cell.runs)
    ),
    "tokens": Measure(
        "Tokens", "tokens", _spent("tokens", "input_tokens", "output_tokens"), adds_up=True
    ),
    "input_tokens": Measure(
        "Input tokens", "tokens", _spent("tokens", "input_tokens"), adds_up=True
    ),
    "output_tokens": Measure(
        "Output tokens", "tokens", _spent("tokens", "output_tokens"), adds_up=True
    ),
    "cache_read_tokens": Measure(
        "Cached input tokens", "tokens", _spent("tokens", "cache_read_tokens"), adds_up=True
    ),
    "cache_write_tokens": Measure(
        "Cache-write tokens", "tokens", _spent("tokens", "cache_write_tokens"), adds_up=True
    ),
    "cache_share": Measure(
        "Input read from a cache",
        "share",
        lambda cell: _share(cell.cache_read_tokens, cell.input_tokens),
    ),
    "reasoning_tokens": Measure(
        "Reasoning tokens", "tokens", _spent("tokens", "reasoning_tokens"), adds_up=True
    ),
    "cost": Measure("Cost", "usd", _spent("cost", "cost_usd"), adds_up=True),
    "unpriced": Measure(
        "Runs without a known cost", "runs", lambda cell: cell.unpriced, adds_up=True
    ),
}
for _key, _title, _unit in (
    ("latency", "Latency", "ms"),
    ("cost", "Cost per run", "usd"),
    ("tokens", "Tokens per run", "tokens"),
):
    for _name in SHARES:
        MEASURES[f"{_key}_{_name}"] = Measure(
            f"{_title}, {_name}", _unit, _percentile(_key, _name), _measured(_key)
        )

# Several measures in one chart, where nothing is grouped; grouped, the last but one stands for
# them.
TOGETHER: dict[str, tuple[str, tuple[str, ...]]] = {
    "latency": ("Latency p50, p95, p99", tuple(f"latency_{name}" for name in SHARES)),
    "run_cost": ("Cost per run p50, p95, p99", tuple(f"cost_{name}" for name in SHARES)),
    "run_tokens": ("Tokens per run p50, p95, p99", tuple(f"tokens_{name}" for name in SHARES)),
}


def titles() -> dict[str, str]:
    """All that can be asked for, by key."""
    return {key: measure.title for key, measure in MEASURES.items()} | {
        key: name for key, (name, _) in TOGETHER.items()
    }
