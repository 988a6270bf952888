"""The API for external agents: tasks, answers, and the end. The key determines the project."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, LINES, described, page
from apps.core.query import number_of, whole_number
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import RUN
from apps.evals import answers
from apps.evals.lookups import LIMIT, find_run, needs_right
from apps.evals.models import EvalRun
from apps.trajectories.api import MAX_ROWS, parts_of, room_for
from workers.lib.typed import json_schema

TASK = {
    "type": "object",
    "required": ["id", "messages", "tools", "missing", "rollouts"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "messages": {
            "type": "array",
            "items": {"type": "object"},
            "description": "OpenAI chat messages to answer",
        },
        "tools": {"type": "array", "items": {"type": "object"}},
        "missing": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Samples without an answer",
        },
        "rollouts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "mcp", "tools"],
                "properties": {
                    "index": {"type": "integer", "description": "The sample"},
                    "mcp": {"type": "string", "format": "uri", "description": "An MCP server"},
                    "tools": {
                        "type": "string",
                        "format": "uri",
                        "description": "GET lists the tools, POST …/NAME calls one",
                    },
                },
            },
            "description": (
                "Where the agent may call the environment's tools on the state of each of these"
                " samples, without a key, until its answer is sent; empty where an episode ends"
                " after one message. A sample whose tools were called is scored by what these"
                " calls did, and its messages are not replayed."
            ),
        },
    },
}
RECEIVED = {
    "type": "object",
    "required": ["accepted", "duplicates", "rejected", "answers"],
    "properties": {
        "accepted": {"type": "integer"},
        "duplicates": {"type": "integer", "description": "The same answer was already stored"},
        "rejected": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer", "description": "The row's place in what was sent"},
                    "path": {"type": "string"},
                    "error": {"type": "string"},
                },
            },
        },
        "answers": {"type": "object"},
    },
}
CLOSED = {
    "type": "object",
    "required": ["id", "closed_now", "state", "answers"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "closed_now": {
            "type": "boolean",
            "description": "False if it was already closed to answers",
        },
        "state": {"type": "string"},
        "answers": {"type": "object"},
    },
}
ANSWERS_EXAMPLE = OpenApiExample(
    "A text, a call, a whole conversation, a failure",
    value=[
        {
            "task": "8d0e…",
            "index": 0,
            "output": "It is closed.",
            "latency_ms": 840,
            "output_tokens": 12,
        },
        {
            "task": "8d0e…",
            "index": 1,
            "tool_calls": [{"name": "tickets.close", "arguments": {"id": 12}}],
        },
        {"task": "91aa…", "index": 0, "messages": [{"role": "assistant", "content": "Done."}]},
        {"task": "91aa…", "index": 1, "error": "TimeoutError: the search tool did not answer"},
    ],
    request_only=True,
)
SEND = extend_schema(
    methods=["POST"],
    operation_id="v1_eval_runs_answer",
    request={
        JSON: {"type": "array", "items": json_schema(answers.SentRow), "maxItems": MAX_ROWS},
        LINES: {"type": "string"},
    },
    responses=described({200: RECEIVED}, 400, 403, 404, 409, 413, 503),
    examples=[ANSWERS_EXAMPLE],
    parameters=[
        OpenApiParameter(
            "agent_version",
            str,
            required=True,
            description="Must match the version the evaluation was started with",
        )
    ],
    description=(
        f"Answers from an agent that runs elsewhere: up to {MAX_ROWS} as a JSON array or JSON"
        " Lines, each at most 1 MiB. Valid rows are stored even if others are rejected. Sending"
        " the same answer twice has no effect; a different answer to the same sample is rejected."
        " Once all answers have arrived, a worker scores them."
    ),
)


@shows("the held-out tasks, to an agent with the right")
@extend_schema(
    operation_id="v1_eval_runs_tasks",
    responses=described({200: page(TASK)}, 400, 403, 404, 409),
    parameters=[
        OpenApiParameter(
            "missing",
            enum=["1"],
            description="Only tasks without an answer yet, to continue after an interruption",
        ),
        OpenApiParameter(
            "cursor", whole_number(0, 10**9, 0), description="`next` of the previous page"
        ),
        LIMIT,
    ],
    description=(
        "The tasks for an agent that runs elsewhere, without the expected answers. Held-out tasks"
        " require a key with access to hold-outs, and each counts as a view."
    ),
)
@api(GET=RUN)
def tasks(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    if not run.is_answered_elsewhere:
        return Response(
            {"detail": "This evaluation generates its own answers, so its tasks are not served."},
            status=409,
        )
    missing = request.query_params.get("missing") == "1"
    start, limit = number_of(request, "cursor"), number_of(request, "limit")
    found, following = answers.tasks_page(
        run,
        start=start,
        limit=limit,
        missing=missing,
        viewer=request.auth,
        base=request.build_absolute_uri("/"),
    )
    return Response({"results": found, "next": None if following is None else str(following)})


def send(request: Request, run: EvalRun) -> Response:
    version = request.query_params["agent_version"]
    try:
        with room_for(request):
            done = answers.receive(
                run=run, agent_version=version, rows=parts_of(request, MAX_ROWS, "answers at once")
            )
    except answers.AnswerError as error:
        return Response(
            {"detail": str(error), "answers": answers_json(find_run(request, run.pk))}, status=409
        )
    return Response(asdict(done) | {"answers": answers_json(find_run(request, run.pk))})


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_eval_runs_finish",
    request=None,
    responses=described({202: CLOSED}, 403, 404, 409),
    description=(
        "Closes the evaluation to answers and scores those received. If some are missing, the"
        " evaluation is incomplete: it keeps its samples and metrics, but cannot pass the gate. On"
        " a hold-out this requires a key with access to hold-outs."
    ),
)
@api(POST=RUN)
def finish(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    try:
        closed = answers.finish(run=run, by=request.auth.created_by)
    except answers.AnswerError as error:
        return Response({"detail": str(error)}, status=409)
    found = find_run(request, pk)
    return Response(
        {"id": str(pk), "closed_now": closed, "state": found.state, "answers": answers_json(found)},
        status=202,
    )


def agent_json(run: EvalRun) -> dict[str, str] | None:
    if not run.is_answered_elsewhere:
        return None
    return {"name": run.model_version.name, "version": run.model_version.agent_version}


def answers_json(run: EvalRun) -> dict[str, Any] | None:
    if not run.is_answered_elsewhere:
        return None
    return {
        "received": run.answers.count(),
        "expected": run.spec["tasks"] * run.samples_per_task,
        "open": run.takes_answers,
        "until": run.answers_until,
    }
