"""OpenAI's graders endpoints, at our own paths and at the hosted ones: the same requests, answers
and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.bus import publish
from apps.core.models import ApiKey, Project
from apps.core.openapi import JSON, reference
from apps.core.routes import api, shows
from apps.environments.clients import NO_JUDGE, completer, embedder, judge_of, needs_judge
from apps.environments.protocol.bodies import MAX_TOOL, Refusal, object_of, read
from apps.environments.protocol.guards import Use, UsingTask
from workers.lib.graders import run, sample_of, validate
from workers.lib.graders.errors import RunError
from workers.lib.graders.templates import render
from workers.lib.graders.validation import Grader
from workers.lib.sandbox import RETRY_AFTER_S, Busy, visiting
from workers.lib.typed import FormError, json_schema

GRADER = json_schema(Grader)
VALIDATE = {"type": "object", "required": ["grader"], "properties": {"grader": GRADER}}
RUN = {
    "type": "object",
    "required": ["grader", "model_sample"],
    "properties": {
        "grader": GRADER,
        "model_sample": {
            "type": "string",
            "description": "The model's answer: `{{sample.output_text}}`",
        },
        "item": {"type": "object", "description": "The row: `{{item.*}}`"},
    },
}
RAN = {
    "type": "object",
    "required": ["reward", "metadata", "sub_rewards", "model_grader_token_usage_per_model"],
    "properties": {
        "reward": {"type": "number"},
        "metadata": {
            "type": "object",
            "required": ["name", "type", "errors", "execution_time", "scores"],
        },
        "sub_rewards": {"type": "object"},
        "model_grader_token_usage_per_model": {"type": "object"},
    },
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


class Wrong(Exception):
    """A request that is refused in the hosted shape."""

    def __init__(
        self, message: str, param: str | None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.body = {
            "error": {
                "message": message,
                "type": "server_error" if status >= 500 else "invalid_request_error",
                "param": param,
                "code": code or "invalid_value",
            }
        }
        self.status = status


def _responses(good: dict) -> dict[Any, Any]:
    found = {(200, JSON): good} | {(status, JSON): ERROR for status in (400, 413, 429, 503)}
    return found | {
        (401, JSON): reference("Error"),
        (403, JSON): {"anyOf": [ERROR, reference("Error")]},
    }


def _run(key: ApiKey, body: dict) -> dict:
    """Raises Wrong."""
    project = key.project
    grader, item, sample = _grader(body), body.get("item", {}), body.get("model_sample")
    if not isinstance(sample, str):
        raise Wrong("“model_sample” must be the model's answer, a text.", "model_sample")
    if not isinstance(item, dict):
        raise Wrong("“item” must be an object.", "item")
    clients = _clients(project, grader)
    try:
        read_by_grader = _filled(grader, {"item": item, "sample": sample_of(sample)})
        row = {"item": item, "model_sample": sample, "grader": read_by_grader}
        publish(UsingTask(key, row, Use.SCORE))
    except Refusal as refusal:
        raise Wrong(refusal.sentence, "item", refusal.status, "held_out") from refusal
    try:
        with visiting(f"project:{project.pk}"):
            result = dict(run(grader, item, sample_of(sample), **clients))
    except Busy as busy:
        raise Wrong(str(busy), None, status=503, code="server_busy") from busy
    result.pop("details", None)
    return result


def _filled(part: Any, values: dict) -> Any:
    """A grader with its templates filled in: a request may be split between them and the row."""
    if isinstance(part, dict):
        return {name: _filled(inner, values) for name, inner in part.items()}
    if isinstance(part, list):
        return [_filled(inner, values) for inner in part]
    try:
        return render(part, values) if isinstance(part, str) and "{{" in part else part
    except (RunError, ValueError):  # a path that leads nowhere, or braces of a program
        return part


def _validate(key: ApiKey, body: dict) -> dict:
    """Raises Wrong."""
    return {"grader": _grader(body)}


def _endpoint(
    operation: str, asked: dict, given: dict, answer: Callable[[ApiKey, dict], dict], text: str
) -> Callable:
    """A separate view for each path, since OpenAPI requires unique operation ids."""

    @extend_schema(
        operation_id=operation, request={JSON: asked}, responses=_responses(given), description=text
    )
    @api(POST=scopes.RUN)
    def view(request: Request) -> Response:
        try:
            return Response(answer(request.auth, _body(request)))
        except Wrong as wrong:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if wrong.status == 503 else None
            return Response(wrong.body, status=wrong.status, headers=headers)

    return view


def _body(request: Request) -> dict:
    try:
        return object_of(read(request._request, MAX_TOOL), "The body")
    except Refusal as refusal:
        raise Wrong(
            refusal.sentence, None, status=413 if refusal.status == 413 else 400
        ) from refusal


def _grader(body: dict) -> dict:
    if "grader" not in body:
        raise Wrong(
            "Missing required parameter: 'grader'.", "grader", code="missing_required_parameter"
        )
    try:
        return validate(body["grader"])
    except FormError as error:
        raise Wrong(str(error), error.path) from error


def _clients(project: Project, grader: dict) -> dict[str, Any]:
    """Raises Wrong if the grader asks a model and the project has no judge."""
    if not needs_judge(grader):
        return {}
    server = judge_of(project)
    if server is None:
        raise Wrong(NO_JUDGE, "grader.model", code="model_not_found")
    return {"ask": completer(server), "embed": embedder(server)}


RUN_TEXT = (
    "The reward of one answer. What fails in the run gives reward 0 and a flag in"
    " `metadata.errors`, as the hosted `graders/run` did, which ended with November 2026."
)
VALIDATE_TEXT = "The grader, made whole with its defaults, as by the hosted `graders/validate`."
scoring = shows("scores of answers to held-out rows, with the right, up to a daily limit")
run_grader = scoring(_endpoint("v1_graders_run", RUN, RAN, _run, RUN_TEXT))
validate_grader = _endpoint("v1_graders_validate", VALIDATE, VALIDATE, _validate, VALIDATE_TEXT)
run_hosted = scoring(_endpoint("hosted_graders_run", RUN, RAN, _run, RUN_TEXT))
validate_hosted = _endpoint("hosted_graders_validate", VALIDATE, VALIDATE, _validate, VALIDATE_TEXT)
