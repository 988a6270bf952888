"""Adding tasks to a draft from successes and failures, over REST: production, one failure, an
evaluation, the built-in general set.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct, structs
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, described
from apps.core.query import number_of, whole_number
from apps.core.routes import RUNS, SIDES, api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.evals import actions
from apps.evals.actions import TasksMade
from apps.evals.api import STORED
from apps.evals.capability.add import add_general
from apps.evals.comparison.tasks import CHANGES
from apps.evals.formats.rows import Bad, checked_expected
from apps.evals.from_failures import make_task
from apps.evals.from_package import add_package_tasks
from apps.evals.from_production import MOST, candidates, newest
from apps.evals.lookups import find_environment, find_run, find_set, form_of
from apps.evals.models import EvalSet, Split
from apps.evals.samples.filters import OUTCOMES, Filters
from apps.evals.samples.to_tasks import make_tasks
from apps.evals.suggestions import Plan, planned, suggestion_of, suggestions
from apps.failures.models import Failure
from apps.trajectories.actions import store
from apps.trajectories.filters import SINCE, apply_filters
from apps.trajectories.models import Trajectory, TrajectoryKey
from apps.trajectories.shown import runs_shown
from workers.lib.checks import assertions_in
from workers.lib.typed import Text, json_schema

SplitName = Literal["train", "validation", "holdout", "regression"]
Since = Literal[tuple(SINCE)]  # type: ignore[valid-type]
Change = Literal[tuple(CHANGES)]  # type: ignore[valid-type]
SampleOutcome = Literal[tuple(OUTCOMES)]  # type: ignore[valid-type]


class RunFilters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """As on the page of trajectories, by the same names."""

    agent: str = ""
    agent_version: str = ""
    model: str = ""
    workload: str = ""
    tool: str = ""
    tag: str = ""
    label: str = ""
    session: str = ""
    user: str = ""
    mode: str = ""
    since: Since | Literal[""] = ""
    q: str = ""


class FromProduction(Struct, forbid_unknown_fields=True, kw_only=True):
    """Runs with this `outcome` (without it: both) that the filters in `where` find, or those with
    the ids in `trajectories`.
    """

    outcome: Literal["failure", "success"] | None = None
    where: RunFilters = RunFilters()
    trajectories: Annotated[list[Text], Meta(min_length=1, max_length=MOST)] | None = None
    split: SplitName = "train"


class FromFailure(Struct, forbid_unknown_fields=True, kw_only=True):
    """`cut`: the message before which the task ends; without it the blamed step. `group`: what
    keeps tasks on one side of a split, one of `groups`; without it the first. `replayable`: serve
    the recorded tool results."""

    trajectory: Text
    expected: dict[str, Any]
    cut: Annotated[int, Meta(ge=0)] | None = None
    split: SplitName = "train"
    group: str = ""
    demonstration: Annotated[str, Meta(max_length=60_000)] = ""
    replayable: bool = True
    state: list[dict[str, Any]] = []


class SampleFilters(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """As of `/eval-runs/ID/samples/`."""

    outcome: SampleOutcome | Literal[""] = ""
    bucket: str = ""
    tool: str = ""
    tag: str = ""
    q: str = ""
    against: str = ""
    change: Change | Literal[""] = ""


class FromEvaluation(Struct, forbid_unknown_fields=True, kw_only=True):
    """Failed samples of an evaluation on training or validation tasks: those that `where` finds, or
    one `sample` by its number. A task begins at the blamed `step`, where what was right there is
    known, or is the `whole` evaluated task again.
    """

    run: Text
    where: SampleFilters = SampleFilters()
    sample: int | None = None
    begin: Literal["step", "whole"] = "step"


class FromEnvironment(Struct, forbid_unknown_fields=True, kw_only=True):
    """`environment`: slug@version, of the kind “package”. `split` is for tasks that name none."""

    environment: Text
    split: SplitName = "train"


SOURCED = STORED | {
    "required": [*STORED["required"], "without_expected"],
    "properties": (
        STORED["properties"]
        | {
            "left_out": {
                "type": "integer",
                "description": (
                    "Too similar to, or in the same group as, the other side of a hold-out"
                ),
            },
            "without_expected": {"type": "integer", "description": "No expected answer"},
        }
    ),
}
TASK_OF_FAILURE = {
    "type": "object",
    "required": [
        "trajectory",
        "mode",
        "cut",
        "reason",
        "steps",
        "request",
        "suggestions",
        "groups",
    ],
    "properties": {
        "trajectory": {"type": "string"},
        "mode": {"type": "string", "description": "The failure mode's slug"},
        "cut": {"type": "integer"},
        "reason": {"type": "string", "description": "Why it begins there; empty if `cut` is sent"},
        "steps": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Steps where the task can start",
        },
        "request": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The task's messages",
        },
        "suggestions": {
            "type": "array",
            "description": "Suggested expected answers for this step, most certain first",
            "items": {
                "type": "object",
                "properties": {
                    "expected": {"type": "object"},
                    "source": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
        "groups": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "{name: group}",
        },
    },
}
ENVIRONMENT_EXAMPLE = OpenApiExample(
    "Tasks of a package", {"environment": "bug-tracker@1"}, request_only=True
)
PRODUCTION_EXAMPLE = OpenApiExample(
    "Last week's failures of one agent",
    {"outcome": "failure", "where": {"agent": "helpdesk", "since": "7d"}, "split": "train"},
    request_only=True,
)
FAILURE_EXAMPLE = OpenApiExample(
    "What should have been called",
    {
        "trajectory": "run-1",
        "expected": {"tool": "tickets.close", "args": {"id": 12}},
        "group": "session",
    },
    request_only=True,
)
EVALUATION_EXAMPLE = OpenApiExample(
    "Tasks that regressed",
    {
        "run": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
        "where": {"against": "9e0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11", "change": "regressed"},
    },
    request_only=True,
)
REFUSALS = (400, 403, 404, 409, 413)
MADE = described({200: SOURCED, 201: SOURCED}, *REFUSALS)


@shows(SIDES)
@extend_schema(
    operation_id="v1_eval_sets_from_production",
    request={JSON: json_schema(FromProduction)},
    responses=MADE,
    examples=[PRODUCTION_EXAMPLE],
    description=(
        "Adds a task for each production run with a known expected answer: a correction, or the"
        f" call of a success. Uses the newest {MOST:,} runs; runs whose failure was dismissed are"
        " skipped."
    ),
)
@api(POST=MANAGED)
def from_production(request: Request, pk: UUID) -> Response:
    eval_set, by, form = (
        find_set(request, pk),
        member_of(request).user,
        form_of(request, FromProduction),
    )
    made = actions.tasks_from_trajectories(
        eval_set=eval_set,
        trajectories=newest(_runs(request, form)),
        split=Split(form.split),
        by=by,
        viewer=request.auth,
    )
    return stored(made)


def _runs(request: Request, form: FromProduction) -> QuerySet[Trajectory]:
    """Raises ValidationError for filters beside ids, NotFound for an id of no run."""
    project, where = (
        request.auth.project,
        {name: value for name, value in structs.asdict(form.where).items() if value},
    )
    rows = candidates(project)
    if form.outcome:
        rows = rows.filter(outcome_status=form.outcome)
    if form.trajectories is None:
        return apply_filters(rows, where)
    if where:
        raise ValidationError({"path": "where", "error": "send either this or “trajectories”"})
    named = TrajectoryKey.objects.filter(project=project, external_id__in=form.trajectories)
    keys = dict(named.values_list("external_id", "trajectory_id"))
    if missing := next((name for name in form.trajectories if name not in keys), None):
        raise NotFound(f"No trajectory of this project has the id “{missing[:200]}”.")
    return rows.filter(pk__in=keys.values())


@shows(f"{RUNS}; {SIDES}")
@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_sets_task_of_failure",
    responses=described({200: TASK_OF_FAILURE}, 400, 404),
    parameters=[
        OpenApiParameter("trajectory", str, required=True, description="The id of a failed run"),
        OpenApiParameter(
            "cut",
            whole_number(0, 2**31 - 1),
            description="One of `steps`; default: where the failure's task begins",
        ),
    ],
    description=(
        "A preview of the task that would be created from a failure, with suggested expected"
        " answers. For a run that a held-out task was created from, this counts as a view."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_sets_from_failure",
    request={JSON: json_schema(FromFailure)},
    responses=MADE,
    examples=[FAILURE_EXAMPLE],
    description=(
        "Adds a task created from one failure, and confirms the failure if it is still open."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def from_failure(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    if request.method == "POST":
        return _task_of(request, eval_set)
    failure = _failure(request, request.query_params["trajectory"])
    plan = _plan(failure, number_of(request, "cut"))
    step = plan.step
    runs_shown(request.auth.project, [step.source.row.pk], to=request.auth, where="API")
    return Response(
        {
            "trajectory": step.source.row.external_id,
            "mode": failure.mode.slug,
            "cut": step.cut,
            "reason": plan.reason,
            "steps": step.source.steps,
            "request": step.prompt,
            "suggestions": [
                {"expected": item.expected, "source": item.source, "detail": item.detail}
                for item in suggestions(step)
            ],
            "groups": dict(step.source.groups.offered),
        }
    )


def _task_of(request: Request, eval_set: EvalSet) -> Response:
    by, form = member_of(request).user, form_of(request, FromFailure)
    failure = _failure(request, form.trajectory)
    step = _plan(failure, form.cut).step
    offered = dict(step.source.groups.offered)
    if form.group and form.group not in offered:
        raise ValidationError({"path": "group", "error": f"must be one of {', '.join(offered)}"})
    if assertions_in({"state": form.state}) != form.state:
        raise ValidationError({"path": "state", "error": "must be a list of {“path”, “equals”}"})
    made = make_task(
        failure=failure,
        step=step,
        answer=suggestion_of(expected_of(form.expected), suggestions(step)),
        eval_set=eval_set,
        split=Split(form.split),
        group=offered[form.group] if form.group else step.source.groups.offered[0][1],
        by=by,
        demonstration=form.demonstration,
        replayable=form.replayable,
        state=form.state,
        viewer=request.auth,
    )
    return stored(made)


def _failure(request: Request, external_id: str) -> Failure:
    """Raises NotFound."""
    run = store.find(request.auth.project, external_id)
    failures = Failure.objects.select_related("trajectory", "mode", "project")
    failure = failures.filter(trajectory=run).first() if run else None
    if failure is None:
        raise NotFound("No failure of this project is of a run with this id (`trajectory`).")
    return failure


def _plan(failure: Failure, cut: int | None) -> Plan:
    """At the given step, or else where the failure's task begins. Raises ValidationError."""
    plan = planned(failure, cut)
    if plan is None:
        raise ValidationError({"path": "cut", "error": "the agent took no step in this run"})
    if cut not in (None, plan.step.cut):
        steps = ", ".join(map(str, plan.step.source.steps))
        raise ValidationError({"path": "cut", "error": f"must be one of {steps}"})
    return plan


