"""Steps over REST: a list, its figures, and files."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.models import Project
from apps.core.openapi import LINES, described
from apps.core.query import number_of, parameters, whole_number
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import READABLE
from apps.core.timeouts import TooLong, patience
from apps.trajectories import step_figures, step_filters, step_rows, uncounted
from apps.trajectories.api import LIST_MS, MAX_PAGE, PAGE, Unavailable
from apps.trajectories.models import Trajectory
from apps.trajectories.shown import figures_shown, runs_shown
from apps.trajectories.step_figures import MEASURES, Answer, Group

CSV = "text/csv"
TOO_LONG = "Query too broad: no answer in time. Choose a time range or add a filter."
FILTERS = parameters(
    step_filters.FILTERS,
    name="Of a tool, an agent, else of the span",
    arguments="Words of the arguments; the last may be unfinished",
    error="Words of the error",
    failed_or_over="Status error, or at least so many seconds",
    run="The id of a run",
    since="Since when the run started",
    duration_min="In seconds",
    duration_max="In seconds",
    tokens_min="In and out together",
)


class StepOut(msgspec.Struct):
    """A step of a run. `key` names it within its run, also after the run was assembled again.
    What was not reported is null. `message_index` is its place in the run's messages.
    """

    run: str
    key: str
    number: int
    kind: str
    name: str
    status: str
    error: str
    arguments: str
    model: str
    agent: str
    agent_version: str
    started_at: datetime | None
    run_started_at: datetime
    duration_ms: float | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    message_index: int | None


class StepGroup(msgspec.Struct):
    """Steps with the same `value` of `by` and the same `part` of `split`; the interval is
    Wilson's, 95%, of the error rate.
    """

    value: str
    part: str
    steps: int
    errors: int
    error_rate: float
    error_interval: list[float]
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    tokens: int | None
    cost_usd: float | None


def _schema(one: Any, **more: Any) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components([one], ref_template="{name}")
    return components[schema["$ref"]] | more


PAGE_OF_STEPS = {
    "type": "object",
    "required": ["results", "next", "previous"],
    "properties": {
        "results": {"type": "array", "items": _schema(StepOut)},
        "next": {"type": ["string", "null"]},
        "previous": {"type": ["string", "null"]},
    },
}
FIGURES = {
    "type": "object",
    "required": ["by", "split", "steps", "complete", "uncounted_runs", "note", "groups"],
    "properties": {
        "by": {"type": "string"},
        "split": {"type": "string"},
        "steps": {"type": "integer", "description": "That match"},
        "complete": {
            "type": "boolean",
            "description": (
                "false: counts, tokens and cost are estimates from a sample, or runs have just"
                " arrived whose steps are not counted yet"
            ),
        },
        "uncounted_runs": uncounted.SCHEMA,
        "note": {"type": "string"},
        "groups": {"type": "array", "items": _schema(StepGroup)},
    },
}


@shows(RUNS)
@extend_schema(
    operation_id="v1_steps_list",
    responses=described({200: PAGE_OF_STEPS}, 400, 503),
    description=(
        "The steps of runs: model calls, tool calls, retrievals, guardrails and agent turns, those"
        " of the newest run first or sorted. Arguments are cut after 2,000 characters, errors after"
        " 500; the run has the whole."
    ),
    parameters=[
        *FILTERS,
        OpenApiParameter(
            "sort",
            enum=step_filters.SORTED_BY["sort"],
            description="“-” is descending; steps without a value are left out",
        ),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
        OpenApiParameter("cursor", description="`next` or `previous` of another page"),
    ],
)
@api(GET=READABLE)
def steps(request: Request) -> Response:
    project, given = request.auth.project, request.query_params
    try:
        with patience(LIST_MS):
            page = step_rows.page(project, given, number_of(request, "limit"))
    except TooLong as error:
        raise Unavailable(TOO_LONG) from error
    runs = {row.trajectory_id for row in page["rows"]}
    runs_shown(project, runs, to=request.auth, where="steps by API")
    return Response(
        {
            "results": [step_rows.as_json(row) for row in page["rows"]],
            "next": page["next"],
            "previous": page["previous"],
        }
    )


@shows(RUNS)
@extend_schema(
    operation_id="v1_steps_metrics",
    responses=described({200: FIGURES}, 400, 503) | {(200, CSV): OpenApiTypes.STR},
    description=(
        "What the steps that match add up to, by what they have in common: percentiles of the"
        " duration, errors, tokens, cost. Counts are exact, or estimated from a sample where many"
        " match filters by which they are not counted in advance (`complete` and `note` say so); at"
        f" most {step_figures.GROUPS} values of `by` and {step_figures.PARTS} of `split`, the"
        " newest versions, else the largest."
    ),
    parameters=[
        OpenApiParameter("by", enum=step_figures.SPEC["by"], description="By default the name"),
        OpenApiParameter("split", enum=step_figures.SPEC["split"]),
        OpenApiParameter("format", enum=["json", "csv"]),
        *FILTERS,
    ],
)
@api(GET=READABLE)
def metrics(request: Request) -> HttpResponse:
    project, given = request.auth.project, request.query_params
    try:
        with patience(LIST_MS):
            answer = step_figures.ask(project, given)
            runs = partial(step_filters.runs_of, project, given)
            figures_shown(project, runs, given, to=request.auth, where="figures of steps by API")
    except TooLong as error:
        raise Unavailable(TOO_LONG) from error
    if given.get("format") == "csv":
        return figures_file(project, answer)
    return Response(
        {
            "by": answer.by,
            "split": answer.split,
            "steps": answer.steps,
            "complete": answer.is_complete,
            "uncounted_runs": answer.uncounted,
            "note": answer.note,
            "groups": list(map(_group, answer.groups)),
        }
    )


def _group(group: Group) -> dict[str, Any]:
    """The fields of StepGroup."""
    return {
        "value": group.value,
        "part": group.part,
        "steps": group.steps,
        "errors": group.errors,
        "error_rate": group.error_rate,
        "error_interval": group.interval,
        **{f"{name}_ms": MEASURES[name].value(group) for name in ("p50", "p95", "p99")},
        "tokens": group.tokens,
        "cost_usd": group.cost_usd,
    }


def figures_file(project: Project, answer: Answer) -> HttpResponse:
    """The figures as CSV, with what they are grouped by in place of `value` and `part`."""
    groups = [_group(group) for group in answer.groups]
    for group in groups:
        group["error_low"], group["error_high"] = group.pop("error_interval")
        if not answer.split:
            del group["part"]
    names = {"value": answer.by, "part": answer.split}
    head = [names.get(name, name) for name in (groups[0] if groups else ["value"])]
    lines = [step_rows.csv_line(row) for row in (head, *(group.values() for group in groups))]
    name = f"{project.slug}-figures-of-steps.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    content = b"\xef\xbb\xbf" + b"".join(lines)
    return HttpResponse(content, content_type=step_rows.FILES["csv"][0], headers=headers)


@shows(RUNS)
@extend_schema(
    operation_id="v1_steps_export",
    responses=described({}, 400) | {(200, LINES): OpenApiTypes.STR, (200, CSV): OpenApiTypes.STR},
    description="All steps that match, the oldest first, as JSON Lines or CSV.",
    parameters=[OpenApiParameter("format", enum=list(step_rows.FILES)), *FILTERS],
)
@api(GET=READABLE)
def export(request: Request) -> StreamingHttpResponse:
    return file_of(request.auth.project, request.query_params, to=request.auth)


def file_of(project: Any, given: Any, *, to: Any) -> StreamingHttpResponse:
    """The steps that match, as a file."""
    kind = given.get("format") or "jsonl"
    rows = step_filters.apply_filters(project, given)
    runs = Trajectory.objects.filter(
        project=project, pk__in=rows.order_by().values("trajectory_id")
    )
    runs_shown(project, runs, to=to, where=f"export of steps as {kind}")
    media, lines = step_rows.FILES[kind]
    name = f"{project.slug}-steps.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(lines(rows), content_type=media, headers=headers)
