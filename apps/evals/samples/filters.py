"""The samples of an evaluation selected by a URL, their order, and pagination: shared by the page,
the API and the export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.core.forms import whole
from apps.core.http import QueryFilters, uuid_of
from apps.core.paging import NotACursor
from apps.core.query import Query
from apps.evals.comparison import tasks as comparison
from apps.evals.comparison.modes import NO_BUCKET
from apps.evals.models import EvalRun, Sample

OUTCOMES: dict[str, tuple[str, Q]] = {
    "passed": ("Passed", Q(success=True, masked=False)),
    "failed": ("Failed", Q(success=False, masked=False)),
    "invalid": ("Invalid", Q(valid=False, masked=False)),
    "unsafe": ("Unsafe", Q(unsafe=True)),
    "truncated": ("Truncated", Q(truncated=True)),
    "masked": ("Masked", Q(masked=True)),
}

QUERY: Query = {
    "outcome": list(OUTCOMES),
    "bucket": None,
    "tool": None,
    "tag": None,
    "q": None,
    "against": UUID,
    "change": list(comparison.CHANGES),
}


@dataclass(frozen=True)
class Filters(QueryFilters):
    """`bucket` is the slug of a failure mode, or NO_BUCKET for failures that no rule found one for.
    `change` is one of `comparison.CHANGES` since the evaluation `against`."""

    outcome: str = ""
    bucket: str = ""
    tool: str = ""
    tag: str = ""
    q: str = ""
    against: str = ""
    change: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """The valid filters of a query; the rest is ignored."""
        given = cls.texts(query)
        if given["outcome"] not in OUTCOMES:
            given["outcome"] = ""
        if not uuid_of(given["against"]):
            given["against"] = ""
        if not given["against"]:
            given["change"] = ""
        elif given["change"] not in comparison.CHANGES:
            given["change"] = comparison.REGRESSED
        return cls(**given)

    def apply(self, run: EvalRun) -> QuerySet[Sample]:
        """The samples, by task and index. Raises EvalRun.DoesNotExist if `against` is not in the
        project.
        """
        rows = run.samples.all()
        if self.outcome:
            rows = rows.filter(OUTCOMES[self.outcome][1])
        if self.bucket == NO_BUCKET:
            rows = rows.filter(mode="", success=False, masked=False)
        elif self.bucket:
            rows = rows.filter(mode=self.bucket)
        if self.tool:
            rows = rows.filter(tools__contains=[self.tool])
        if self.tag:
            rows = rows.filter(tags__contains=[self.tag])
        if self.q:
            rows = rows.filter(Q(task_key__icontains=self.q) | Q(output__icontains=self.q))
        if self.against:
            against = EvalRun.objects.get(project=run.project_id, pk=UUID(self.against))
            rows = rows.filter(task__in=comparison.tasks_that(run, against, self.change))
        return rows


# Pages


@dataclass(frozen=True)
class Page:
    """Some samples, and the cursors of the previous and next pages (empty if there is none)."""

    samples: list[Sample]
    before: str = ""
    after: str = ""


def cursor_of(sample: Sample) -> str:
    return f"{sample.index}_{sample.task_key}"


def place_of(cursor: str, name: str) -> tuple[str, int] | None:
    """(task key, index); None without a cursor. Raises NotACursor."""
    if not cursor:
        return None
    index, _, key = cursor.partition("_")
    number = whole(index, 0, 32_767)
    if number is None or not key:
        raise NotACursor(name)
    return key, number


def behind(rows: QuerySet[Sample], place: tuple[str, int]) -> QuerySet[Sample]:
    key, index = place  # the first condition is what the index is searched by
    return rows.filter(Q(task_key__gte=key), Q(task_key__gt=key) | Q(index__gt=index)).order_by(
        "task_key", "index"
    )


def ahead_of(rows: QuerySet[Sample], place: tuple[str, int]) -> QuerySet[Sample]:
    key, index = place
    return rows.filter(Q(task_key__lte=key), Q(task_key__lt=key) | Q(index__lt=index)).order_by(
        "-task_key", "-index"
    )


def page(rows: QuerySet[Sample], size: int, *, after: str = "", before: str = "") -> Page:
    """A page by keyset: as fast at the end of 80,000 samples as at the beginning. Raises
    NotACursor.
    """
    start, end = place_of(after, "after"), place_of(before, "before")
    if end:
        found = list(ahead_of(rows, end)[: size + 1])
        more, shown = len(found) > size, found[:size][::-1]
        return Page(
            shown, cursor_of(shown[0]) if more else "", cursor_of(shown[-1]) if shown else ""
        )
    found = list((behind(rows, start) if start else rows.order_by("task_key", "index"))[: size + 1])
    shown = found[:size]
    return Page(
        shown,
        cursor_of(shown[0]) if start and shown else "",
        cursor_of(shown[-1]) if len(found) > size else "",
    )


def neighbours(rows: QuerySet[Sample], sample: Sample) -> tuple[Sample | None, Sample | None]:
    """The samples before and after one, by the same filters; only where they are."""
    rows, place = rows.only("pk", "task_key", "index"), (sample.task_key, sample.index)
    return ahead_of(rows, place).first(), behind(rows, place).first()