def expected_of(value: dict[str, Any]) -> dict[str, Any]:
    """Raises ValidationError."""
    try:
        return checked_expected(value)
    except Bad as error:
        raise ValidationError({"path": error.field, "error": error.message}) from error


@shows(SIDES)
@extend_schema(
    operation_id="v1_eval_sets_from_evaluation",
    request={JSON: json_schema(FromEvaluation)},
    responses=MADE,
    examples=[EVALUATION_EXAMPLE],
    description=(
        "Adds a task for each task that failed in an evaluation. 409 unless the split is train or"
        " validation: data that measures a model must not reach its training."
    ),
)
@api(POST=MANAGED)
def from_evaluation(request: Request, pk: UUID) -> Response:
    eval_set, by, form = (
        find_set(request, pk),
        member_of(request).user,
        form_of(request, FromEvaluation),
    )
    run = find_run(request, form.run)
    if form.where.against:
        find_run(request, form.where.against)
    elif form.where.change:
        raise ValidationError({"path": "where.change", "error": "needs “against”"})
    rows = Filters.of(structs.asdict(form.where)).apply(run).filter(success=False, masked=False)
    if form.sample is not None:
        rows = rows.filter(pk=min(max(form.sample, 0), 2**63 - 1))
        if not rows.exists():
            raise NotFound("This evaluation has no failed sample with this number (`sample`).")
    whole_task = form.begin == "whole"
    made = make_tasks(
        run=run, samples=rows, eval_set=eval_set, by=by, whole=whole_task, viewer=request.auth
    )
    return stored(made)


