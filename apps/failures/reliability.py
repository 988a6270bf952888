"""How often each confidence, and each rule, is right according to people's decisions.

It counts the cases that people decided, by the rules' deciding reason: a confirmed case is right if
its mode (or one split off) is that reason's. Cases that people marked by hand have no reason and
are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from apps.core.models import Project
from apps.failures.classify import CERTAIN, HINT, LIKELY
from apps.failures.judge.precedence import RULE
from apps.failures.measures import Share, decided
from apps.failures.models import FailureState

CONFIDENCES = (CERTAIN, LIKELY, HINT)
GOAL = 0.97  # goal for “certain”: below it the page says so
MOST_RULES = 40

Said = tuple[str, str]  # (rule, its confidence)


@dataclass(frozen=True)
class Right:
    """The share of a rule's, or a confidence's, cases on which people agreed; `rule` is empty for a
    confidence.
    """

    rule: str
    confidence: str
    share: Share


def by_confidence(counts: Counter[tuple[Said, bool]]) -> list[Right]:
    """Most certain first, including those that decided nothing."""
    return [
        Right("", name, _share(counts, lambda said, name=name: said[1] == name))
        for name in CONFIDENCES
    ]


def by_rule(counts: Counter[tuple[Said, bool]]) -> list[Right]:
    """Rules that decided most cases first."""
    said = {said for said, _ in counts}
    rows = [Right(*one, _share(counts, lambda other, one=one: other == one)) for one in said]
    return sorted(rows, key=lambda row: (-row.share.n, row.rule, row.confidence))[:MOST_RULES]


def _share(counts: Counter[tuple[Said, bool]], among: Any) -> Share:
    hits = sum(n for (said, right), n in counts.items() if right and among(said))
    return Share(hits, sum(n for (said, _), n in counts.items() if among(said)))


def is_overconfident(right: Right) -> bool:
    """Whether “certain” is significantly less often right than it should be: the interval lies
    below the goal.
    """
    return right.confidence == CERTAIN and right.share.n > 0 and right.share.interval[1] < GOAL


def decisions(project: Project) -> Counter[tuple[Said, bool]]:
    """{((rule, confidence), right): cases} over people's decisions."""
    rows = decided(project)
    columns = ("evidence__0", "evidence__1", "mode__slug", "state")
    counts: Counter[tuple[Said, bool]] = Counter()
    for *reasons, mode, state, n in (
        rows.filter(also=None).values_list(*columns).annotate(n=Count("pk"))
    ):
        _add(counts, reasons, (mode,), state, n)
    for failure in (
        rows.exclude(also=None).distinct().select_related("mode").prefetch_related("also")
    ):
        modes = (failure.mode.slug, *(mode.slug for mode in failure.also.all()))
        _add(counts, failure.evidence[:2], modes, failure.state, 1)
    return counts


def _add(
    counts: Counter[tuple[Said, bool]],
    reasons: Iterable[Any],
    modes: tuple[str, ...],
    state: str,
    n: int,
) -> None:
    """The judge's reason comes before the rules' if it decided."""
    known = (item for item in reasons if isinstance(item, dict) and item.get("rule") != RULE)
    reason = next((item for item in known if item.get("confidence") in CONFIDENCES), None)
    if reason is not None:
        right = state == FailureState.CONFIRMED and reason.get("mode") in modes
        counts[(str(reason.get("rule")), reason["confidence"]), right] += n
