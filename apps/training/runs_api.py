"""Training runs over REST: their state, their downsampled curves, their rollouts, and several side
by side.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.differences import side_by_side
from apps.core.models import JobState
from apps.core.openapi import JSON, NUMBER, described, page
from apps.core.paging import listed
from apps.core.query import LARGEST_KEY, number_of, whole_number
from apps.core.routes import SIDES, TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import MANAGED, RESULT
from apps.evals.holdout.view_log import record_refusal
from apps.evals.lookups import CURSOR, LIMIT, filtered, form_of
from apps.evals.runs_schema import ESTIMATE
from apps.reviews.actions import TrainingLocked
from apps.training import comparison, run_alarms
from apps.training.actions import TrainingError
from apps.training.budget import measuring
from apps.training.budget.estimate import estimate
from apps.training.budget.learning import teaching
from apps.training.budget.truth import add_used, compared
from apps.training.checkpoints import available
from apps.training.config_yaml import MOST_SEEDS, ConfigError, config_of, read, write
from apps.training.models import Method, Rollout, RunAlarm, TrainingRun
from apps.training.rollouts import OUTCOME, Filters, group_of, standing, with_advantages
from apps.training.starts import asked_from, start_from
from workers.lib.typed import Text, json_schema

MOST_POINTS = 2_000
STRING, INTEGER, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
ALARM = {
    "type": "object",
    "required": ["name", "step", "action", "message", "todo"],
    "properties": {
        "name": STRING,
        "title": STRING,
        "step": INTEGER,
        "action": {"enum": RunAlarm.Action.values},
        "value": NUMBER,
        "threshold": NUMBER,
        "message": STRING,
        "todo": STRING,
        "cleared_step": {"type": ["integer", "null"]},
        "at": {"type": "string", "format": "date-time"},
    },
}
RUN = {
    "type": "object",
    "required": [
        "id",
        "name",
        "method",
        "state",
        "parent",
        "eval_set",
        "environment",
        "config",
        "done",
        "total",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": STRING,
        "method": {"enum": Method.values},
        "state": {"enum": JobState.values},
        "parent": STRING,
        "eval_set": STRING,
        "dataset_digest": STRING,
        "environment": STRING,
        "verifier": STRING,
        "config": OBJECT,
        "seed": INTEGER,
        "done": INTEGER,
        "total": INTEGER,
        "label": STRING,
        "error": STRING,
        "model_version": {"type": ["string", "null"], "description": "The resulting model version"},
        "url": STRING,
        "created_at": {"type": "string", "format": "date-time"},
        "started_at": {"type": ["string", "null"], "format": "date-time"},
        "finished_at": {"type": ["string", "null"], "format": "date-time"},
        "forked_from": {
            "type": ["object", "null"],
            "description": (
                "{run, name, step} of the checkpoint it started "
                "from, and whether it reuses its `samples`"
            ),
        },
        "alarms": {"type": "array", "items": ALARM, "description": "Newest first"},
        "outcome": {
            "type": "array",
            "items": STRING,
            "description": "What training has achieved, in sentences; empty before its end",
        },
        "estimate": {
            "type": "array",
            "items": OBJECT,
            "description": "Estimates, as {name, unit, low, likely, high, actual}",
        },
        "paused": {
            "type": ["object", "null"],
            "description": "{alarm, step, message, todo} of the alarm that paused it",
        },
        "checkpoints": {
            "type": "array",
            "items": INTEGER,
            "description": "Steps it can be forked from, newest first (single run only)",
        },
    },
}
CURVES = {
    "type": "object",
    "required": ["names", "curves"],
    "properties": {
        "names": {"type": "array", "items": STRING, "description": "All metrics of the run"},
        "curves": {
            "type": "object",
            "description": "{metric: [[x, value], …]}",
            "additionalProperties": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "number"}},
            },
        },
    },
}
SPAN = {
    "type": ["object", "null"],
    "properties": {"low": NUMBER, "likely": NUMBER, "high": NUMBER},
}
ESTIMATED = {
    "type": "object",
    "required": ["runs", "steps", "problem", "fits", "learns"],
    "properties": {
        "runs": INTEGER,
        "steps": INTEGER,
        "rows": INTEGER,
        "sampled": INTEGER,
        "prompt": NUMBER,
        "rollout_tokens": SPAN,
        "teacher_tokens": SPAN,
        "training_tokens": SPAN,
        "distinct_tokens": SPAN,
        "seconds": SPAN,
        "parts": OBJECT,
        "memory": SPAN,
        "available": INTEGER,
        "usd": SPAN,
        "price": STRING,
        "lengths": STRING,
        "measured_at": {"type": ["string", "null"], "format": "date-time"},
        "measured_on": STRING,
        "measurement": STRING,
        "problem": STRING,
        "fits": {"type": ["boolean", "null"]},
        "learns": STRING,
        "measuring": {
            "type": ["integer", "null"],
            "description": "Progress of the running measurement, in percent",
        },
        "reduce": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "words": STRING,
                    "memory": NUMBER,
                    "slower": NUMBER,
                    "same": {"type": "boolean"},
                    "fits": {"type": "boolean"},
                },
            },
        },
    },
}
ROLLOUT = {
    "type": "object",
    "required": ["id", "phase", "step", "task", "index", "reward", "advantage", "masked", "output"],
    "properties": {
        "id": INTEGER,
        "phase": {"enum": Rollout.Phase.values},
        "step": INTEGER,
        "task": {"type": "string", "format": "uuid"},
        "key": STRING,
        "index": INTEGER,
        "reward": NUMBER,
        "advantage": NUMBER,
        "success": {"type": "boolean"},
        "masked": {"type": "boolean"},
        "mask_reason": STRING,
        "components": OBJECT,
        "details": {"type": "array", "items": STRING},
        "output": STRING,
        "messages": {"type": "array", "items": OBJECT},
        "stop_reason": STRING,
        "latency_ms": NUMBER,
        "input_tokens": {"type": ["integer", "null"]},
        "output_tokens": {"type": ["integer", "null"]},
    },
}
WHOLE_ROLLOUT = ROLLOUT | {
    "properties": (
        ROLLOUT["properties"]
        | {
            "counted": {
                "type": "string",
                "description": "How it was used: trained, masked, left out, no signal, …",
            },
            "why": STRING,
            "request": {"type": "array", "items": OBJECT},
            "expected": {},
            "group": {
                "type": "array",
                "items": OBJECT,
                "description": "{id, index, reward, advantage} of its group",
            },
        }
    )
}
COMPARISON = {
    "type": "object",
    "required": ["runs", "settings"],
    "properties": {
        "runs": {
            "type": "array",
            "items": (
                RUN
                | {
                    "properties": (
                        RUN["properties"]
                        | {
                            "metrics": {
                                "type": "object",
                                "description": (
                                    "{metric: {last, step, mean, low, high}}, the last three over"
                                    " the last tenth of the steps"
                                ),
                            },
                            "validation": {
                                "type": ["object", "null"],
                                "properties": {
                                    "step": INTEGER,
                                    "tasks": INTEGER,
                                    "success": ESTIMATE,
                                    "reward": ESTIMATE,
                                },
                            },
                            "evaluation": {
                                "type": ["object", "null"],
                                "description": (
                                    "The newest evaluation of the resulting version: {id, eval_set,"
                                    " split, success}"
                                ),
                            },
                        }
                    )
                }
            ),
        },
        "settings": {
            "type": "array",
            "items": OBJECT,
            "description": "{name, values, differs}; a value for each run, as text",
        },
    },
}
TOLD = (
    "id",
    "phase",
    "step",
    "index",
    "reward",
    "success",
    "masked",
    "mask_reason",
    "components",
    "details",
    "output",
    "messages",
    "stop_reason",
    "latency_ms",
    "input_tokens",
    "output_tokens",
)


class StartRuns(Struct, forbid_unknown_fields=True, kw_only=True):
    """`yaml`: a training config, as a run's page exports it. `seeds`: how many runs, from its seed
    on.
    """

    yaml: Text
    seeds: Annotated[int, Meta(ge=1, le=MOST_SEEDS)] = 1


def started(request: Request) -> Response:
    member_of(request)
    asked, project = form_of(request, StartRuns), request.auth.project
    try:
        runs = start_from(
            read(asked.yaml), project=project, by=request.auth.created_by, seeds=asked.seeds
        )
    except ConfigError as error:
        raise ValidationError(
            {"path": f"yaml.{error.field}".rstrip("."), "error": str(error)}
        ) from error
    except (TrainingError, TrainingLocked) as error:
        record_refusal(project, error, by=request.auth)
        return Response({"detail": str(error)}, status=409)
    return Response([as_json(request, run) for run in runs], status=201)


class EstimateRun(StartRuns):
    """`measure`: whether to measure the model where that has not been done, which takes half a
    minute.
    """

    measure: bool = False


@extend_schema(
    operation_id="v1_training_runs_estimate",
    request={JSON: json_schema(EstimateRun)},
    responses=described({200: ESTIMATED}, 400, 403, 413),
    description=(
        "Estimates the cost of the run that a training config describes: tokens, seconds, memory"
        " and USD with ranges, what to reduce if it does not fit, and whether its tasks are"
        " informative. Time and memory are null until the model has been measured."
    ),
)
@api(POST=MANAGED)
def estimated(request: Request) -> Response:
    member_of(request)
    asked = form_of(request, EstimateRun)
    try:
        run = asked_from(read(asked.yaml), project=request.auth.project, seeds=asked.seeds)
    except ConfigError as error:
        raise ValidationError(
            {"path": f"yaml.{error.field}".rstrip("."), "error": str(error)}
        ) from error
    found, learns = estimate(run), teaching(run)
    if asked.measure and found.measured_at is None and not found.problem:
        measuring.measure_for(run, by=request.auth.created_by)
    going = measuring.under_way(run.parent, run.config, run.rollouts)
    return Response(
        found.as_json()
        | {
            "fits": found.fits,
            "learns": learns.sentence,
            "measuring": going.percent if going else None,
        }
    )


@extend_schema(
    operation_id="v1_training_runs_config",
    responses=described(
        {200: {"type": "object", "required": ["yaml"], "properties": {"yaml": STRING}}}, 404, 409
    ),
    description=(
        "The frozen settings of a run as YAML. POST them to /training-runs/ to start the same run"
        " again."
    ),
)
@api(GET=RESULT)
def config(request: Request, pk: UUID) -> Response:
    try:
        return Response({"yaml": write(config_of(find(request, pk)))})
    except ConfigError as error:
        return Response({"detail": str(error)}, status=409)


@shows(SIDES)
@extend_schema(
    methods=["GET"],
    operation_id="v1_training_runs_list",
    responses=described({200: page(RUN)}, 400),
    description="Training runs, newest first.",
    parameters=[
        OpenApiParameter("state", enum=JobState.values),
        OpenApiParameter("method", enum=Method.values),
        CURSOR,
        LIMIT,
    ],
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_training_runs_start",
    request={JSON: json_schema(StartRuns)},
    responses=described({201: {"type": "array", "items": RUN}}, 400, 403, 404, 409, 413),
    description=(
        "Queues the run described by a YAML training config, or one run per seed. 400 names the"
        " invalid key, 409 says why the run cannot start."
    ),
)
@api(GET=RESULT, POST=MANAGED)
def collection(request: Request) -> Response:
    if request.method == "POST":
        return started(request)
    rows = filtered(
        request,
        comparison.runs_of(request.auth.project),
        {"state": None, "method": None},
    )
    return listed(request, rows.prefetch_related("alarms"), as_json, add_used)


@extend_schema(
    operation_id="v1_training_runs_read",
    responses=described({200: RUN}, 404),
    description="State, progress and settings.",
)
@api(GET=RESULT)
def item(request: Request, pk: UUID) -> Response:
    run = find(request, pk)
    return Response(as_json(request, run) | {"checkpoints": [one.step for one in available(run)]})


@extend_schema(
    operation_id="v1_training_runs_metrics",
    responses=described({200: CURVES}, 400, 404),
    parameters=[
        OpenApiParameter(
            "name",
            {"type": "array", "items": {"type": "string"}},
            description="Metrics; without one, all",
        ),
        OpenApiParameter(
            "x", enum=["step", "time"], description="Steps, or hours since the first value"
        ),
        OpenApiParameter(
            "points",
            whole_number(1, MOST_POINTS, comparison.POINTS),
            description="More values are averaged",
        ),
    ],
    description="The curves of a run.",
)
@api(GET=RESULT)
def metrics(request: Request, pk: UUID) -> Response:
    run, by_time = find(request, pk), request.query_params.get("x") == "time"
    points = number_of(request, "points")
    names = comparison.names_of([run])
    wanted = (
        [name for name in names if name in request.query_params.getlist("name")]
        if "name" in request.query_params
        else names
    )
    curves = comparison.curves_of([run], wanted, by_time=by_time, points=points)
    return Response({"names": names, "curves": {name: curves[name][run.pk] for name in wanted}})


@extend_schema(
    operation_id="v1_training_runs_rollouts",
    responses=described({200: page(ROLLOUT)}, 400, 404),
    parameters=[
        OpenApiParameter("phase", enum=Rollout.Phase.values),
        OpenApiParameter("outcome", enum=list(OUTCOME)),
        OpenApiParameter("step", whole_number(0, 2**31 - 1)),
        OpenApiParameter("q", str, description="Words of the task's key or the output"),
        OpenApiParameter(
            "cursor", whole_number(0, LARGEST_KEY, 0), description="`next` of the page before"
        ),
        LIMIT,
    ],
    description="The rollouts of a run with their advantages, in the order they were stored.",
)
@api(GET=RESULT)
def rollouts(request: Request, pk: UUID) -> Response:
    run = find(request, pk)
    limit, cursor = number_of(request, "limit"), number_of(request, "cursor")
    rows = (
        Filters.of(request.query_params)
        .apply(run)
        .filter(pk__gt=cursor)
        .order_by("pk")
        .select_related("task")
    )
    found = list(rows[: limit + 1])
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return Response(
        {
            "results": [rollout_json(row) for row in with_advantages(run, found[:limit])],
            "next": following,
        }
    )


@extend_schema(
    operation_id="v1_training_runs_rollout",
    responses=described({200: WHOLE_ROLLOUT}, 404),
    description="A full rollout: prompt, expected answer, how it was used and why, and its group.",
)
@api(GET=RESULT)
def rollout(request: Request, pk: UUID, number: int) -> Response:
    run = find(request, pk)
    row = run.rollouts.select_related("task").filter(pk=number).first()
    if row is None:
        raise NotFound("This run has no rollout with this number.")
    row.run = run
    group = group_of(row)
    row.advantage = next(other.advantage for other in group if other.pk == row.pk)
    said = standing(row, group, run.metrics.filter(step=row.step, name="train/loss").exists())
    return Response(
        rollout_json(row)
        | {
            "counted": said.state,
            "why": said.why,
            "request": row.task.messages,
            "expected": row.task.expected,
            "group": [
                {"id": one.pk, "index": one.index, "reward": one.reward, "advantage": one.advantage}
                for one in group
            ],
        }
    )


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_training_runs_compare",
    responses=described({200: COMPARISON}, 400, 404),
    parameters=[
        OpenApiParameter(
            "run",
            {"type": "array", "items": {"type": "string", "format": "uuid"}},
            required=True,
            description=f"2 to {comparison.MOST} runs",
        )
    ],
    description=(
        "Training runs side by side, like the comparison page: numbers with intervals, and"
        " settings."
    ),
)
@api(GET=RESULT)
def compare(request: Request) -> Response:
    given = request.query_params.getlist("run")
    runs = comparison.chosen_runs(request.auth.project, given)
    if not 2 <= len(given) <= comparison.MOST:
        raise ValidationError({"path": "run", "error": f"2 to {comparison.MOST} runs"})
    if len(runs) != len(set(given)):
        raise NotFound("One of these is not a training run of this project.")
    add_used(runs)
    ends, tested = comparison.ends_of(runs), comparison.evaluations_of(runs)
    settings = side_by_side([comparison.settings_of(run) for run in runs])
    return Response(
        {
            "runs": [
                as_json(request, run)
                | {
                    "metrics": ends.get(run.pk, {}),
                    "validation": comparison.validation_of(run),
                    "evaluation": (
                        evaluation_json(tested.get(run.model_version_id))
                        if run.model_version_id
                        else None
                    ),
                }
                for run in runs
            ],
            "settings": [
                {"name": name, "values": values, "differs": differs}
                for name, values, differs in settings
            ],
        }
    )


def find(request: Request, pk: UUID) -> TrainingRun:
    """Raises NotFound."""
    found = comparison.runs_of(request.auth.project).filter(pk=pk).first()
    if found is None:
        raise NotFound("No training run of this project has this id.")
    return found


def as_json(request: Request, run: TrainingRun) -> dict[str, Any]:
    return {
        "id": str(run.pk),
        "name": run.name,
        "method": run.method,
        "state": run.state,
        "parent": str(run.parent),
        "eval_set": str(run.dataset.eval_set),
        "dataset_digest": run.dataset.digest,
        "environment": str(run.environment),
        "verifier": str(run.environment.verifier),
        "config": run.spec.get("config", {}),
        "seed": run.spec.get("seed", 0),
        "done": run.done,
        "total": run.total,
        "label": run.label,
        "error": run.error,
        "model_version": str(run.model_version) if run.model_version else None,
        "url": request.build_absolute_uri(
            reverse("training:detail", args=[run.project.slug, run.pk])
        ),
        "forked_from": run.spec.get("forked_from"),
        "alarms": run_alarms.listed(run),
        "outcome": run.result.get("outcome") or [],
        "paused": run.paused_by,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "estimate": [
            {"name": one.name, "unit": one.unit, "actual": one.truth}
            | {name: getattr(one.span, name, None) for name in ("low", "likely", "high")}
            for one in compared(run)
        ],
    }


def rollout_json(row: Rollout) -> dict[str, Any]:
    return {"task": str(row.task_id), "key": row.task.key, "advantage": row.advantage} | {
        name: getattr(row, name) for name in TOLD
    }


def evaluation_json(run: Any) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "id": str(run.pk),
        "eval_set": str(run.eval_set),
        "split": run.split,
        "success": run.result["metrics"]["success"],
    }
