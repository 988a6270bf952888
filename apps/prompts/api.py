"""Playgrounds over REST: a few versions answer a few requests side by side; what is good is kept.
The key determines the project.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, Literal
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound, PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.api import member_of
from apps.core.models import JobState
from apps.core.openapi import JSON, NUMBER, described, page
from apps.core.operations import Page, Rest, Written, operation
from apps.core.paging import listed
from apps.core.routes import SIDES, api, shows
from apps.core.scopes import MANAGED, RESULT, RUN, Scope
from apps.evals.holdout.view_log import record_membership, record_seen
from apps.evals.lookups import (
    CURSOR,
    LIMIT,
    NO_RIGHT,
    filtered,
    find_environment,
    find_set,
    find_version,
    form_of,
)
from apps.evals.models import Split, Task
from apps.evals.sources_api import SOURCED, expected_of, stored
from apps.prompts import playground as actions
from apps.prompts.models import Playground
from apps.prompts.playground import MOST_CASES, MOST_SAMPLES, MOST_SIDES, MOST_TOKENS, Side, Step
from apps.registry import engines, schema
from apps.registry.models import ModelKind
from apps.trajectories.actions import store
from workers.lib.typed import Seed, Text, json_schema


class AskedSide(Struct, forbid_unknown_fields=True, kw_only=True):
    """`version`: name or number. `changes` replace parts of its prompt: system_prompt, examples,
    tools, sampling.
    """

    version: Text | int
    changes: dict[str, Any] = {}
    engine: Text = engines.AUTO


class StartPlayground(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either tasks of a set by their keys, never held-out ones, or the step `step` (a message of
    the agent) of the run `trajectory`. `expected`: the expected answer at that step, in the format
    of tasks; without it, verifiers that compare give no score. `most_tokens` and `most_usd` limit
    each version, on servers."""

    environment: Text
    sides: Annotated[list[AskedSide], Meta(min_length=1, max_length=MOST_SIDES)]
    eval_set: Text | None = None
    tasks: Annotated[list[Text], Meta(max_length=MOST_CASES)] = []
    trajectory: Text | None = None
    step: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    expected: dict[str, Any] = {}
    samples_per_task: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] = 1
    seed: Seed = 0
    most_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] = MOST_TOKENS
    most_usd: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class KeepPrompt(Struct, forbid_unknown_fields=True, kw_only=True):
    """`side`: from 0. A name there is already gets its next version."""

    side: Annotated[int, Meta(ge=0, lt=MOST_SIDES)]
    name: Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,80}\Z")]


class KeepTask(Struct, forbid_unknown_fields=True, kw_only=True):
    eval_set: Text
    expected: dict[str, Any]
    split: Literal["train", "validation"] = "train"


