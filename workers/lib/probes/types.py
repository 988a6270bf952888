"""What a probe is, and what is reported. Light; all of a report is JSON-able."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from workers.lib.specs import MANY_MEDIUM, ProbeOptions
from workers.lib.verifiers import Score

SHOWN = 2000  # characters of an input that a finding shows

Scorer = Callable[[dict, list[dict]], Score]
Comparer = Callable[[dict, list[dict], list[dict]], float]
Severity = Literal["high", "medium"]
Status = Literal["passed", "failed", "not_applicable"]
# What an attempt may get: BELOW the right answer and no success; NO_MORE than the right answer; KEEP what it gets.
Limit = Literal["below", "no_more", "keep"]
BELOW: Limit = "below"
NO_MORE: Limit = "no_more"
KEEP: Limit = "keep"


class Options(ProbeOptions, kw_only=True, frozen=True):
    """Those of a job's spec, and what only a caller in this process can say."""

    compare: Comparer | None = None  # pairwise verifiers: how far the first is preferred, 0.5 + p in [0, 1]
    max_repeats: int = 400  # inputs scored a second time
    shown_per_probe: int = 20  # findings kept of one probe, the worst


@dataclass(frozen=True)
class Wish:
    """An output to be scored, as a probe makes it: what it is, and what it may get."""

    what: str
    messages: list[dict]
    limit: Limit = BELOW


@dataclass(frozen=True)
class Outcome:
    """What one output got. `reward` is None if the sample is masked or the verifier raised."""

    probe: str
    task: str
    wish: Wish
    reward: float | None
    success: bool
    masked: bool
    reason: str  # of the mask, or the exception
    raised: bool
    micros: float


@dataclass(frozen=True)
class Finding:
    """One output that got more, or less, than it should."""

    probe: str
    task: str
    severity: Severity
    what: str
    shown: str
    reward: float | None
    gold_reward: float | None
    reason: str
    plain_reward: float | None = None  # what honest wrong answers to the task get at best
    path: tuple[str, ...] = ()  # how a search made it


@dataclass(frozen=True)
class ProbeResult:
    """One probe's sums. `right` outputs happened to be right and were left out; `why` says why it does not apply."""

    name: str
    kind: Literal["attack", "perturbation", "measure", "search"]
    about: str
    status: Status
    n: int = 0
    mean_reward: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    masked: int = 0
    right: int = 0
    findings: int = 0
    why: str = ""


@dataclass(frozen=True)
class Spread:
    """Rewards of a group of outputs; the variance is that of the population."""

    n: int
    mean: float | None
    variance: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Speed:
    """Time of one score in microseconds, as this process saw it."""

    n: int
    median_us: float | None
    p95_us: float | None


def locking(severities: list[Severity], many_medium: int = MANY_MEDIUM) -> int:
    """How many of these findings keep training locked."""
    high = severities.count("high")
    return high + (len(severities) - high if len(severities) - high >= many_medium else 0)


@dataclass(frozen=True)
class Report:
    """What attacking a verifier showed. `failed` holds up to `shown_per_probe` findings of each probe, high first."""

    probes: list[ProbeResult]
    failed: list[Finding]
    masked: dict[str, int]
    repeated: int
    unequal: int
    noise: float  # standard deviation of one output's reward, from the repeated ones
    attacks: Spread
    golds: Spread
    speed: Speed
    tasks: int
    forms: dict[str, int]
    notes: list[str] = field(default_factory=list)
    many_medium: int = MANY_MEDIUM

    @property
    def locks(self) -> int:
        """Findings that keep training locked: the high ones, and the medium ones where there are many."""
        return locking([item.severity for item in self.failed], self.many_medium)

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed, "locks": self.locks}
