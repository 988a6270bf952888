"""Scores over REST: sending, a list, figures and files."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.models import Project
from apps.core.openapi import JSON, LINES, described, page
from apps.core.paging import keyset
from apps.core.query import number_of, parameters, whole_number
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import READABLE, SENT
from apps.core.timeouts import TooLong, patience
from apps.trajectories import decoding, score_rows, uncounted
from apps.trajectories.actions import scores as actions
from apps.trajectories.api import LIST_MS, MAX_PAGE, PAGE, Unavailable, body_of, redaction_works
from apps.trajectories.decoding import RowError
from apps.trajectories.models import Trajectory
from apps.trajectories.score_rows import ScoreOut
from apps.trajectories.scores import KINDS, Sent, value_of
from apps.trajectories.shown import figures_shown, runs_shown
from apps.trajectories.steps_api import CSV, TOO_LONG
from workers.lib.typed import convert, json_schema

MOST = 1_000
FILTERS = parameters(
    score_rows.FILTERS,
    step="The key of a step; without it, of runs and steps",
    score_is="Yes, no, a category or a text",
    since="Since when they were given",
)
ONE = json_schema(Sent)
RECEIVED = {
    "type": "object",
    "required": ["accepted", "waiting", "deleted"],
    "properties": {
        "accepted": {"type": "integer"},
        "waiting": {"type": "integer", "description": "Of runs that have not arrived yet"},
        "deleted": {"type": "integer", "description": "Not stored: their runs were deleted"},
    },
}
GROUPS = {
    "type": "object",
    "required": ["by", "scores", "complete", "uncounted_runs", "note", "groups"],
    "properties": {
        "by": {"type": "string"},
        "scores": {"type": "integer"},
        "complete": {
            "type": "boolean",
            "description": (
                f"false: only the newest {score_rows.NEWEST:,} that match were read, or runs have"
                " just arrived whose own scores are not counted yet"
            ),
        },
        "uncounted_runs": uncounted.SCHEMA,
        "note": {"type": "string"},
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "kind", "value", "scores", "mean", "low", "high"],
                "properties": {
                    "name": {"type": "string"},
                    "kind": {"type": "string", "enum": list(KINDS)},
                    "value": {"type": "string"},
                    "scores": {"type": "integer"},
                    "mean": {
                        "type": ["number", "null"],
                        "description": "Of numbers; yes is 1 and no 0",
                    },
                    "low": {"type": ["number", "null"]},
                    "high": {"type": ["number", "null"]},
                },
            },
        },
    },
}
EXAMPLE = OpenApiExample(
    "A run's score", value={"run": "run-1", "name": "helpful", "value": 0.8, "source": "judge"}
)


@shows(RUNS)
@extend_schema(
    methods=["POST"],
    operation_id="v1_scores_add",
    request={JSON: {"anyOf": [ONE, {"type": "array", "items": ONE, "maxItems": MOST}]}},
    responses=described({200: RECEIVED}, 400, 413, 503),
    examples=[EXAMPLE],
    description=(
        f"Stores a score of a run or of one of its steps, or up to {MOST:,} of them: a number, true"
        " or false, a category or a text. Of one name, a run or step has one score from each"
        " `source` and `by`, or of each `id`; another replaces it. A score may come before its run."
    ),
)
@extend_schema(
    methods=["GET"],
    operation_id="v1_scores_list",
    responses=described({200: page(json_schema(ScoreOut))}, 400, 503),
    description="Scores of runs and steps, the newest first.",
    parameters=[
        *FILTERS,
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
        OpenApiParameter("cursor", description="`next` of the page before"),
    ],
)
@api(GET=READABLE, POST=SENT)
def scores(request: Request) -> Response:
    return _receive(request) if request.method == "POST" else _list(request)


def _receive(request: Request) -> Response:
    project = request.auth.project
    given = decoding.loads(body_of(request))
    many = given if isinstance(given, list) else [given]
    if len(many) > MOST:
        raise RowError(
            "", f"{len(many):,} scores; at most {MOST:,} are allowed. Send them in parts"
        )
    sent = []
    for index, one in enumerate(decoding.clean(many)):
        path = f"[{index}]" if isinstance(given, list) else ""
        sent.append(convert(one, Sent, path))
        try:
            value_of(sent[-1].value, sent[-1].kind)
        except RowError as error:
            raise RowError(f"{path}.{error.path}".lstrip("."), error.problem) from error
    with redaction_works():
        return Response(actions.receive(project=project, sent=sent))


def _list(request: Request) -> Response:
    project, given = request.auth.project, request.query_params
    try:
        with patience(LIST_MS):
            rows = score_rows.apply_filters(project, given)
            found, following = keyset(rows, given.get("cursor", ""), number_of(request, "limit"))
    except TooLong as error:
        raise Unavailable(TOO_LONG) from error
    runs = {row.trajectory_id for row in found if row.trajectory_id}
    runs_shown(project, runs, to=request.auth, where="scores by API")
    return Response({"results": list(map(score_rows.as_json, found)), "next": following})


@shows(RUNS)
@extend_schema(
    operation_id="v1_scores_metrics",
    responses=described({200: GROUPS}, 400, 503),
    description=(
        "The mean of each name's scores with its 95% interval, by what the runs have in common."
    ),
    parameters=[
        OpenApiParameter("by", enum=list(score_rows.BY), description="By default the version"),
        *FILTERS,
    ],
)
@api(GET=READABLE)
def metrics(request: Request) -> Response:
    project, given = request.auth.project, request.query_params
    try:
        with patience(LIST_MS):
            answer = score_rows.ask(project, given)
            runs = partial(score_rows.runs_of, project, given)
            figures_shown(project, runs, given, to=request.auth, where="figures of scores by API")
    except TooLong as error:
        raise Unavailable(TOO_LONG) from error
    return Response(
        {
            "by": answer.by,
            "scores": answer.scores,
            "complete": answer.is_complete,
            "uncounted_runs": answer.uncounted,
            "note": answer.note,
            "groups": [
                {name: getattr(group, name) for name in group.__slots__} for group in answer.groups
            ],
        }
    )


@shows(RUNS)
@extend_schema(
    operation_id="v1_scores_export",
    responses=described({}, 400) | {(200, LINES): OpenApiTypes.STR, (200, CSV): OpenApiTypes.STR},
    description="All scores that match, the oldest first, as JSON Lines or CSV.",
    parameters=[OpenApiParameter("format", enum=list(score_rows.FILES)), *FILTERS],
)
@api(GET=READABLE)
def export(request: Request) -> StreamingHttpResponse:
    return file_of(request.auth.project, request.query_params, to=request.auth)


def file_of(project: Project, given: Any, *, to: Any) -> StreamingHttpResponse:
    """The scores that match, as a file."""
    kind = given.get("format") or "jsonl"
    rows = score_rows.apply_filters(project, given)
    runs = Trajectory.objects.filter(
        project=project, pk__in=rows.order_by().values("trajectory_id")
    )
    runs_shown(project, runs, to=to, where=f"export of scores as {kind}")
    media, lines = score_rows.FILES[kind]
    headers = {"Content-Disposition": f'attachment; filename="{project.slug}-scores.{kind}"'}
    return StreamingHttpResponse(lines(rows), content_type=media, headers=headers)
