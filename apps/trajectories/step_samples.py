"""Steps of short times, drawn so that each step is as likely to be among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connection
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import step_totals
from apps.trajectories.ids import time_of
from apps.trajectories.models import Step
from apps.trajectories.step_filters import by_bitmaps, estimated, within_of
from apps.trajectories.step_totals import Ids, Span

TIMES = 64  # that are drawn
COUNTED = 500_000  # steps of a time that are looked through; of more, PostgreSQL's estimate
APART = 256  # of these, so many lie between two that are known
REFINED = 1_000_000  # steps of times that were taken for even, and are not
OFF = 0.25  # more or fewer steps than were wanted: then they are not
READ, ENOUGH = 20_000, 700  # steps of these times, and of those that match
PROBED, COMMON = 1_500, 150  # if so many of them have the words, more are read in the same way
WITH_WORDS = 250_000  # else an index finds those that have them in longer times


@dataclass(frozen=True)
class Sample:
    """So many steps were looked at, of all in the time: those that match and others."""

    read: int
    of: int


class Drawing:
    """Draws the same for the same question. `read` makes groups of the steps that match of some
    times, told the share that they are of all, and whether an index of words is to be used.
    """

    def __init__(
        self,
        project: Project,
        given: Mapping[str, str],
        read: Callable[[list[Ids], float, bool], list[Any]],
    ) -> None:
        self.project, self.read = project, read
        self.known = _density(project, given)
        self.of = round(sum(self.known.values()))

    def steps(self, wanted: int = READ) -> tuple[list[Any], Sample]:
        """Of about so many steps."""
        times, looked_at = self._drawn(wanted)
        expected = min(wanted, self.of)
        if abs(looked_at - expected) > OFF * expected and self._refine():
            times, looked_at = self._drawn(wanted)
        of = max(self.of, looked_at)
        groups = self.read(times, looked_at / of, False) if looked_at else []
        return groups, Sample(looked_at, of)

    def _drawn(self, wanted: int) -> tuple[list[Ids], int]:
        times = times_of(self.known, min(1.0, wanted / max(1, self.of)))
        said, params = step_totals.of_times(self.project.pk, times)
        with connection.cursor() as cursor:
            cursor.execute(
                f"WITH {said} n AS (SELECT count(*) FROM trajectories_step) TABLE n", params
            )
            return times, cursor.fetchone()[0]

    def _refine(self) -> bool:
        """Looks through the times with most steps: a burst may be all that an hour has."""
        room, refined = REFINED, False
        for ids, n in sorted(self.known.items(), key=lambda item: -item[1]):
            if APART < n <= room:
                room, refined = room - n, True
                del self.known[ids]
                self.known |= _looked_through(self.project, ids)
        self.of = round(sum(self.known.values()))
        return refined

    def with_words(self, probed: int, expected: int) -> tuple[list[Any], Sample]:
        """Of so many steps that about ENOUGH should match; `probed` did of PROBED, and PostgreSQL
        expects so many: where it expects far too few, it would read all of them through the index
        of the words, whatever the times.
        """
        wanted = PROBED * ENOUGH // max(1, probed)
        matching = probed * self.of / PROBED
        if probed >= COMMON or matching > max(READ, 4 * expected):
            return self.steps(min(wanted, READ))
        wanted = min(wanted, WITH_WORDS)
        share = min(1.0, wanted / max(1, self.of))
        with by_bitmaps():
            groups = self.read(times_of(self.known, share), share, True)
        return groups, Sample(round(share * self.of), self.of)


def times_of(known: Mapping[Ids, float], share: float) -> list[Ids]:
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
                Ids(
                    span.begin + int(length * (first / n)),
                    span.begin + int(length * ((first + taken) / n)),
                )
            )
            begin, left = begin + taken, left - taken
    return times


def _density(project: Project, given: Mapping[str, str]) -> dict[Ids, float]:
    """How many steps there are, by time; about, where they are not added up."""
    within = within_of(project, given)
    begin = time_of(within["gte"]) if "gte" in within else None
    last = within.get("lt") or within.get("lte")
    end = time_of(last) + timedelta(milliseconds=1) if last else None
    covered = step_totals.cover(project.pk, begin, end)
    if covered is None:
        gaps = [Span(begin or _first(project), end or timezone.now())]
        known: dict[Ids, float] = {}
    else:
        gaps = covered.gaps
        known = {Ids.of(span): n for span, n in step_totals.by_time(covered).items()}
    for gap in gaps:
        known |= _looked_through(project, Ids.of(gap))
    return known


def _looked_through(project: Project, ids: Ids) -> dict[Ids, float]:
    """How many steps there are in its parts, which are as short as steps lie close together."""
    rows = Step.objects.filter(step_totals.within([ids]), project=project)
    first = rows.order_by("trajectory_id").values("trajectory_id")[:COUNTED]
    sql, params = first.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT trajectory_id, before, total FROM (SELECT trajectory_id, rank() OVER"
            " id - 1 AS before, row_number() OVER id AS place, count(*) OVER () AS total FROM"
            f" ({sql}) AS step WINDOW id AS (ORDER BY trajectory_id)) AS placed"
            f" WHERE place %% {APART} = 0 OR place = total ORDER BY 1",
            params,
        )
        found = cursor.fetchall()
    if not found:
        return {}
    places = [ids.begin, *(pk.int for pk, _, _ in found), ids.end]
    passed, total = [before for _, before, _ in found], found[-1][2]
    left = total - passed[-1]
    if total == COUNTED:
        beyond = step_totals.within([Ids(places[-2], ids.end)])
        left = max(left, estimated(Step.objects.filter(beyond, project=project)))
    sizes = (after - n for n, after in pairwise([0, *passed, passed[-1] + left]))
    parts = (Ids(begin, end) for begin, end in pairwise(places))
    return dict(zip(parts, sizes, strict=True))


def _first(project: Project) -> datetime:
    runs = Step.objects.filter(project=project).order_by("pk")
    first = runs.values_list("trajectory_id", flat=True).first()
    return time_of(first) if first else datetime.now(UTC)
