"""What a probe is, and what is reported. Light: the standard library only; all of a report is JSON-able."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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

# Forms that any reader of JSON takes for the same; the rest only where the verifier says that it tolerates them.
ALWAYS_PROMISED = frozenset({"key_order", "json_space", "number", "parallel_order"})


@dataclass(frozen=True)
class Options:
    """How hard to attack, and what the verifier promises."""

    margin: float = 0.02  # a wrong answer must stay this share of max(1, |right one's reward|) below the right one
    slack: float = (
        0.1  # a medium finding: paid more than this above what the output's merit explains, as a share of the range
    )
    steep: float = 0.5  # a high one
    stochastic: bool = False  # whether the same output may get another reward each time, as a judge's
    repeats: int = 8  # fresh scores that must confirm a finding where rewards vary
    rubrics: tuple[str, ...] = ()  # texts of the verifier that a policy may have seen
    many_medium: int = 5  # so many medium findings lock as a high one does
    tolerance: float = 1e-6  # a right answer in another form may get this much less
    noise: float = 1e-9  # two scores of one input may differ by this much
    promises: frozenset[str] = ALWAYS_PROMISED  # names of `perturbations.PROBES` that must not lose
    dangerous: frozenset[str] = frozenset()  # tools that do harm, besides those marked x-dangerous
    success_at: float | None = None  # a reward that counts as success, for verifiers that do not say so themselves
    multi_turn: bool = False  # whether an agent may speak several times
    compare: Comparer | None = None  # pairwise verifiers: how far the first is preferred, 0.5 + p in [0, 1]
    max_tasks: int = 40
    max_scores: int = 20_000  # first passes; a judge that costs money needs less
    max_repeats: int = 400  # inputs scored a second time
    search_scores: int = 1200  # scores that the search may ask for; 0: no search
    search_cpu_s: float = 60.0  # CPU seconds of this process that it may take
    seed: int = 0  # of the search
    shown_per_probe: int = 20  # findings kept of one probe, the worst


@dataclass(frozen=True)
class Wish:
    """An output to be scored, as a probe makes it: what it is, and what it may get."""

    what: str
    messages: list[dict]
    limit: Limit = BELOW


@dataclass(frozen=True)
class Outcome:
    """What one output got. `reward` is None where the sample is masked or the verifier raised."""

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


def locking(severities: list[Severity], many_medium: int = Options.many_medium) -> int:
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
    many_medium: int = Options.many_medium

    @property
    def locks(self) -> int:
        """Findings that keep training locked: the high ones, and the medium ones where there are many."""
        return locking([item.severity for item in self.failed], self.many_medium)

    @property
    def passed(self) -> bool:
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed, "locks": self.locks}