STRING, INTEGER, TIME = (
    {"type": "string"},
    {"type": "integer"},
    {"type": ["string", "null"], "format": "date-time"},
)
ANSWER = {
    "type": "object",
    "required": ["side", "index", "output", "reward", "success", "masked"],
    "properties": {
        "side": INTEGER,
        "index": INTEGER,
        "output": STRING,
        "messages": {"type": "array", "items": {"type": "object"}},
        "reward": NUMBER,
        "success": {"type": "boolean"},
        "masked": {"type": "boolean", "description": "It could not be scored"},
        "mask_reason": STRING,
        "components": {"type": "object"},
        "details": {"type": "array", "items": STRING},
        "stop_reason": STRING,
        "latency_ms": NUMBER,
        "input_tokens": {"type": ["integer", "null"]},
        "output_tokens": {"type": ["integer", "null"]},
    },
}
PARTIAL = {
    "type": "object",
    "description": "What is written of an answer so far (`is_live`), or was when it was cut",
    "required": ["side", "index", "text", "thought", "calls", "is_live"],
    "properties": {
        "side": INTEGER,
        "index": INTEGER,
        "text": STRING,
        "thought": STRING,
        "calls": {
            "type": "array",
            "items": {"type": "object", "properties": {"name": STRING, "arguments": STRING}},
        },
        "is_live": {"type": "boolean"},
    },
}
CASE = {
    "type": "object",
    "required": ["key", "set", "messages", "expected", "answers", "partial"],
    "properties": {
        "key": STRING,
        "set": STRING,
        "messages": {"type": "array", "items": {"type": "object"}},
        "expected": {"type": "object"},
        "answers": {"type": "array", "items": ANSWER},
        "partial": {"type": "array", "items": PARTIAL},
    },
}
SIDE = {
    "type": "object",
    "required": ["version"],
    "properties": {
        "version": STRING,
        "prompt": {"type": "object"},
        "scored": INTEGER,
        "passed": INTEGER,
        "reward": NUMBER,
        "tokens": {"type": ["integer", "null"]},
        "error": STRING,
    },
}
PLAYGROUND = {
    "type": "object",
    "required": ["id", "name", "state", "environment", "sides", "done", "total", "error", "url"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": STRING,
        "state": {"enum": JobState.values},
        "environment": STRING,
        "trajectory": {"type": ["string", "null"]},
        "step": {"type": ["integer", "null"]},
        "samples_per_task": INTEGER,
        "sides": {"type": "array", "items": SIDE},
        "done": INTEGER,
        "total": INTEGER,
        "label": STRING,
        "error": STRING,
        "url": STRING,
        "created_at": TIME,
        "started_at": TIME,
        "finished_at": TIME,
    },
}
WHOLE = PLAYGROUND | {
    "required": [*PLAYGROUND["required"], "cases"],
    "properties": PLAYGROUND["properties"] | {"cases": {"type": "array", "items": CASE}},
}
EXAMPLES = [
    OpenApiExample(
        "An edited prompt next to the original, on two tasks",
        {
            "environment": "helpdesk@1",
            "eval_set": "support@3",
            "tasks": ["ticket-12", "ticket-40"],
            "sides": [
                {"version": "support-v3"},
                {"version": "support-v3", "changes": {"system_prompt": "Close tickets at once."}},
            ],
        },
        request_only=True,
    ),
    OpenApiExample(
        "A step of a run in production",
        {
            "environment": "helpdesk@1",
            "trajectory": "run-1",
            "step": 2,
            "sides": [{"version": "support-v4"}],
            "expected": {"tool": "tickets.close", "args": {"id": 12}},
        },
        request_only=True,
    ),
]
SHOWN = (
    "side",
    "index",
    "output",
    "messages",
    "reward",
    "success",
    "masked",
    "mask_reason",
    "components",
    "details",
    "stop_reason",
    "latency_ms",
    "input_tokens",
    "output_tokens",
)


@shows(SIDES)
@extend_schema(
    methods=["GET"],
    operation_id="v1_playgrounds_list",
    responses=described({200: page(PLAYGROUND)}, 400),
    parameters=[OpenApiParameter("state", enum=JobState.values), CURSOR, LIMIT],
    description="Playgrounds, the newest first, without requests and answers.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_playgrounds_start",
    request={JSON: json_schema(StartPlayground)},
    responses=described({201: PLAYGROUND}, 400, 403, 404, 409, 413),
    examples=EXAMPLES,
    description=(
        "Queues the answers of one to four versions; read it until its state is final. 409 where a"
        " request is, or is like, what is held out. A step of a run needs a key that may also read."
    ),
)
@api(GET=RESULT, POST=RUN)
def collection(request: Request) -> Response:
    if request.method == "GET":
        return listed(request, filtered(request, _rows(request), {"state": None}), as_json)
    by, asked = member_of(request).user, form_of(request, StartPlayground)
    if (asked.eval_set is None) == (asked.trajectory is None):
        raise ValidationError(
            {
                "path": "eval_set",
                "error": "send either this, with “tasks”, or “trajectory” with “step”",
            }
        )
    run = actions.start(
        project=request.auth.project,
        environment=find_environment(request, asked.environment),
        sides=[_side(request, number, side) for number, side in enumerate(asked.sides)],
        tasks=_tasks(request, asked) if asked.eval_set is not None else (),
        step=_step(request, asked) if asked.trajectory is not None else None,
        samples_per_task=asked.samples_per_task,
        seed=asked.seed,
        most_tokens=asked.most_tokens,
        most_usd=asked.most_usd or 0.0,
        by=by,
    )
    return Response(as_json(request, run), status=201)


