"""Prompt searches over REST: start, follow, stop or resume one, keep a candidate. The key
determines the project.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.api import member_of
from apps.core.models import JobState
from apps.core.openapi import JSON, NUMBER, described, page
from apps.core.operations import Page, Rest, Written, operation
from apps.core.paging import listed
from apps.core.routes import SIDES, api, shows
from apps.core.scopes import MANAGED, RESULT
from apps.evals.actions import HoldoutLeak
from apps.evals.holdout.view_log import record_refusal
from apps.evals.lookups import CURSOR, LIMIT, find_environment, find_set, find_version, form_of
from apps.registry import engines
from apps.registry.api import find_server
from apps.registry.schema import VERSION, version_json
from apps.reviews.actions import TrainingLocked
from apps.training.actions import TrainingError
from apps.training.models import PromptCandidate, PromptSearch
from apps.training.prompt_search import actions
from apps.training.prompt_search.job import save_prompt
from workers.lib.typed import Seed, Text, json_schema

SHOWN_CANDIDATES = 200


class StartSearch(Struct, forbid_unknown_fields=True, kw_only=True):
    """`version`: the model or prompt version whose prompt is improved, as name or number.
    `eval_set` and `environment`: name@version. `server` and `model` write the proposals.
    `most_calls` bounds the samples of the agent, `most_tokens` and `most_usd` what servers are
    asked, for agent and proposals together."""

    version: Text | int
    eval_set: Text
    environment: Text
    server: Text
    model: Annotated[str, Meta(min_length=1, max_length=200)]
    most_calls: Annotated[int, Meta(ge=1, le=1_000_000)]
    engine: Text = engines.AUTO
    most_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    most_usd: Annotated[float, Meta(gt=0, le=1e6)] | UnsetType = UNSET
    most_proposals: Annotated[int, Meta(ge=1, le=1000)] = 20
    samples_per_task: Annotated[int, Meta(ge=1, le=64)] = 1
    minibatch: Annotated[int, Meta(ge=1, le=20)] = 3
    score: Literal["success", "reward"] = "success"
    seed: Seed = 0


CONFIG = (
    "most_calls",
    "most_tokens",
    "most_usd",
    "most_proposals",
    "samples_per_task",
    "minibatch",
    "score",
)
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TIME = {"type": ["string", "null"], "format": "date-time"}
CANDIDATE = {
    "type": "object",
    "required": ["number", "parent", "state", "prompt", "score", "calls", "usd"],
    "properties": {
        "number": INTEGER,
        "parent": {"type": ["integer", "null"]},
        "state": {"enum": PromptCandidate.State.values},
        "prompt": STRING,
        "score": (
            NUMBER | {"description": "On the validation tasks; null if it was rejected before"}
        ),
        "before": NUMBER,
        "after": NUMBER,
        "calls": INTEGER | {"description": "Agent samples used by the search up to then"},
        "usd": {"type": ["number", "null"], "description": "null if a price is unknown"},
    },
}
SEARCH = {
    "type": "object",
    "required": [
        "id",
        "name",
        "state",
        "version",
        "eval_set",
        "environment",
        "done",
        "total",
        "label",
        "error",
        "used",
        "url",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": STRING,
        "state": {"enum": JobState.values},
        "version": STRING,
        "eval_set": STRING,
        "environment": STRING,
        "server": STRING,
        "model": STRING,
        "config": {"type": "object"},
        "seed": INTEGER,
        "done": INTEGER,
        "total": INTEGER,
        "label": STRING,
        "error": STRING,
        "used": {
            "type": "object",
            "description": (
                "calls, input_tokens, output_tokens, usd, also of a search that failed; `usd` is"
                " null if a price is unknown"
            ),
        },
        "start_score": NUMBER,
        "score": NUMBER,
        "stopped": {
            "type": "string",
            "description": "Why it stopped before using up its proposals, if it did",
        },
        "model_version": {
            "type": ["string", "null"],
            "description": "The prompt version that was found; null if none was better",
        },
        "candidates": {
            "type": "array",
            "items": CANDIDATE,
            "description": f"Of one search: the first {SHOWN_CANDIDATES}",
        },
        "url": STRING,
        "created_at": TIME,
        "started_at": TIME,
        "finished_at": TIME,
    },
}
EXAMPLE = OpenApiExample(
    "A search for at most $5",
    value={
        "version": "support-v3",
        "eval_set": "support@3",
        "environment": "helpdesk@1",
        "server": "openai",
        "model": "gpt-5",
        "most_calls": 300,
        "most_usd": 5,
    },
    request_only=True,
)


@shows(SIDES)
@extend_schema(
    methods=["GET"],
    operation_id="v1_prompt_searches_list",
    responses=described({200: page(SEARCH)}, 400),
    parameters=[CURSOR, LIMIT],
    description="Prompt searches, newest first, without their candidates.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_prompt_searches_start",
    request={JSON: json_schema(StartSearch)},
    responses=described({201: SEARCH}, 400, 403, 404, 409, 413),
    examples=[EXAMPLE],
    description=(
        "Queues a search; poll it until its state is final. Like training, it requires a reviewed"
        " reward: a 409 response says what is missing."
    ),
)
@api(GET=RESULT, POST=MANAGED)
def collection(request: Request) -> Response:
    if request.method == "GET":
        return listed(request, _searches(request), as_json)
    member_of(request)
    asked = form_of(request, StartSearch)
    config = {name: value for name in CONFIG if (value := getattr(asked, name)) is not UNSET}
    try:
        search = actions.submit_search(
            project=request.auth.project,
            version=find_version(request, asked.version),
            eval_set=find_set(request, asked.eval_set),
            environment=find_environment(request, asked.environment),
            server=find_server(request, asked.server),
            model=asked.model,
            engine=asked.engine,
            config=config,
            seed=asked.seed,
            by=request.auth.created_by,
        )
    except (TrainingError, TrainingLocked) as error:
        record_refusal(request.auth.project, error, by=request.auth)
        return Response({"detail": str(error)}, status=409)
    return Response(as_json(request, search), status=201)


@extend_schema(
    operation_id="v1_prompt_searches_read",
    responses=described({200: SEARCH}, 404),
    description="State, progress, usage, and the candidates with their scores.",
)
@api(GET=RESULT)
def item(request: Request, pk: UUID) -> Response:
    search = _search(request, pk)
    rows = [candidate_json(row) for row in search.candidates.all()[:SHOWN_CANDIDATES]]
    return Response(as_json(request, search) | {"candidates": rows})


class SaveCandidate(Struct, forbid_unknown_fields=True, kw_only=True):
    candidate: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Its number")]


@shows(SIDES)
@extend_schema(
    operation_id="v1_prompt_searches_save",
    request={JSON: json_schema(SaveCandidate)},
    responses=described({200: VERSION, 201: VERSION}, 400, 403, 404, 409, 413),
    description=(
        "Saves a candidate as a prompt version, also from a stopped search: 201, or 200 if a"
        " version with this prompt already exists. 409 if the prompt contains held-out data, which"
        " counts as a view."
    ),
)
@api(POST=MANAGED)
def save(request: Request, pk: UUID) -> Response:
    search, by = _search(request, pk), member_of(request).user
    candidate = search.candidates.filter(number=form_of(request, SaveCandidate).candidate).first()
    if candidate is None:
        raise NotFound("This search has no candidate with this number (`candidate`).")
    try:
        version = save_prompt(
            search, candidate.prompt, number=candidate.number, by=by, viewer=request.auth
        )
    except HoldoutLeak as error:
        return Response({"detail": str(error)}, status=409)
    return Response(version_json(version), status=201 if version.is_new else 200)


def _searches(request: Request) -> Any:
    rows = PromptSearch.objects.filter(project=request.auth.project)
    return rows.select_related(
        "project", "version", "model_version", "dataset__eval_set", "environment"
    )


def _search(request: Request, pk: UUID) -> PromptSearch:
    found = _searches(request).filter(pk=pk).first()
    if found is None:
        raise NotFound("No prompt search of this project has this id.")
    return found


def as_json(request: Request, search: PromptSearch) -> dict[str, Any]:
    spec, result = search.spec, search.result
    return {
        "id": str(search.pk),
        "name": search.name,
        "state": search.state,
        "version": str(search.version),
        "eval_set": str(search.dataset.eval_set),
        "environment": str(search.environment),
        "server": spec["reflecting"]["server_name"],
        "model": spec["reflecting"]["model"],
        "config": spec["config"],
        "seed": spec["seed"],
        "done": search.done,
        "total": search.total,
        "label": search.label,
        "error": search.error,
        "used": search.used | {"usd": search.usd},
        "start_score": result.get("start_score"),
        "score": result.get("score"),
        "stopped": result.get("stopped") or "",
        "model_version": str(search.model_version) if search.model_version else None,
        "url": request.build_absolute_uri(
            reverse("training:search", args=[search.project.slug, search.pk])
        ),
        "created_at": search.created_at,
        "started_at": search.started_at,
        "finished_at": search.finished_at,
    }


def candidate_json(candidate: PromptCandidate) -> dict[str, Any]:
    names = ("number", "parent", "state", "prompt", "score", "before", "after", "calls", "usd")
    unknown = {"usd": None} if candidate.search.unpriced else {}
    return {name: getattr(candidate, name) for name in names} | unknown


SEARCH_OF = Written(SEARCH, as_json)


@operation(
    "prompt_searches_cancel",
    rest=Rest("POST", "prompt-searches/<uuid:pk>/cancel/", "search_cancel"),
    page=Page(
        "prompt-searches/<uuid:pk>/cancel/",
        "search_cancel",
        done="Stopping. Results so far are kept, and any candidate can be saved.",
    ),
    gives=SEARCH_OF,
)
def cancel(*, search: PromptSearch, by: Any) -> None:
    """Stops a search; its candidates so far are kept."""
    jobs.stop(search, by=by)


@operation(
    "prompt_searches_resume",
    rest=Rest("POST", "prompt-searches/<uuid:pk>/resume/", "search_resume"),
    page=Page(
        "prompt-searches/<uuid:pk>/resume/",
        "search_resume",
        done="Queued again. Earlier calls are not repeated.",
    ),
    gives=SEARCH_OF,
)
def resume(*, search: PromptSearch, by: Any) -> None:
    """Queues a failed or cancelled search again. Completed calls are not repeated."""
    actions.resume(search=search, by=by)
