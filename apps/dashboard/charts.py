"""What a chart asks for, from the URL of the page that draws it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.http import QueryDict

from apps.core.models import Project
from apps.core.query import Query
from apps.core.timeouts import TooLong, patience
from apps.dashboard.models import Chart
from apps.trajectories.filters import SINCE, Chip, active, normal, runs_of
from apps.trajectories.metrics import figures, query
from apps.trajectories.metrics.cells import MEASURES, titles
from apps.trajectories.shown import figures_shown

CHART_MS = 4_000
SPEC: Query = {  # in an address
    "title": None,
    "measure": list(titles()),
    "by": list(query.BY),
    "kind": list(figures.KINDS),
    "bucket": list(query.UNITS),
}
MAX_TITLE = 80
USUAL_SINCE = "30d"
TIMES = ("since", "from", "to")


@dataclass(frozen=True)
class Spec:
    """A chart before it is drawn. Whatever is not known is the usual."""

    title: str
    measure: str
    by: str
    kind: str
    bucket: str
    filters: QueryDict

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Spec:
        measure, by, kind, bucket = (given.get(name, "") for name in [*SPEC][1:])
        filters = QueryDict(mutable=True)
        for name, value in given.items():
            if name not in (*SPEC, "chart", "cursor", "dashboard") and value:
                filters[name] = value
        if not any(filters.get(name) for name in TIMES):
            filters["since"] = USUAL_SINCE
        return cls(
            title=" ".join(given.get("title", "").split())[:MAX_TITLE],
            measure=measure if measure in titles() else "runs",
            by=by if by in query.BY else "",
            kind=kind if kind in figures.KINDS else "auto",
            bucket=bucket if bucket in query.UNITS else "",
            filters=filters,
        )

    @classmethod
    def of_chart(cls, chart: Chart, since: str = "") -> Spec:
        """`since` takes the place of the chart's own time range."""
        given = QueryDict(chart.parameters, mutable=True)
        if since in SINCE or since == "all":
            for name in TIMES:
                given.pop(name, None)
            given["since"] = since
        return cls.of(given.dict())

    @property
    def query(self) -> str:
        """The filters alone, in one order: those of “all time” are none."""
        return normal(self.filters.urlencode())

    @property
    def chips(self) -> list[Chip]:
        return active(self.filters)

    @property
    def automatic_title(self) -> str:
        return titles()[self.measure] + (f" by {query.BY[self.by].lower()}" if self.by else "")

    def as_columns(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in SPEC} | {"query": self.query}


@dataclass(frozen=True)
class Drawn:
    """A chart's answer as the page shows it; `too_long`: it was given up."""

    spec: Spec
    figure: dict | None = None
    rows: list[dict[str, Any]] | None = None
    answer: query.Answer | None = None
    too_long: bool = False

    @property
    def title(self) -> str:
        if (
            self.spec.title
            or self.answer is None
            or self.spec.kind in ("ranking", "number", "table")
        ):
            return self.spec.title or self.spec.automatic_title
        return figures.title_of(self.answer, self.spec.by)

    @property
    def number(self) -> str:
        """The value of the whole time."""
        assert self.answer is not None
        if self.spec.by or len(self.answer.series) > 1 or not self.answer.series:
            return ""
        one = self.answer.series[0]
        return figures.written(one.whole.value, MEASURES[one.measure].unit)


def draw(project: Project, spec: Spec, *, to: Any, height: int = figures.HEIGHT) -> Drawn:
    """For the user it is shown `to`."""
    try:
        with patience(CHART_MS):
            runs = partial(runs_of, project, spec.filters)
            figures_shown(project, runs, spec.filters, to=to, where="chart of runs")
            answer = query.ask(project, spec.filters, spec.measure, spec.by, spec.bucket)
    except TooLong:
        return Drawn(spec, too_long=True)
    figure = figures.figure(answer, spec.by, spec.kind, height)
    if figure:
        figure["layout"]["title"]["text"] = ""
        figure["layout"]["margin"]["t"] = 4 + 26 * figure["layout"]["showlegend"]
    return Drawn(spec, figure, figures.table(answer), answer)
