"""The environment of a frozen set over REST. The key determines the project."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.environments import create_api
from apps.evals.from_production import usual_system_prompt
from apps.evals.lookups import find_set

PROMPT = {
    "type": "object",
    "required": ["system_prompt", "count", "runs"],
    "properties": {
        "system_prompt": {"type": ["string", "null"]},
        "count": {"type": "integer", "description": "Runs that have it"},
        "runs": {"type": "integer", "description": "Runs that were read"},
    },
}


@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_sets_usual_prompt",
    responses=described({200: PROMPT}, 403, 404),
    description=(
        "The system prompt that production uses most often, to create an environment with: of the"
        " newest runs that the set's tasks were made from, without the hold-out."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_sets_environment",
    request={JSON: create_api.NEW},
    responses=create_api.MADE | described({}, 404, 409),
    examples=create_api.EXAMPLES,
    description=(
        "Creates an environment for a frozen set, pinned by its digest; otherwise like "
        "`/api/v1/environments/`."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def environment(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    if request.method == "GET":
        prompt = usual_system_prompt(eval_set)
        found = (prompt.text, prompt.count, prompt.runs) if prompt else (None, 0, 0)
        return Response(dict(zip(("system_prompt", "count", "runs"), found, strict=True)))
    if not eval_set.is_frozen:
        return Response(
            {"detail": "Freeze the set first: an environment needs immutable tasks."}, status=409
        )
    return create_api.create(request, eval_set.as_dataset)