@shows(SIDES)
@extend_schema(
    operation_id="v1_eval_sets_from_environment",
    request={JSON: json_schema(FromEnvironment)},
    responses=MADE,
    examples=[ENVIRONMENT_EXAMPLE],
    description="Adds the tasks from an environment's package by running its tasks().",
)
@api(POST=MANAGED)
def from_environment(request: Request, pk: UUID) -> Response:
    eval_set, by, form = (
        find_set(request, pk),
        member_of(request).user,
        form_of(request, FromEnvironment),
    )
    environment = find_environment(request, form.environment)
    made = add_package_tasks(
        eval_set=eval_set,
        environment=environment,
        by=by,
        split=Split(form.split),
        viewer=request.auth,
    )
    return stored(made)


@shows(SIDES)
@extend_schema(
    operation_id="v1_eval_sets_add_general",
    request=None,
    responses=MADE,
    description=(
        "Adds the built-in general capability tasks that are not yet in the draft to its “general”"
        " split."
    ),
)
@api(POST=MANAGED)
def general(request: Request, pk: UUID) -> Response:
    eval_set, by = find_set(request, pk), member_of(request).user
    return stored(add_general(eval_set=eval_set, by=by, viewer=request.auth))


def stored(made: TasksMade) -> Response:
    counts = {
        "made": made.made,
        "duplicates": made.duplicates,
        "left_out": made.left_out,
        "rejected": [],
        "without_expected": made.without_expected,
    }
    return Response(counts, status=201 if made.made else 200)