def _side(request: Request, number: int, side: AskedSide) -> Side:
    """Raises NotFound, ValidationError."""
    version = find_version(request, side.version)
    if version.kind == ModelKind.AGENT:
        problem = "is an agent, which runs its own loop: choose a model or a prompt version"
        raise ValidationError({"path": f"sides[{number}].version", "error": problem})
    return Side(version, side.changes, side.engine)


def _tasks(request: Request, asked: StartPlayground) -> list[Task]:
    """Raises NotFound for an unknown key and for a held-out task, without saying which."""
    eval_set = find_set(request, asked.eval_set or "")
    rows = (
        eval_set.tasks.exclude(split=Split.HOLDOUT)
        .filter(key__in=asked.tasks)
        .select_related("eval_set")
    )
    found = {task.key: task for task in rows}
    if missing := next((key for key in asked.tasks if key not in found), None):
        raise NotFound(
            f"{eval_set} has no task “{missing[:120]}” that a playground may ask (`tasks`)."
        )
    return [found[key] for key in dict.fromkeys(asked.tasks)]


def _step(request: Request, asked: StartPlayground) -> Step:
    """Raises NotFound, PermissionDenied, ValidationError."""
    _needs_reading(request)
    run = store.find(request.auth.project, asked.trajectory or "")
    if run is None:
        raise NotFound("No trajectory of this project has this id (`trajectory`).")
    if asked.step is None:
        raise ValidationError(
            {"path": "step", "error": "is missing: which message of the agent is replayed"}
        )
    return Step(run, asked.step, expected_of(asked.expected) if asked.expected else {})


def _needs_reading(request: Request) -> None:
    """A key that may only evaluate reads no trajectory, here neither. Raises PermissionDenied."""
    if not request.auth.may(Scope.READ):
        raise PermissionDenied("A step of a run is read with a key that has the scope “read”.")


@shows("the runs from which held-out tasks were made, and answers to them, with the right")
@extend_schema(
    operation_id="v1_playgrounds_read",
    responses=described({200: WHOLE}, 403, 404),
    description=(
        "State and progress; each version's prompt and totals; each request with all answers and"
        " their scores, and the text so far of unfinished ones. If a request was held out since,"
        " this needs a key that may see hold-outs, and counts as a view."
    ),
)
@api(GET=RESULT)
def item(request: Request, pk: UUID) -> Response:
    run = _find(request, pk)
    _record_view(request, run)
    answers = list(run.answers.all())
    of_case: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for answer in answers:
        of_case[answer.case].append({name: getattr(answer, name) for name in SHOWN})
    partial: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in actions.partial_answers(run, answers):
        partial[part["case"]].append({name: part[name] for name in PARTIAL["required"]})
    sides = [
        {"version": side["name"], "prompt": side["prompt"]} | actions.sums_of(run, number, answers)
        for number, side in enumerate(run.spec["sides"])
    ]
    cases = [
        {name: case[name] for name in ("key", "set", "messages", "expected")}
        | {"answers": of_case[case["id"]], "partial": partial[case["id"]]}
        for case in run.spec["cases"]
    ]
    return Response(as_json(request, run) | {"sides": sides, "cases": cases})


