"""What steps add up to, by what they have in common: percentiles of the duration, errors, tokens,
cost.

Few steps are read. Of many, `step_totals` knows the counts where they are kept by all that is
filtered by. Otherwise steps of short times, drawn over the whole time, are read, and the answer
says that it is an estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet

from apps.core.charts import BAD, beside, in_order, ranked, unlike
from apps.core.intervals import wilson
from apps.core.models import Project
from apps.trajectories import step_totals, uncounted
from apps.trajectories.filters import bounds, ids_within, scores_with
from apps.trajectories.metrics import sketch
from apps.trajectories.metrics.figures import HOVER, set_unit, short, written
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.step_filters import (
    COLUMNS,
    FILTERS,
    LABELS,
    MOST,
    are_few_scored,
    at_most,
    by_bitmaps,
    by_terms,
    by_words,
    estimated,
    has_words,
    in_totals,
    matching,
    steps_of_runs,
)
from apps.trajectories.step_samples import ENOUGH, PROBED, Drawing, Sample
from apps.trajectories.step_totals import Ids
from apps.trajectories.windows import Window, rows_of

READ = 20_000  # steps of the runs that are asked for: so many are read
MOST_IN_GAPS = 300_000  # and of hours that are not added up
FEW = 2_000  # and so many that match, where an index leads to them
SURE = 10  # with so many of a sample, it says whether they are more
NONE = "''::text"  # instead of a column
OF_TOTALS = ("over", "steps", "durations", "tokens", "with_tokens", "cost_usd", "costed")
OF_STEPS = ("duration_ms", "total_tokens", "cost_usd")
GROUPS, PARTS = 12, 6  # that are shown: the newest versions, of others those with most steps
COMPARED = 200  # versions, by their age
SHARES = (0.5, 0.95, 0.99)
BY = {name: LABELS[name] for name in ("name", "kind", "status", "model", "agent", "agent_version")}
VERSION = COLUMNS["agent_version"]
Percentiles = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Group:
    """Steps with the same `value` of `by`, and the same `part` of `split`: `read` were, which are
    the `share` of those that there are. `durations`: their percentiles, or what `step_totals` keeps
    of them.
    """

    value: str
    part: str
    read: int
    failed: int
    timed: int
    durations: Percentiles | bytes
    read_tokens: int | None
    with_tokens: int
    read_cost: float | None
    costed: int
    share: float = 1.0

    @cached_property
    def percentiles(self) -> Percentiles:
        if isinstance(self.durations, bytes):
            counts = step_totals.counts_of(self.durations)
            return tuple(sketch.percentiles(counts, SHARES))  # type: ignore[return-value]
        return self.durations

    def merged(self, other: Group) -> Group:
        """Both of totals."""
        return Group(
            self.value,
            self.part,
            self.read + other.read,
            self.failed + other.failed,
            self.timed + other.timed,
            self.durations + other.durations,  # type: ignore[operator]
            _sum(self.read_tokens, other.read_tokens),
            self.with_tokens + other.with_tokens,
            _sum(self.read_cost, other.read_cost),
            self.costed + other.costed,
        )

    @property
    def steps(self) -> int:
        return round(self.read / self.share)

    @property
    def errors(self) -> int:
        return round(self.failed / self.share)

    @property
    def tokens(self) -> int | None:
        return None if self.read_tokens is None else round(self.read_tokens / self.share)

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


def _sum(*known: Any) -> Any:
    """Of those that are known; None if none is."""
    values = [value for value in known if value is not None]
    return sum(values) if values else None


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
    "tokens": Measure(
        "Tokens", "tokens", lambda group: group.tokens, lambda group: group.with_tokens
    ),
    "cost": Measure("Cost", "usd", lambda group: group.cost_usd, lambda group: group.costed),
}
SPEC = {"measure": tuple(MEASURES), "by": tuple(BY), "split": tuple(BY)}


@dataclass(frozen=True)
class Found:
    """`sample` where not all that match were counted; `rounded` where durations are known by
    buckets.
    """

    groups: list[Group]
    sample: Sample | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Answer:
    """`groups` in the order of their steps, of `steps` that match: an estimate if of a `sample`.
    `omitted`: in words, what is not shown. `uncounted`: runs whose steps may be missing.
    """

    measure: str
    by: str
    split: str
    groups: list[Group]
    steps: int
    sample: Sample | None
    rounded: bool
    omitted: list[str]
    uncounted: int

    @property
    def is_complete(self) -> bool:
        return self.sample is None and not self.uncounted

    def counted(self, n: int | None) -> str:
        """An estimate with two digits, and a sign that it is one."""
        if n is None:
            return "–"
        if not self.sample:
            return f"{n:,}"
        return f"≈ {round(n, min(0, 2 - len(str(n)))):,}"

    @property
    def total(self) -> str:
        return f"{self.counted(self.steps)} step{'' if self.steps == 1 else 's'}"

    @property
    def note(self) -> str:
        said = []
        if self.sample:
            said.append(
                f"Estimated from {self.sample.read:,} of {self.sample.of:,} steps, drawn evenly"
                " over the time."
            )
        if self.rounded:
            said.append(f"Percentiles are off by at most {sketch.ACCURACY:.0%}.")
        return " ".join(filter(None, (*said, *self.omitted, uncounted.sentence(self.uncounted))))


def ask(project: Project, given: Mapping[str, str]) -> Answer:
    """By default the p95 of each tool, model or agent. Raises QueryError."""
    measure, by = given.get("measure") or "p95", given.get("by") or "name"
    split, waiting = given.get("split") or "", uncounted.runs(project)
    found = _find(project, given, COLUMNS[by], COLUMNS.get(split, ""))
    values, few_values = _shown(project, found.groups, by, "value", GROUPS)
    parts, few_parts = _shown(project, found.groups, split, "part", PARTS)
    return Answer(
        measure,
        by,
        split,
        [group for group in found.groups if group.value in values and group.part in parts],
        sum(group.steps for group in found.groups),
        found.sample,
        found.rounded,
        [*few_values, *few_parts],
        waiting,
    )


def whole(project: Project, given: Mapping[str, str]) -> Group | None:
    """Of all that match, together; None if none do. Raises QueryError."""
    return next(iter(_find(project, given, "", "").groups), None)


def wholes_of(windows: Collection[Window]) -> dict[Window, Group | None]:
    """The `whole` of many at once: of those that are filtered by nothing but columns, and have no
    more steps than are read.
    """
    known = [
        window
        for window in windows
        if window.begin < window.end and all(name in COLUMNS for name, _ in window.filters)
    ]
    asked, values = rows_of(
        (
            (
                window.project,
                *ids_within(window.begin, window.end).values(),
                *(dict.fromkeys(COLUMNS, "") | dict(window.filters)).values(),
            )
            for window in known
        ),
        project="bigint",
        since="uuid",
        until="uuid",
        **dict.fromkeys(COLUMNS, "text"),
    )
    with connection.cursor() as cursor:
        cursor.execute(_OF_WINDOWS.format(asked=asked, most=READ + 1), values)
        return {
            known[n - 1]: _group(("", "", *columns), 1.0) if columns[0] else None
            for n, all_steps, *columns in cursor.fetchall()
            if all_steps <= READ
        }


def _added_up(wanted: str) -> str:
    """The columns of a Group after its names, of those that are wanted."""
    return f"""count(*) FILTER (WHERE {wanted}),
        count(*) FILTER (WHERE {wanted} AND status = 'error'),
        count(duration_ms) FILTER (WHERE {wanted}),
        percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY duration_ms)
            FILTER (WHERE {wanted}),
        sum(total_tokens) FILTER (WHERE {wanted}), count(total_tokens) FILTER (WHERE {wanted}),
        sum(cost_usd) FILTER (WHERE {wanted}), count(cost_usd) FILTER (WHERE {wanted})"""


_IS_WANTED = " AND ".join(
    f"(asked.{name} = '' OR step.{column} = asked.{name})" for name, column in COLUMNS.items()
)
_OF_WINDOWS = f"""
    SELECT asked.n, added.* FROM {{asked}} CROSS JOIN LATERAL (
        SELECT count(*) AS all_steps, {_added_up("is_wanted")} FROM (
            SELECT status, {", ".join(OF_STEPS)}, {_IS_WANTED} AS is_wanted
            FROM {Step._meta.db_table} AS step
            WHERE project_id = asked.project AND trajectory_id >= asked.since
                AND trajectory_id < asked.until
            LIMIT {{most}}
        ) AS read
    ) AS added
