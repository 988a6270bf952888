"""The life cycle of an eval set over REST: split its tasks, freeze it, start its next version,
create its environment. The key determines the project."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, extend_schema
from msgspec import Meta, Struct
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described
from apps.environments import create_api
from apps.evals import actions
from apps.evals.api import SET, as_json
from apps.evals.from_production import usual_system_prompt
from apps.evals.lookups import find_set, form_of
from workers.lib.typed import Seed, json_schema

MOST_TASKS = 10_000_000
Size = Annotated[int, Meta(ge=0, le=MOST_TASKS)]


class Divide(Struct, forbid_unknown_fields=True, kw_only=True):
    """The minimum number of held-out and validation tasks; groups stay whole, the rest is training
    data.
    """

    holdout_size: Annotated[int, Meta(ge=1, le=MOST_TASKS)]
    validation_size: Size = 0
    seed: Seed = 0


@extend_schema(
    operation_id="v1_eval_sets_split",
    request={JSON: json_schema(Divide)},
    responses=described({200: SET}, 400, 403, 404, 409, 413),
    examples=[
        OpenApiExample(
            "60 held out", {"holdout_size": 60, "validation_size": 20, "seed": 1}, request_only=True
        )
    ],
    description=(
        "Splits a draft into hold-out, validation and train, keeping groups together. `counts` has"
        " the number of tasks in each split. Groups that are held out elsewhere stay held out."
    ),
)
@api_view(["POST"])
def split(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    by, asked = member_of(request).user, form_of(request, Divide)
    sizes = {"holdout_size": asked.holdout_size, "validation_size": asked.validation_size}
    actions.split_by_group(eval_set=eval_set, seed=asked.seed, by=by, **sizes)
    return Response(as_json(find_set(request, pk)))


class Freeze(Struct, forbid_unknown_fields=True, kw_only=True):
    """A set without held-out tasks is only frozen by choice: they cannot be held out later, once
    the set is in use.
    """

    without_holdout: bool = False


@extend_schema(
    operation_id="v1_eval_sets_freeze",
    request={JSON: json_schema(Freeze)},
    responses=described({200: SET}, 400, 403, 404, 409, 413),
    examples=[OpenApiExample("With a hold-out", {}, request_only=True)],
    description=(
        "Freezes a draft: its tasks become immutable, identified by `digest`. A 409 response"
        " explains what prevents freezing, such as a set without held-out tasks unless"
        " `without_holdout` is true."
    ),
)
@api_view(["POST"])
def freeze(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    by, asked = member_of(request).user, form_of(request, Freeze)
    actions.freeze(eval_set=eval_set, by=by, without_holdout=asked.without_holdout)
    return Response(as_json(find_set(request, pk)))


@extend_schema(
    operation_id="v1_eval_sets_reopen",
    request=None,
    responses=described({200: SET}, 403, 404, 409),
    description=(
        "Makes a frozen set without held-out tasks a draft again, so that it can be split. A 409"
        " response names what prevents it: a hold-out, training data made from the set, or jobs"
        " that have not ended. Evaluations of it stay, and so do the tasks they evaluated."
    ),
)
@api_view(["POST"])
def reopen(request: Request, pk: UUID) -> Response:
    eval_set, by = find_set(request, pk), member_of(request).user
    actions.reopen(eval_set=eval_set, by=by)
    return Response(as_json(find_set(request, pk)))


@extend_schema(
    operation_id="v1_eval_sets_new_version",
    request=None,
    responses=described({201: SET}, 403, 404, 409),
    description=(
        "Creates a draft with the same tasks and the next version number. 409 if the set already"
        " has a draft."
    ),
)
@api_view(["POST"])
def new_version(request: Request, pk: UUID) -> Response:
    eval_set, by = find_set(request, pk), member_of(request).user
    made = actions.new_version(eval_set=eval_set, by=by)
    return Response(as_json(made), status=201)


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
@api_view(["GET", "POST"])
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
