"""What steps add up to, by what they have in common: percentiles of the duration, errors, tokens,
cost.

Figures are of all steps that match, of the newest NEWEST where there are more, and of a random
SAMPLE where there are so many more that blocks of the table can be drawn. They say which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from apps.core.charts import BAD, beside, in_order, ranked, unlike
from apps.core.intervals import wilson
from apps.core.models import Project
from apps.trajectories.metrics.figures import HOVER, TICKS, short, written
from apps.trajectories.models import Step
from apps.trajectories.step_filters import (
    COLUMNS,
    LABELS,
    apply_filters,
    by_terms,
    estimated,
)

NEWEST = 10_000
SAMPLE = 40_000
LARGEST_SAMPLE = 0.05  # of the table's blocks: more would be read than by the index
FROM = f'FROM "{Step._meta.db_table}"'
NONE = "''::text"  # instead of a column
GROUPS, PARTS = 12, 6  # that are shown; by their steps
BY = {name: LABELS[name] for name in ("name", "kind", "status", "model", "agent", "agent_version")}


@dataclass(frozen=True, slots=True)
class Group:
    """Steps with the same `value` of `by`, and the same `part` of `split`: `read` were, which are
    the `share` of those that there are.
    """

    value: str
    part: str
    read: int
    failed: int
    timed: int
    percentiles: tuple[float | None, float | None, float | None]
    read_tokens: int
    read_cost: float | None
    costed: int
    share: float

    @property
    def steps(self) -> int:
        return round(self.read / self.share)

    @property
    def errors(self) -> int:
        return round(self.failed / self.share)

    @property
    def tokens(self) -> int:
        return round(self.read_tokens / self.share)

    @property
    def cost_usd(self) -> float | None:
        return None if self.read_cost is None else self.read_cost / self.share

    @property
    def error_rate(self) -> float:
        return self.failed / self.read

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95%, of the error rate."""
        return wilson(self.failed, self.read)


@dataclass(frozen=True)
class Measure:
    title: str
    unit: str
    value: Callable[[Group], float | None]
    n: Callable[[Group], int] = lambda group: group.read


def _percentile(place: int) -> Callable[[Group], float | None]:
    return lambda group: group.percentiles[place]


def _timed(group: Group) -> int:
    return group.timed


MEASURES = {
    "p50": Measure("Duration, p50", "ms", _percentile(0), _timed),
    "p95": Measure("Duration, p95", "ms", _percentile(1), _timed),
    "p99": Measure("Duration, p99", "ms", _percentile(2), _timed),
    "steps": Measure("Steps", "runs", lambda group: group.steps),
    "errors": Measure("Errors", "runs", lambda group: group.errors),
    "error_rate": Measure("Error rate", "share", lambda group: group.error_rate),
    "tokens": Measure("Tokens", "tokens", lambda group: group.tokens),
    "cost": Measure("Cost", "usd", lambda group: group.cost_usd, lambda group: group.costed),
}
SPEC = {"measure": tuple(MEASURES), "by": tuple(BY), "split": tuple(BY)}


@dataclass(frozen=True)
class Answer:
    """`groups` in the order of their steps; `steps` were read, and with `more` there are others.
    `about`: how many there are, where they are a random sample.
    """

    measure: str
    by: str
    split: str
    groups: list[Group]
    steps: int
    more: bool
    about: int | None
    omitted: int

    @property
    def note(self) -> str:
        said = []
        if self.about:
            said.append(
                f"From a random sample of {self.steps:,} of about {self.about:,} matching steps;"
                " counts are estimates."
            )
        elif self.more:
            said.append(f"Of the newest {NEWEST:,} matching steps.")
        if self.omitted:
            said.append(f"{self.omitted:,} smaller groups are not shown.")
        return " ".join(said)


def ask(project: Project, given: Mapping[str, str]) -> Answer:
    """By default the p95 of each tool, model or agent. Raises QueryError."""
    measure, by = given.get("measure") or "p95", given.get("by") or "name"
    split = given.get("split") or ""
    found = _groups(project, given, COLUMNS[by], COLUMNS.get(split, ""))
    read = sum(group.read for group in found)
    is_sample = any(group.share < 1 for group in found)
    shown = _largest(found)
    return Answer(
        measure,
        by,
        split,
        shown,
        steps=read if is_sample else min(read, NEWEST),
        more=is_sample or read > NEWEST,
        about=sum(group.steps for group in found) if is_sample else None,
        omitted=len(found) - len(shown),
    )


def whole(project: Project, given: Mapping[str, str]) -> Group | None:
    """Of all that match, together; None if none do. Raises QueryError."""
    return next(iter(_groups(project, given, "", "")), None)