"""


def _find(project: Project, given: Mapping[str, str], by: str, split: str) -> Found:
    """By the values of two columns, or of none (""), the largest first."""
    if at_most(steps_of_runs(project, given), READ) <= READ:
        every = _read(matching(project, given)[: READ + 1], by, split)
        if sum(group.read for group in every) <= READ:
            return Found(every)
    if known := _of_totals(project, given, by, split):
        return known

    def read(times: list[Ids], share: float, by_index: bool) -> list[Group]:
        if not by_index and scores_with(given) is None:
            of_times = step_totals.of_times(project.pk, times)
            return _read(matching(project, given), by, split, share, of_times)
        drawn = matching(project, given, step_totals.within(times, as_unknown=by_index))
        return _read(by_words(drawn, given), by, split, share)

    drawing = Drawing(project, given, read)
    if not has_words(given):
        few = _few(project, given, by, split)
        return Found(*drawing.steps()) if few is None else Found(few)
    groups, sample = drawing.steps(PROBED)
    probed = sum(group.read for group in groups)
    if probed >= ENOUGH:
        return Found(groups, sample)
    are_many = probed >= SURE and probed * sample.of > 3 * FEW * sample.read
    if not are_many and (few := _few(project, given, by, split)) is not None:
        return Found(few)
    expected = estimated(by_words(matching(project, given), given))
    return Found(*drawing.with_words(probed, expected))


def _few(project: Project, given: Mapping[str, str], by: str, split: str) -> list[Group] | None:
    """None where more match, or no index leads to them."""
    is_scored = scores_with(given) is not None
    if is_scored and not are_few_scored(project, given):
        return None
    rows, most = matching(project, given), MOST if is_scored else FEW
    few = by_terms(rows, given)[: most + 1]
    if has_words(given):
        with by_bitmaps():
            groups = _read(few, by, split)
    elif is_scored or estimated(rows) < FEW * 5:  # which may be far off
        groups = _read(few, by, split)
    else:
        return None
    return groups if sum(group.read for group in groups) <= most else None


def _read(
    rows: QuerySet[Step],
    by: str,
    split: str,
    share: float = 1.0,
    of_times: tuple[str, list[Any]] = ("", []),
) -> list[Group]:
    """They are the `share` of those that there are (`step_totals.of_times`, if of some times)."""
    return _groups(
        rows,
        by,
        split,
        f"SELECT {{by}}, {{split}}, {_added_up('true')} FROM found GROUP BY 1, 2"
        " ORDER BY 3 DESC, 1, 2",
        share,
        of_times,
    )


def _of_totals(project: Project, given: Mapping[str, str], by: str, split: str) -> Found | None:
    """None where they do not know what is filtered by, or the steps of too many hours would have to
    be read.
    """
    wanted = in_totals(given)
    if wanted is None:
        return None
    covered = step_totals.cover(project.pk, *bounds(given, FILTERS))
    if covered is None:
        return None
    gaps = step_totals.within(covered.gaps)
    if (
        covered.gaps
        and at_most(Step.objects.filter(gaps, project=project), MOST_IN_GAPS) > MOST_IN_GAPS
    ):
        return None
    groups = _groups(covered.totals.filter(wanted), by, split, SUM_TOTALS)
    if covered.gaps:
        groups += _groups(matching(project, given).filter(gaps), by, split, SUM_STEPS)
    merged: dict[tuple[str, str], Group] = {}
    for group in groups:
        key = group.value, group.part
        merged[key] = merged[key].merged(group) if key in merged else group
    largest = sorted(merged.values(), key=lambda group: (-group.read, group.value, group.part))
    return Found(largest, rounded=True)


_SUMMED = """
    SELECT value, part, sum(n)::bigint, (sum(n) FILTER (WHERE status = 'error'))::bigint,
        (sum(n) FILTER (WHERE is_timed))::bigint, {pairs}, sum(tokens), sum(with_tokens),
        sum(cost), sum(costed)
    FROM {source} GROUP BY 1, 2
