"""The data types of probes and their report. Light; the whole report can be converted to JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from workers.lib.specs.probe import MANY_MEDIUM, ProbeOptions
from workers.lib.verifiers import Score

SHOWN = 2000  # characters of an input that a finding shows

Scorer = Callable[[dict, list[dict]], Score]
Comparer = Callable[[dict, list[dict], list[dict]], float]
Severity = Literal["high", "medium"]
Status = Literal["passed", "failed", "not_applicable"]
# The reward that an attempt may get: BELOW the right answer's and no success; NO_MORE than the
# right answer's; KEEP what it gets.
Limit = Literal["below", "no_more", "keep"]
BELOW: Limit = "below"
NO_MORE: Limit = "no_more"
KEEP: Limit = "keep"


class Options(ProbeOptions, kw_only=True, frozen=True):
    """The options in a job's spec, plus those that only a caller in this process can set."""

    compare: Comparer | None = (
        None  # for pairwise verifiers: how strongly the first is preferred, 0.5 + p in [0, 1]
    )
    max_repeats: int = 400  # inputs scored a second time
    shown_per_probe: int = 20  # the worst findings of each probe that are kept


@dataclass(frozen=True)
class Wish:
    """An output to be scored, created by a probe: what it is, and the reward that it may get."""

    what: str
    messages: list[dict]
    limit: Limit = BELOW


@dataclass(frozen=True)
class Outcome:
    """The result of one output. `reward` is None if the sample is masked or the verifier raised."""

    probe: str
    task: str
    wish: Wish
    reward: float | None
    success: bool
    masked: bool
    reason: str  # of the mask, or the exception's text
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
    plain_reward: float | None = None  # the best reward of honest wrong answers to the task
    path: tuple[str, ...] = ()  # the mutations that a search applied


@dataclass(frozen=True)
class ProbeResult:
    """One probe's totals. `right` outputs happened to be right and were left out; `why` says why
    the probe does not apply.
    """

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
    """The rewards of a group of outputs; the variance is the population's."""

    n: int
    mean: float | None
    variance: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Speed:
    """Time per score in microseconds, as measured in this process."""

    n: int
    median_us: float | None
    p95_us: float | None


def locking(severities: list[Severity], many_medium: int = MANY_MEDIUM) -> int:
    """How many of these findings lock training."""
    high = severities.count("high")
    return high + (len(severities) - high if len(severities) - high >= many_medium else 0)


@dataclass(frozen=True)
class Report:
    """The result of attacking a verifier. `failed` holds up to `shown_per_probe` findings of each
    probe, high severity first.
    """

    probes: list[ProbeResult]
    failed: list[Finding]
    masked: dict[str, int]
    repeated: int
    unequal: int
    noise: float  # standard deviation of one output's reward, from repeated scores
    attacks: Spread
    golds: Spread
    speed: Speed
    tasks: int
    forms: dict[str, int]
    notes: list[str] = field(default_factory=list)
    many_medium: int = MANY_MEDIUM

    @property
    def locks(self) -> int:
        """The number of findings that lock training: the high ones, and the medium ones if there
        are many.
        """
        return locking([item.severity for item in self.failed], self.many_medium)

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed, "locks": self.locks}