def _groups(project: Project, given: Mapping[str, str], by: str, split: str) -> list[Group]:
    """By the values of two columns, or of none (""), the largest first."""
    rows = apply_filters(project, given)
    likely = max(1, estimated(rows))  # which may be far off
    share = SAMPLE / likely
    if share <= LARGEST_SAMPLE and (sampled := _read(rows.order_by(), by, split, share)):
        return sampled
    if likely < NEWEST * 5:
        every = _read(by_terms(rows.order_by(), given)[: NEWEST + 1], by, split)
        if sum(group.read for group in every) <= NEWEST:
            return every
    return _read(rows.order_by("-pk")[: NEWEST + 1], by, split)


def _read(rows: QuerySet[Step], by: str, split: str, share: float = 1.0) -> list[Group]:
    """All, or the `share` of them that lies in blocks drawn at random."""
    columns = ("status", "duration_ms", "total_tokens", "cost_usd")
    rows = rows.values_list(*dict.fromkeys((*filter(None, (by, split)), *columns)))
    try:
        sql, params = rows.query.sql_with_params()
    except EmptyResultSet:
        return []
    if share < 1:
        sample = f"TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (1)"
        sql = sql.replace(FROM, f"{FROM} {sample}", 1)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH found AS ({sql}) SELECT {by or NONE}, {split or NONE}, count(*),"
            " count(*) FILTER (WHERE status = 'error'), count(duration_ms),"
            " percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY duration_ms),"
            " sum(total_tokens), sum(cost_usd), count(cost_usd)"
            " FROM found GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
            params,
        )
        return [_group(row, share) for row in cursor.fetchall()]


def _group(row: tuple[Any, ...], share: float) -> Group:
    value, part, read, failed, timed, percentiles, tokens, cost, costed = row
    return Group(
        value,
        part,
        read,
        failed,
        timed,
        tuple(percentiles or (None, None, None)),
        int(tokens or 0),  # PostgreSQL sums bigints as numeric
        cost,
        costed,
        share,
    )


def _largest(groups: list[Group]) -> list[Group]:
    values: defaultdict[str, int] = defaultdict(int)
    parts: defaultdict[str, int] = defaultdict(int)
    for group in groups:
        values[group.value] += group.steps
        parts[group.part] += group.steps
    kept = [
        set(sorted(sizes, key=lambda name: (-sizes[name], name))[:most])
        for sizes, most in ((values, GROUPS), (parts, PARTS))
    ]
    return [group for group in groups if group.value in kept[0] and group.part in kept[1]]


def title_of(answer: Answer) -> str:
    said = f"{MEASURES[answer.measure].title} by {BY[answer.by].lower()}"
    return f"{said} and {BY[answer.split].lower()}" if answer.split else said


def figure(answer: Answer, link: Callable[[Group], str]) -> dict | None:
    """Bars, or dots where the groups are split; each leads to its steps (`link`)."""
    measure = MEASURES[answer.measure]
    known = [group for group in answer.groups if measure.value(group) is not None]
    if not known:
        return None
    names = _labels(group.value for group in known)
    titles = _labels(sorted((group.part for group in known), key=in_order))
    of_part = {part: [group for group in known if group.part == part] for part in titles}
    series = {
        titles[part]: (
            [names[group.value] for group in groups],
            [measure.value(group) for group in groups],
        )
        for part, groups in of_part.items()
    }
    is_bad = answer.measure in ("errors", "error_rate") and len(titles) == 1
    drawn = ranked(
        series,
        title_of(answer),
        x="ms" if measure.unit == "ms" else "",
        colours=dict.fromkeys(series, BAD) if is_bad else None,
    )
    hover = HOVER[measure.unit].replace("{y", "{x")
    for trace, groups in zip(drawn["data"], of_part.values(), strict=True):
        trace["meta"] = {"links": [link(group) for group in groups]}
        trace["customdata"] = [f"n = {measure.n(group):,}" for group in groups]
        named = f" · {trace['name']}" if answer.split else ""
        trace["hovertemplate"] = f"%{{y}}{named}: {hover}<br>%{{customdata}}<extra></extra>"
    drawn["layout"]["xaxis"]["tickformat"] = TICKS[measure.unit]
    return beside(drawn, list(names.values()))


def _labels(values: Iterable[str]) -> dict[str, str]:
    """Of each value, in this order: short, and unlike the others."""
    distinct = list(dict.fromkeys(values))
    return dict(zip(distinct, unlike(short(value or "(none)") for value in distinct), strict=True))


def table(answer: Answer, link: Callable[[Group], str]) -> list[dict[str, Any]]:
    return [
        {
            "value": group.value or "(none)",
            "part": group.part or "(none)",
            "href": link(group),
            "steps": group.steps,
            "errors": group.errors,
            "rate": written(group.error_rate, "share"),
            "percentiles": [written(value, "ms") for value in group.percentiles],
            "tokens": group.tokens,
            "cost": written(group.cost_usd, "usd"),
        }
        for group in answer.groups
    ]
