"""One verifier of the suite, and which of them tuning must not look at."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.lib.probes import Scorer
from workers.lib.verifiers import Clients, Rollout, Score, build

Grade = Callable[[dict, str], float]


@dataclass(frozen=True)
class Entry:
    """`make(clients)` gives a fresh scorer for outputs to tasks of the kind `tasks`
    (bench.probe_suite.tasks).

    `spec` is that of a built-in verifier, for what it promises; `model` names the judge stand-in
    that it asks.
    """

    name: str
    kind: str
    tasks: str
    make: Callable[[Clients], Scorer]
    spec: dict = field(default_factory=dict)
    model: str = ""


def held_out(entries: list[Entry]) -> frozenset[str]:
    """Names of every third entry of each kind, by the digest of its name: fixed before anything was
    tuned.
    """
    by_kind: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        by_kind[entry.kind].append(entry.name)
    ordered = [
        sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        for names in by_kind.values()
    ]
    return frozenset(name for names in ordered for name in names[::3])


def built(spec: dict) -> Callable[[Clients], Scorer]:
    """The built-in verifier of a spec."""

    def make(clients: Clients) -> Scorer:
        verifier = build(spec, clients=clients)
        return lambda task, messages: verifier.score(
            Rollout(task=task, messages=messages, tools=task.get("tools") or [])
        )

    return make


def text_of(messages: list[dict]) -> str:
    return str(messages[-1].get("content") or "") if messages else ""


def graded(grade: Grade, success_at: float = 1.0) -> Callable[[Clients], Scorer]:
    """A verifier of the team's own code: a reward by the task and the output's text."""

    def score(task: dict, messages: list[dict]) -> Score:
        reward = float(grade(task, text_of(messages)))
        return Score(reward=reward, success=reward >= success_at)

    return lambda clients: score
