"""What the samples of an evaluation can be filtered by, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count

from apps.evals.comparison.modes import NO_BUCKET, UNMATCHED
from apps.evals.models import EvalRun
from apps.evals.samples.filters import OUTCOMES

MOST = 200  # of tools or tags, the most frequent
COLUMNS = ("mode", "success", "masked", "valid", "unsafe", "truncated", "tools", "tags")


@dataclass(frozen=True)
class Choice:
    value: str
    label: str
    n: int


@dataclass(frozen=True)
class Facets:
    total: int
    outcomes: list[Choice]
    buckets: list[Choice]
    tools: list[Choice]
    tags: list[Choice]


def facets_of(run: EvalRun) -> Facets:
    """In one pass over the samples: those that are alike in all columns are counted by the
    database.
    """
    total, outcomes, buckets, tools, tags = (
        0,
        Counter[str](),
        Counter[str](),
        Counter[str](),
        Counter[str](),
    )
    for *columns, n in run.samples.order_by().values_list(*COLUMNS).annotate(n=Count("pk")):
        mode, success, masked, valid, unsafe, truncated, called, tagged = columns
        total += n
        outcomes["masked" if masked else "passed" if success else "failed"] += n
        outcomes["invalid"] += n * (valid is False and not masked)
        outcomes["unsafe"] += n * unsafe
        outcomes["truncated"] += n * truncated
        if mode or not (success or masked):
            buckets[mode or NO_BUCKET] += n
        for counter, names in ((tools, called), (tags, tagged)):
            counter.update(dict.fromkeys(names, n))
    return Facets(
        total=total,
        outcomes=[Choice(name, label, outcomes[name]) for name, (label, _) in OUTCOMES.items()],
        buckets=_named(run, buckets),
        tools=[Choice(name, name, n) for name, n in _ordered(tools.items())],
        tags=[Choice(name, name, n) for name, n in _ordered(tags.items())],
    )


def _named(run: EvalRun, counts: Counter[str]) -> list[Choice]:
    """The failure modes, the most frequent first; at the end the failures that no rule matched."""
    names = dict(run.project.failure_modes.values_list("slug", "name"))
    rest = counts.pop(NO_BUCKET, 0)
    found = [Choice(mode, names.get(mode, mode), n) for mode, n in _ordered(counts.items())]
    return found + ([Choice(NO_BUCKET, UNMATCHED, rest)] if rest else [])


def _ordered(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda item: (-item[1], item[0]))[:MOST]
