"""How often the rules and the judge agree with people, and how often each agent version fails.

People's decisions are a sample that the layers themselves selected: mostly what they flagged was
looked at. So precision can be taken literally, while recall is an upper bound: a failure that no
layer flagged and nobody noticed is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet, Sum

from apps.core.intervals import wilson
from apps.core.models import Project
from apps.failures.agent_versions import KEY, AgentVersion, newest_first
from apps.failures.models import (
    DailyRuns,
    Failure,
    FailureDecision,
    FailureState,
    JudgeVerdict,
    Source,
)

NONE = ""  # no failure
DECIDING = ("decided", "marked")  # kinds of decisions that determine the mode
LAYERS = ("rules", "judge")
MOST_VERSIONS = 40
FEW = 10

Pair = tuple[str, str, frozenset[str]]  # the layer's mode, people's main mode, and all their modes


@dataclass(frozen=True)
class Share:
    """`hits` of `n` with Wilson's 95% interval; no `rate` if n is 0."""

    hits: int
    n: int

    @property
    def rate(self) -> float | None:
        return self.hits / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.hits, self.n)

    @property
    def is_small(self) -> bool:
        """Too few for a percentage to mean much: pages show the counts instead."""
        return self.n < FEW


@dataclass(frozen=True)
class Score:
    """One mode of one layer. Of the failures it missed, people changed `changed` and marked
    `marked` by hand.
    """

    mode: str
    precision: Share
    recall: Share
    changed: int
    marked: int


def scores(pairs: Mapping[Pair, int]) -> list[Score]:
    """A score for every mode that the layer or people used, by name.

    precision: the share of the layer's cases of this mode on which people agree. recall: the share
    of people's cases of this mode that the layer found.
    """
    modes = {called for called, _, _ in pairs} | {mode for _, _, true in pairs for mode in true}
    return [_score(mode, pairs) for mode in sorted(modes - {NONE})]


def _score(mode: str, pairs: Mapping[Pair, int]) -> Score:
    called = sum(n for (word, _, _), n in pairs.items() if word == mode)
    true = sum(n for (_, _, true), n in pairs.items() if mode in true)
    both = sum(n for (word, _, true), n in pairs.items() if word == mode and mode in true)
    marked = sum(n for (word, _, true), n in pairs.items() if word == NONE and mode in true)
    return Score(mode, Share(both, called), Share(both, true), true - both - marked, marked)


def agreement(pairs: Mapping[Pair, int]) -> Share:
    """Over all decided cases: the layer's mode is among people's, or both say that there is no
    failure.
    """
    same = sum(n for (word, first, true), n in pairs.items() if word in true or word == first)
    return Share(same, sum(pairs.values()))


def confusion(pairs: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """The layer's mode → people's main mode → cases; an empty mode means no failure."""
    table: dict[str, dict[str, int]] = {}
    for (called, first, _), n in pairs.items():
        row = table.setdefault(called, {})
        row[first] = row.get(first, 0) + n
    return table


# From the database


def decided(project: Project) -> QuerySet[Failure]:
    """The cases that people decided or marked by hand: a split or an assignment alone does not
    decide the mode.
    """
    rows = Failure.objects.filter(project=project, source=Source.PERSON).exclude(
        state=FailureState.OPEN
    )
    decision = FailureDecision.objects.filter(failure=OuterRef("pk"), after__kind__in=DECIDING)
    return rows.filter(Exists(decision)).order_by()


def pairs_of(project: Project, layer: str) -> Counter[Pair]:
    """Counted pairs of the layer's and people's modes. For the judge, only the cases it was asked
    about.
    """
    rows, column = decided(project), "rule_mode" if layer == "rules" else "judge_mode"
    if layer == "judge":
        rows = rows.filter(asked() | ~Q(judge_mode=NONE))
    pairs: Counter[Pair] = Counter()
    plain = rows.filter(also=None).values(column, "mode__slug", "state").annotate(n=Count("pk"))
    for row in plain:
        pairs[_pair(row[column], row["mode__slug"], row["state"], ())] += row["n"]
    for failure in (
        rows.exclude(also=None).distinct().select_related("mode").prefetch_related("also")
    ):
        also = [mode.slug for mode in failure.also.all()]
        pairs[_pair(getattr(failure, column), failure.mode.slug, failure.state, also)] += 1
    return pairs


def asked() -> Exists:
    """Whether the judge has answered on the current version of a failure's run: then an empty
    `judge_mode` is its verdict.
    """
    same = {
        "rubric__project": OuterRef("project"),
        "content_digest": OuterRef("trajectory__content_digest"),
    }
    return Exists(JudgeVerdict.objects.filter(error="", **same))


def _pair(called: str, mode: str, state: str, also: Iterable[str]) -> Pair:
    if state == FailureState.DISMISSED:
        return called, NONE, frozenset()
    return called, mode, frozenset((mode, *also))


@dataclass(frozen=True)
class Rate:
    of: AgentVersion
    failed: Share
    first: datetime


def by_version(project: Project, mode: str = "") -> list[Rate]:
    """The share of runs with a standing failure (of one mode), by agent version; the newest
    `MOST_VERSIONS`, oldest first.

    Runs are counted per hour as they are digested, failures as they are found: within seconds of
    each other.
    """
    failures = Failure.objects.filter(project=project).standing().order_by()
    failures = failures.filter(mode__slug=mode) if mode else failures
    failed = {
        (name, version): n for name, version, n in failures.values_list(*KEY).annotate(n=Count("*"))
    }
    runs = DailyRuns.objects.filter(project=project).order_by().values(*KEY)
    rates = [_rate(row, failed) for row in runs.annotate(n=Sum("runs"), first=Min("first"))]
    newest = newest_first({rate.of: rate.first for rate in rates})
    return sorted(rates, key=lambda rate: newest.index(rate.of), reverse=True)[-MOST_VERSIONS:]


def _rate(row: Mapping[str, Any], failed: Mapping[tuple, int]) -> Rate:
    key = AgentVersion(row["agent_name"], row["agent_version"])
    hits = failed.get(key, 0)
    return Rate(key, Share(min(hits, row["n"]), row["n"]), row["first"])