def _record_view(request: Request, run: Playground) -> None:
    """Its content may have been held out since. Raises PermissionDenied for a key that may not see
    it, or may not read runs.
    """
    if run.step is not None:  # also if the run was deleted since: its content is in the playground
        _needs_reading(request)
    asked, project = actions.asked_tasks(run), request.auth.project
    held = asked.holdout().filter(project=project)
    if not request.auth.sees_holdout and held.exists():
        hashes = held.values_list("canonical_hash", flat=True)
        record_membership(project, hashes, by=request.auth, detail=f"playground {run.pk}")
        raise PermissionDenied(NO_RIGHT)
    record_seen(project, asked, by=request.auth, detail=f"playground {run.pk}")


@extend_schema(
    operation_id="v1_playgrounds_save_prompt",
    request={JSON: json_schema(KeepPrompt)},
    responses=described({200: schema.VERSION, 201: schema.VERSION}, 400, 403, 404, 413),
    description=(
        "Saves the prompt of a side as a prompt version: 201, or 200 for the version there is with"
        " this prompt."
    ),
)
@api(POST=MANAGED)
def save_prompt(request: Request, pk: UUID) -> Response:
    run, by, asked = _find(request, pk), member_of(request).user, form_of(request, KeepPrompt)
    if asked.side >= len(run.spec["sides"]):
        raise ValidationError(
            {"path": "side", "error": f"must be less than {len(run.spec['sides'])}"}
        )
    version = actions.save_prompt(playground=run, side=asked.side, name=asked.name, by=by)
    return Response(schema.version_json(version), status=201 if version.is_new else 200)


@shows(SIDES)
@extend_schema(
    operation_id="v1_playgrounds_save_task",
    request={JSON: json_schema(KeepTask)},
    responses=described({200: SOURCED, 201: SOURCED}, 400, 403, 404, 409, 413),
    description=(
        "Adds the replayed step of a run to a draft, with what is right there. 409 where tasks were"
        " asked."
    ),
)
@api(POST=MANAGED)
def save_task(request: Request, pk: UUID) -> Response:
    run, by, asked = _find(request, pk), member_of(request).user, form_of(request, KeepTask)
    eval_set = find_set(request, asked.eval_set)
    made = actions.save_task(
        playground=run,
        eval_set=eval_set,
        split=Split(asked.split),
        expected=expected_of(asked.expected),
        by=by,
        viewer=request.auth,
    )
    return stored(made)


def _rows(request: Request) -> Any:
    rows = Playground.objects.filter(project=request.auth.project)
    return rows.select_related("project", "environment__verifier", "trajectory")


def _find(request: Request, pk: UUID) -> Playground:
    """Raises NotFound."""
    found = _rows(request).filter(pk=pk).first()
    if found is None:
        raise NotFound("No playground of this project has this id.")
    return found


def as_json(request: Request, run: Playground) -> dict[str, Any]:
    names = (
        "name",
        "state",
        "step",
        "samples_per_task",
        "done",
        "total",
        "label",
        "error",
        "created_at",
        "started_at",
        "finished_at",
    )
    return {name: getattr(run, name) for name in names} | {
        "id": str(run.pk),
        "environment": str(run.environment),
        "trajectory": run.trajectory.external_id if run.trajectory else None,
        "sides": [{"version": side["name"]} for side in run.spec["sides"]],
        "url": request.build_absolute_uri(
            reverse("prompts:playground", args=[run.project.slug, run.pk])
        ),
    }


@operation(
    "playgrounds_cancel",
    rest=Rest("POST", "playgrounds/<uuid:pk>/cancel/", "playground_cancel"),
    page=Page("playground/<uuid:pk>/cancel/", "playground_cancel"),
    gives=Written(PLAYGROUND, as_json),
    scope=Scope.EVALUATE,
)
def cancel(*, run: Playground, by: Any) -> None:
    """Stops a playground; the answers so far are kept."""
    jobs.stop(run, by=by)
