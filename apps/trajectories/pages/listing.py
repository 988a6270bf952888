"""The list of trajectories: filters, columns, counts, charts, files."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.core.query import selection_of
from apps.core.routes import RUNS, shows
from apps.core.sorting import Sorting
from apps.core.timeouts import TooLong, patience
from apps.trajectories import exports
from apps.trajectories.actions.bulk import LIMIT
from apps.trajectories.filters import (
    EXPOSED,
    LABELS,
    OF_LISTS,
    SINCE,
    SORTS,
    Chip,
    active,
    apply_filters,
    dimensions,
    normal,
    of_import_id,
    runs_of,
    without,
)
from apps.trajectories.metrics import query
from apps.trajectories.metrics.cells import MEASURES, Cell
from apps.trajectories.metrics.figures import written
from apps.trajectories.models import (
    Arrival,
    BulkChange,
    Facet,
    Outcome,
    SavedView,
    Trace,
    Trajectory,
)
from apps.trajectories.ordering import page_of
from apps.trajectories.pages import totals
from apps.trajectories.pages.alerts import new_alert
from apps.trajectories.pages.columns import (
    COLUMNS,
    DEFAULT,
    chosen,
    cost,
    of_scores,
    with_scores,
)
from apps.trajectories.score_rows import names_of
from apps.trajectories.shown import figures_shown, runs_shown

PAGE, CHOICES = 50, 100
SCORES = 50  # names that may be columns
LIST_MS, SUMS_MS = 10_000, 3_000
UNLISTED = ("outcome_reason", "terms", "content_digest")  # long or of no use in a list
UNDO = "trajectories_undo"
MEDIA = {
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "sft": "application/x-ndjson",
}


@shows(RUNS)
@project_view(query=OF_LISTS)
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.GET
    order = Sorting.of(given, SORTS)
    page, too_long = read_page(apply_filters(project.trajectories.all(), given), given, order)
    runs_shown(
        project, [row.pk for row in page["rows"]], to=request.user, where="list", previews=True
    )
    every = (*COLUMNS, *of_scores(names_of(project, SCORES)))
    columns = chosen(given.get("cols", ""), every)
    with_scores(page["rows"], columns)
    chips = [_with_file(project, chip, given) for chip in active(given)]
    return render(
        request,
        "trajectories/list.html",
        {
            "page": page,
            "order": order,
            "oldest_first": order.chosen == "started" and not order.descending,
            "too_long": too_long,
            "table": [
                (row, [(column, column.cell(row)) for column in columns]) for row in page["rows"]
            ],
            "columns": columns,
            "all_columns": every,
            "default_columns": ",".join(DEFAULT),
            "chips": [(chip, without(given, chip.name)) for chip in chips],
            "cleared": without(given, *(chip.name for chip in chips)),
            "hidden_filters": sum(chip.name not in EXPOSED for chip in chips),
            "query": without(given),
            "new_alert": new_alert(project, "failure_rate", given),
            "outcomes": Outcome.choices,
            "since": SINCE,
            "facets": facets(project, given),
            "modes": project.failure_modes.values_list("slug", "name"),
            "views": saved_views(project, request.user, given),
            "may": {
                "write": request.membership.may(Role.REVIEWER),
                "delete": request.membership.may(Role.OWNER),
            },
            "undo": undo_of(request, project),
            "not_indexed": sum(
                kind.objects.set_aside().filter(project=project).count()
                for kind in (Arrival, Trace)
            ),
            "limit": LIMIT,
        },
    )


def _with_file(project: Project, chip: Chip, given: QueryDict) -> Chip:
    """An import is shown by the name of its file; its id says nothing to anybody."""
    if chip.name != "import":
        return chip
    name = (
        project.uploads.filter(of_import_id(given["import"])).values_list("name", flat=True).first()
    )
    return Chip(chip.name, f"Import: {name}") if name else chip


def read_page(
    rows: QuerySet[Trajectory], given: QueryDict, order: Sorting
) -> tuple[dict[str, Any], bool]:
    """A page, and whether it was given up because it would read too much."""
    rows = rows.defer(*UNLISTED).prefetch_related("failure__mode")
    try:
        with patience(LIST_MS):
            return page_of(rows, given.get("cursor"), PAGE, order), False
    except TooLong:
        return {"rows": [], "next": None, "previous": None}, True


def facets(project: Project, given: QueryDict) -> dict[str, list[str]]:
    """The values to choose from by kind, the most frequent first, with the one that is chosen."""
    kinds = [
        project.facets.filter(kind=kind, trajectories__gt=0)
        .order_by("-trajectories", "value")
        .values_list("kind", "value")[:CHOICES]
        for kind in Facet.Kind.values
    ]
    found: dict[str, list[str]] = {kind: [] for kind in Facet.Kind.values}
    for kind, value in kinds[0].union(*kinds[1:], all=True):
        found[kind].append(value)
    for kind in Facet.Kind.values:
        value = given.get("agent_version" if kind == Facet.Kind.VERSION else kind)
        if value and value not in found[kind]:
            found[kind].append(value)
    return found


def saved_views(
    project: Project,
    user: Any,
    given: QueryDict,
    page: SavedView.Page = SavedView.Page.RUNS,
) -> list[dict[str, Any]]:
    """Their own and the shared ones, own first; `at` is the one whose filters these are."""
    here = normal(given.urlencode())
    rows = (
        SavedView.objects.filter(project=project, page=page)
        .filter(Q(by=user) | Q(shared=True))
        .select_related("by")
    )
    mine = [
        {"view": row, "own": row.by_id == user.pk, "at": row.query == here} for row in rows[:200]
    ]
    return sorted(mine, key=lambda item: not item["own"])


def undo_of(request: HttpRequest, project: Project) -> BulkChange | None:
    """The person's last change, where it is of this project and still stands; without what it needs
    to be taken back.
    """
    changes = BulkChange.objects.filter(
        pk=request.session.get(UNDO), project=project, by=request.user, undone_at=None
    )
    return changes.defer("was").first()


@shows(RUNS)
@project_view(query=OF_LISTS)
def count(request: HttpRequest, project: Project) -> HttpResponse:
    _record_figures(request, project)
    return render(
        request, "trajectories/_count.html", {"total": totals.total(project, request.GET)}
    )


def _record_figures(request: HttpRequest, project: Project) -> None:
    runs = partial(runs_of, project, request.GET)
    figures_shown(project, runs, request.GET, to=request.user, where="totals of runs")


@shows(RUNS)
@project_view(query=OF_LISTS)
def sums(request: HttpRequest, project: Project) -> HttpResponse:
    """What all that match add up to."""
    answer = None
    with suppress(TooLong), patience(SUMS_MS):
        _record_figures(request, project)
        answer = query.totals(project, request.GET)
    return render(
        request,
        "trajectories/_sums.html",
        {"answer": answer, "tiles": tiles_of(answer.total) if answer else []},
    )


def tiles_of(cell: Cell) -> list[tuple[str, str, str]]:
    """(title, figure, what is to know of it)."""
    rate, known = MEASURES["failure_rate"], cell.known
    low, high = cell.failure_interval
    p50, p95 = (MEASURES[f"latency_{name}"] for name in ("p50", "p95"))
    return [
        ("runs", written(cell.runs, "runs"), ""),
        (
            "failed outcomes",
            written(rate.value(cell), "share"),
            (
                f"{cell.failed:,} of {known:,} known outcomes, 95% interval {low:.1%} to {high:.1%}"
                if known > 0
                else ""
            ),
        ),
        (
            "unknown outcomes",
            written(MEASURES["unknown_rate"].value(cell), "share"),
            f"{cell.unknown:,} of {cell.runs:,}",
        ),
        (
            "latency p50 · p95",
            f"{written(p50.value(cell), 'ms')} · {written(p95.value(cell), 'ms')}",
            f"of {p50.n(cell):,} runs, accurate to 2%",
        ),
        (
            "tokens",
            written(MEASURES["tokens"].value(cell), "tokens"),
            _tokens_in_words(cell),
        ),
        (
            "cost",
            cost(cell.whole_cost) or "–",
            _priced_in_words(cell),
        ),
    ]


def _tokens_in_words(cell: Cell) -> str:
    cached = f" ({cell.cache_read_tokens:,} cached)" if cell.cache_read_tokens else ""
    reasoning = f" ({cell.reasoning_tokens:,} reasoning)" if cell.reasoning_tokens else ""
    return f"{cell.input_tokens:,} in{cached}, {cell.output_tokens:,} out{reasoning}"


def _priced_in_words(cell: Cell) -> str:
    known = f"of {MEASURES['cost_p50'].n(cell):,} runs with a cost"
    return f"{known}; {cell.unpriced:,} without a complete one" if cell.unpriced > 0 else known


@project_view(query=OF_LISTS | {"measure": list(totals.MEASURES)})
def trend(request: HttpRequest, project: Project) -> HttpResponse:
    measure = request.GET.get("measure", "")
    measure = measure if measure in totals.MEASURES else "outcome"
    context = {
        "measure": measure,
        "measures": totals.MEASURES,
        "figure": totals.trend(project, request.GET, measure),
        "ignored": [
            LABELS[chip.name.removesuffix("_min").removesuffix("_max")]
            for chip in dimensions(request.GET)[1]
        ],
    }
    return render(request, "trajectories/_trend.html", context)


@shows(RUNS)
@project_view(query=OF_LISTS | {"format": list(MEDIA)})
def export(request: HttpRequest, project: Project) -> HttpResponse:
    """The filtered trajectories, or with POST the selected ones, as a file; held-out runs are not
    SFT examples.
    """
    kind = request.GET.get("format") or request.POST.get("format") or "jsonl"
    if kind not in MEDIA:
        messages.error(request, f"Unknown format. Available formats: {', '.join(MEDIA)}.")
        return redirect(
            f"{reverse('trajectories:list', args=[project.slug])}?{without(request.GET, 'format')}"
        )
    if request.method == "POST":
        rows = project.trajectories.filter(pk__in=selection(request.POST, project)).order_by("pk")
    else:
        rows = apply_filters(project.trajectories.all(), request.GET).order_by("pk")
    runs_shown(project, rows, to=request.user, where=f"export as {kind}")
    if kind == "sft":
        lines = iter(exports.SftExport(rows, project=project))
    else:
        lines = getattr(exports, kind)(rows)
    name = f"{project.slug}-{kind}.{'parquet' if kind == 'parquet' else 'jsonl'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(lines, content_type=MEDIA[kind], headers=headers)


def selection(form: QueryDict, project: Project) -> list[UUID]:
    """The selected runs, or the newest of those that the filters find, at most LIMIT; those of
    other projects drop out.

    Raises QueryError.
    """
    ids, query = selection_of(form, UUID, OF_LISTS, ("do", "tag", "outcome", "confirm", "format"))
    if query is not None:
        found = apply_filters(project.trajectories.all(), query).order_by("-pk")
        return list(found.values_list("pk", flat=True)[:LIMIT])
    chosen = project.trajectories.filter(pk__in=ids[:LIMIT])
    return list(chosen.values_list("pk", flat=True))