"""
SUM_TOTALS = _SUMMED.format(
    pairs="string_agg(durations, ''::bytea)",
    source="""(
        SELECT {by} AS value, {split} AS part, status, steps AS n, over >= 0 AS is_timed, durations,
            tokens, with_tokens, cost_usd AS cost, costed
        FROM found
    ) AS alike""",
)
SUM_STEPS = _SUMMED.format(
    pairs=step_totals.PAIRS,
    source=f"""(
        SELECT {{by}} AS value, {{split}} AS part, status, {step_totals.BUCKET} AS bucket,
            count(*) AS n, duration_ms IS NOT NULL AS is_timed, sum(total_tokens) AS tokens,
            count(total_tokens) AS with_tokens, sum(cost_usd) AS cost, count(cost_usd) AS costed
        FROM found GROUP BY 1, 2, 3, 4, 6
    ) AS alike""",
)


def _groups(
    rows: QuerySet[Any],
    by: str,
    split: str,
    said: str,
    share: float = 1.0,
    of_times: tuple[str, list[Any]] = ("", []),
) -> list[Group]:
    """What SQL says of the rows, as the columns of a Group."""
    columns = OF_STEPS if rows.model is Step else OF_TOTALS
    rows = rows.values_list(*dict.fromkeys((*filter(None, (by, split)), "status", *columns)))
    try:
        sql, params = rows.query.sql_with_params()
    except EmptyResultSet:
        return []
    clause, bounds = of_times
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH {clause} found AS ({sql}) {said.format(by=by or NONE, split=split or NONE)}",
            [*bounds, *params],
        )
        return [_group(row, share) for row in cursor.fetchall()]


def _group(row: tuple[Any, ...], share: float) -> Group:
    value, part, read, failed, timed, durations, tokens, with_tokens, cost, costed = row
    is_of_totals = isinstance(durations, bytes | memoryview)
    return Group(
        value,
        part,
        read,
        failed or 0,
        timed or 0,
        bytes(durations) if is_of_totals else tuple(durations or (None, None, None)),
        int(tokens) if with_tokens else None,  # PostgreSQL sums bigints as numeric
        int(with_tokens or 0),
        cost,
        int(costed or 0),
        share,
    )


def _shown(
    project: Project, groups: list[Group], by: str, side: str, most: int
) -> tuple[set[str], list[str]]:
    """The values that are shown, and in words what is not."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for group in groups:
        sizes[getattr(group, side)] += group.steps
    largest = sorted(sizes, key=lambda value: (-sizes[value], value))
    if len(largest) <= most:
        return set(largest), []
    if by == "agent_version":
        newest = _newest_first(project, largest[:COMPARED])[:most]
        return set(newest), [f"The newest {most} of {len(largest):,} versions are shown."]
    label = BY[by].lower()
    plural = {"status": "statuses"}.get(label, f"{label}s")
    return set(largest[:most]), [f"The {most} largest of {len(largest):,} {plural} are shown."]


