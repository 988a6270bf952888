"""Steps of short times, drawn so that each step is as likely to be among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import step_totals
from apps.trajectories.ids import time_of
from apps.trajectories.models import Step
from apps.trajectories.step_filters import estimated, has_words, within_of
from apps.trajectories.step_totals import Span

TIMES = 64  # that are drawn
READ = 40_000  # steps of these times
WITH_WORDS = 400_000  # where an index says which of them have the words, and only those are read
ENOUGH = 500  # that match; with fewer, more are drawn


@dataclass(frozen=True)
class Sample:
    """So many steps were looked at, of all in the time: those that match and others."""

    read: int
    of: int


def draw(
    project: Project, given: Mapping[str, str], read: Callable[[Q, float], list[Any]]
) -> tuple[list[Any], Sample]:
    """What `read` makes of those of the steps drawn that match, told their share of all. The same
    for the same question.
    """
    known = _density(project, given)
    of = round(sum(known.values()))
    most = WITH_WORDS if has_words(given) else READ
    wanted = min(READ, most)
    while True:
        times = times_of(known, min(1.0, wanted / max(1, of)))
        drawn = step_totals.within(times)
        looked_at = Step.objects.filter(drawn, project=project).count()
        with by_bitmaps():
            groups = read(drawn, looked_at / max(1, of, looked_at)) if looked_at else []
        matched = sum(group.read for group in groups)
        if matched >= ENOUGH or wanted >= min(of, most):
            return groups, Sample(looked_at, max(of, looked_at))
        wanted = min(most, wanted * max(2, ENOUGH * 2 // max(1, matched)))


def times_of(known: Mapping[Span, float], share: float) -> list[Span]:
    """Times that have this share of the steps, evenly over all of them; `known` is how many steps
    there are by time.
    """
    spans = sorted(span for span, n in known.items() if n > 0)
    if share >= 1:
        return spans
    of = sum(known[span] for span in spans)
    stride = of / TIMES
    offsets = random.Random(1)
    begins = (place * stride + offsets.random() * stride * (1 - share) for place in range(TIMES))
    times, passed, at = [], 0.0, 0
    for begin in begins:
        left = stride * share
        while left > 1e-9 and at < len(spans):
            span, n = spans[at], known[spans[at]]
            if begin >= passed + n:
                passed, at = passed + n, at + 1
                continue
            first = max(0.0, begin - passed)
            taken = min(left, n - first)
            length = span.end - span.begin
            times.append(
                Span(
                    span.begin + length * (first / n),
                    span.begin + length * ((first + taken) / n),
                )
            )
            begin, left = begin + taken, left - taken
    return times


def _density(project: Project, given: Mapping[str, str]) -> dict[Span, float]:
    """How many steps there are, by time; about, where they are not added up."""
    within = within_of(project, given)
    begin = time_of(within["gte"]) if "gte" in within else None
    last = within.get("lt") or within.get("lte")
    end = time_of(last) + timedelta(milliseconds=1) if last else None
    covered = step_totals.cover(project.pk, begin, end)
    if covered is None:
        gaps = [Span(begin or _first(project), end or timezone.now())]
        known: dict[Span, float] = {}
    else:
        gaps = covered.gaps
        known = dict(step_totals.by_time(covered))
    for gap in gaps:
        known[gap] = estimated(Step.objects.filter(step_totals.within([gap]), project=project))
    return known


def _first(project: Project) -> datetime:
    runs = Step.objects.filter(project=project).order_by("pk")
    first = runs.values_list("trajectory_id", flat=True).first()
    return time_of(first) if first else datetime.now(UTC)


@contextmanager
def by_bitmaps() -> Iterator[None]:
    """Indexes are combined before any step is read: PostgreSQL takes all words for as frequent, and
    might read a long time for a rare one.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = off")
        yield
        cursor.execute("SET LOCAL enable_indexscan TO DEFAULT; SET LOCAL enable_seqscan TO DEFAULT")
