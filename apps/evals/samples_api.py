"""Samples over REST: the page's filters, one sample in full, and evaluations side by side."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import LINES, described
from apps.core.query import number_of, whole_number
from apps.core.routes import api, shows
from apps.core.scopes import RESULT
from apps.evals import runs_schema as schema
from apps.evals.comparison import files, report
from apps.evals.comparison.tasks import CHANGES, SORTS, TaskTable, place_of, unknown_filters
from apps.evals.comparison.tasks import Filters as TaskFilters
from apps.evals.costs import cost, price_of
from apps.evals.holdout.view_log import record_output_view, record_view
from apps.evals.lookups import MAX_PAGE, PAGE, find_run, needs_right
from apps.evals.models import EvalRun, Sample, Split
from apps.evals.samples import exporting, transcript
from apps.evals.samples.components import explained
from apps.evals.samples.diagnosis import diagnose
from apps.evals.samples.filters import OUTCOMES, Filters

MOST_RUNS = 20
FILTERS = [
    OpenApiParameter("outcome", enum=list(OUTCOMES)),
    OpenApiParameter(
        "bucket", str, description="A failure mode's slug; “none”: failures that no rule matched"
    ),
    OpenApiParameter("tool", str, description="The name of a tool that was called"),
    OpenApiParameter(
        "tag", str, description="A tag of the task or of the production run it was created from"
    ),
    OpenApiParameter("q", str, description="Words of the task's key or the output"),
    OpenApiParameter(
        "against",
        str,
        description="Another evaluation's id: only tasks that changed since then, see `change`",
    ),
    OpenApiParameter(
        "change", enum=list(CHANGES), description="With `against`; default: “regressed”"
    ),
]
TOLD = (
    "index",
    "output",
    "messages",
    "reward",
    "success",
    "unsafe",
    "masked",
    "mask_reason",
    "components",
    "details",
    "stop_reason",
    "latency_ms",
    "input_tokens",
    "output_tokens",
    "tools",
    "tags",
)


def filtered(request: Request, run: EvalRun) -> QuerySet[Sample]:
    """The samples selected by the query. Raises ValidationError for an invalid choice, NotFound for
    `against`.
    """
    query = request.query_params
    if query.get("against"):
        find_run(request, query["against"])
    return Filters.of(query).apply(run)


def sample_json(sample: Sample) -> dict[str, Any]:
    fields = {name: getattr(sample, name) for name in TOLD}
    return {
        "id": sample.pk,
        "task": str(sample.task_id),
        "key": sample.task_key,
        "bucket": sample.mode,
    } | fields


@shows("a held-out task and an output on it, with the right")
@extend_schema(
    operation_id="v1_eval_runs_sample",
    responses=described({200: schema.WHOLE_SAMPLE}, 403, 404),
    description=(
        "A full sample: request, tools, expected answer, reward components with reasons, and the"
        " failure mode rules. On a hold-out this requires a key with access to hold-outs and counts"
        " as a view."
    ),
)
@api(GET=RESULT)
def item(request: Request, pk: UUID, number: int) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    sample = run.samples.select_related("task__trajectory").filter(pk=number).first()
    if sample is None:
        raise NotFound("This evaluation has no sample with this number.")
    record_output_view(run, by=request.auth)
    sample.run = run
    components, reasons = explained(sample.components, sample.details)
    found, task = diagnose(sample), sample.task
    return Response(
        sample_json(sample)
        | {
            "request": task.messages,
            "opening": transcript.opening(run),
            "offered_tools": transcript.offered(sample),
            "expected": task.expected,
            "reasons": (
                {part.name: part.reasons for part in components if part.reasons}
                | ({"": reasons} if reasons else {})
            ),
            "blamed_message": found.blamed_message if found else None,
            "evidence": [line.as_dict() for line in found.evidence] if found else [],
            "cost_usd": cost(price_of(run), sample.input_tokens, sample.output_tokens),
        }
    )


CSV = "text/csv"


@shows("held-out tasks and outputs on them, as a file, with the right")
@extend_schema(
    operation_id="v1_eval_runs_samples_export",
    responses=described({}, 400, 403, 404)
    | {(200, LINES): OpenApiTypes.STR, (200, CSV): OpenApiTypes.STR},
    parameters=[
        *FILTERS,
        OpenApiParameter("as", enum=list(exporting.FORMATS), description="Default: JSON Lines"),
    ],
    examples=[
        OpenApiExample(
            "A line",
            '{"task": "close-12", "index": 0, "outcome": "passed", "reward": 1.0}\n',
            media_type=LINES,
        ),
        OpenApiExample("A header", ",".join(exporting.COLUMNS) + "\r\n", media_type=CSV),
    ],
    description=(
        "The matching samples as a file: JSON Lines with all fields including the task, or CSV with"
        " one line per sample. On a hold-out this requires a key with access to hold-outs, and each"
        " file counts as a view."
    ),
)
@api(GET=RESULT)
def export(request: Request, pk: UUID) -> StreamingHttpResponse:
    run = find_run(request, pk)
    needs_right(request, run.split)
    format, rows = request.query_params.get("as") or "jsonl", filtered(request, run)
    if run.split == Split.HOLDOUT:
        record_view(
            eval_set=run.eval_set, by=request.auth, detail=f"samples of {run.pk} as {format}"
        )
    return exporting.file_of(run, rows, format)


@shows("which held-out tasks passed, with the right")
@extend_schema(
    operation_id="v1_eval_runs_compare",
    responses=described({200: schema.COMPARISON}, 400, 403, 404) | {(200, CSV): OpenApiTypes.STR},
    parameters=[
        OpenApiParameter(
            "run",
            {"type": "array", "items": {"type": "string", "format": "uuid"}},
            required=True,
            description=f"2 to {MOST_RUNS} evaluations; the first is the baseline",
        ),
        OpenApiParameter("change", enum=list(CHANGES)),
        OpenApiParameter(
            "of",
            whole_number(2, MOST_RUNS),
            description="Of more than two: the number of the one evaluation whose changes count",
        ),
        OpenApiParameter(
            "mode", str, description="A failure mode’s slug: tasks where it appeared or disappeared"
        ),
        OpenApiParameter("q", str, description="Words in the task’s key"),
        OpenApiParameter(
            "sort", enum=list(SORTS), description="Largest losses or wins first; default: by key"
        ),
        OpenApiParameter(
            "as",
            enum=list(files.FORMATS),
            description="All tasks as a file; CSV with one line per task",
        ),
        OpenApiParameter("cursor", str, description="`next` of the previous page"),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
    ],
    description=(
        "Evaluations side by side: success, pass@k, pass^k, reward and its components, invalid"
        " outputs, unsafe actions, latency, tokens and cost, each with its paired difference from"
        " the first; groups of tasks; failure modes; then task by task how many samples were"
        " scored, and how many passed. The intervals of the differences in a table are simultaneous"
        " (Bonferroni). `problems` lists what is not comparable. With a cursor only the tasks come."
        " Of a hold-out this needs a key that may see hold-outs, and counts as a view of each"
        " evaluation."
    ),
)
@api(GET=RESULT)
def compare(request: Request) -> HttpResponseBase:
    query = request.query_params
    runs = [
        find_run(request, given) for given in dict.fromkeys(query.getlist("run")[: MOST_RUNS + 1])
    ]
    if not 2 <= len(runs) <= MOST_RUNS:
        raise ValidationError({"path": "run", "error": f"2 to {MOST_RUNS} different evaluations"})
    for run in runs:
        needs_right(request, run.split)
    for name, choices in unknown_filters(query, len(runs)).items():
        raise ValidationError({"path": name, "error": f"must be {choices}"})
    format, cursor = query.get("as", ""), query.get("cursor", "")
    place_of(cursor, "cursor")  # before a view is recorded
    limit, given = number_of(request, "limit"), TaskFilters.from_query(query, len(runs))
    for run in runs:
        record_output_view(run, by=request.auth)
    found = report.compare(runs, details=True)
    if format:
        for run in runs:
            if run.split == Split.HOLDOUT:
                record_view(
                    eval_set=run.eval_set,
                    by=request.auth,
                    detail=f"comparison of {run.pk} as {format}",
                )
        return files.file_of(found, given, format)
    page = TaskTable(found.tables, given).page(limit, cursor)
    body: dict[str, Any] = {} if cursor else report.as_json(found)
    return Response(
        body | {"results": [files.row_json(row) for row in page.rows], "next": page.after or None}
    )