def _newest_first(project: Project, versions: list[str]) -> list[str]:
    """By the start of their first run."""
    table = Trajectory._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT version, (SELECT id FROM {table} WHERE project_id = %s AND agent_version ="
            " version ORDER BY id LIMIT 1) AS first FROM unnest(%s::text[]) AS version"
            " ORDER BY first DESC NULLS LAST",
            [project.pk, versions],
        )
        return [version for version, _ in cursor.fetchall()]


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
        colours=dict.fromkeys(series, BAD) if is_bad else None,
    )
    hover = HOVER[measure.unit].replace("{y", "{x")
    for trace, groups in zip(drawn["data"], of_part.values(), strict=True):
        trace["meta"] = {"links": [link(group) for group in groups]}
        trace["customdata"] = [f"n = {measure.n(group):,}" for group in groups]
        named = f" · {trace['name']}" if answer.split else ""
        trace["hovertemplate"] = f"%{{y}}{named}: {hover}<br>%{{customdata}}<extra></extra>"
    set_unit(drawn, "x", measure.unit)
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
            "steps": answer.counted(group.steps),
            "errors": answer.counted(group.errors),
            "rate": written(group.error_rate, "share"),
            "percentiles": [written(value, "ms") for value in group.percentiles],
            "tokens": answer.counted(group.tokens),
            "cost": written(group.cost_usd, "usd"),
        }
        for group in answer.groups
    ]
