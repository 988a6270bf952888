"""The gate's input and output. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from apps.evals.stats import SampleRow

Verdict = Literal["promote", "reject", "inconclusive"]
State = Literal["better", "same", "worse", "inconclusive", "not judged"]


def points(share: float) -> str:
    """The difference of two rates, in percentage points."""
    return f"{100 * share:+.1f} pp"


class NotComparable(Exception):
    """Two evaluations that cannot be compared; the message says why and what to do."""


@dataclass(frozen=True)
class Timing:
    """Latencies that a job measured in turns with other models. Only those of one job may be
    compared.
    """

    job: str
    how: str  # how adapters were served
    latencies: dict[str, list[float]]  # task id → ms, each above 0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation, as the gate needs it."""

    model: str
    eval_set_digest: str
    task_hash: str  # hash of the task; the agent's part may differ
    verifier_hash: str
    samples_per_task: int
    rows: Sequence[SampleRow]
    keys: dict[str, str] = field(default_factory=dict)  # task id → readable key
    timing: Timing | None = None
    planned: Sequence[
        str
    ] = ()  # all tasks of the split, if it may have been stopped before all were done
    agent: dict = field(default_factory=dict)  # the agent's part: prompt, examples, sampling
    # task id → group it was made from; a task without an entry is its own group
    groups: dict[str, str] = field(default_factory=dict)
    # version of the judge and the remote server, where they score; None if unknown
    scorer: dict[str, str | None] = field(default_factory=dict)
    # evaluations of this model on these tasks up to this one, among which it could have been chosen
    tries: int = 1
    engine: str = ""  # the engine that generated it, in words
    # The digest of the agent in whose loop it answered ("": the built-in one), and whether that
    # agent was chosen to play, and is not the model itself.
    harness: str = ""
    is_played: bool = False


@dataclass(frozen=True)
class Check:
    """One check: what was compared, the result, and what it means for the verdict.

    `low` and `high` are the 95% interval of the difference (of the ratio for latency and tokens).
    `decides` says what would settle an open check: tasks to add, or a margin that this many tasks
    can meet.
    """

    name: str
    title: str
    state: State
    required: bool
    baseline: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    high: float | None
    n: int
    sentence: str
    decides: str = ""


@dataclass(frozen=True)
class Report:
    """The gate's decision. `checks` in reading order, success first."""

    verdict: Verdict
    summary: str
    checks: list[Check]
    regressed: list[str]
    improved: list[str]
    comparison: int  # number of the comparison on these tasks against this baseline, from 1
    level: float  # the error that this comparison may make
    tasks: int = 0  # how many were compared
    planned: int = 0  # of this many; fewer are compared only if the policy is sequential
    agent_changes: list[tuple[str, str]] = field(
        default_factory=list
    )  # (kind, line), see `changed_lines`
    notes: list[str] = field(
        default_factory=list
    )  # other differences between the two evaluations that may explain a difference
    new_kinds: list[dict[str, Any]] = field(default_factory=list)  # see `unsafe.NewKind`

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
