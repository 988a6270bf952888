"""Actions on a training run's page, over REST: stop it, resume it, fork it from a checkpoint."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.api import member_of
from apps.core.openapi import JSON, described
from apps.core.operations import Page, Rest, Written, operation
from apps.core.routes import api
from apps.core.scopes import MANAGED
from apps.evals.lookups import form_of
from apps.training import actions, checkpoints, forking
from apps.training.models import TrainingRun
from apps.training.runs_api import RUN, as_json, find
from workers.lib.typed import Seed, json_schema


class ForkRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """`step`: of a checkpoint, or 0 for the start; without it the last checkpoint before an alarm,
    else the newest, but the start where an alarm ended the run and none is from before it.
    `changes`: settings that differ from the run's; null takes a setting back to its default."""

    step: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    changes: dict[str, Any] = {}
    seed: Seed | UnsetType = UNSET
    name: Annotated[str, Meta(max_length=200)] = ""


EXAMPLE = OpenApiExample(
    "From before an alarm, with safer settings",
    value={"changes": {"learning_rate": 1e-5, "beta": 0.04}},
    request_only=True,
)


RUN_OF = Written(RUN, as_json)


@operation(
    "training_runs_cancel",
    rest=Rest("POST", "training-runs/<uuid:pk>/cancel/", "run_cancel"),
    page=Page(
        "<uuid:pk>/cancel/",
        "cancel",
        done=lambda target: (
            "Stopping the job on the cluster."
            if target.on_cluster
            else "Stopping: a checkpoint is written first."
        ),
    ),
    gives=RUN_OF,
)
def cancel(*, run: TrainingRun, by: Any) -> None:
    """Stops a run. It writes a checkpoint from which it can be resumed or forked; poll it until
    its state is final.
    """
    jobs.stop(run, by=by)


@operation(
    "training_runs_resume",
    rest=Rest("POST", "training-runs/<uuid:pk>/resume/", "run_resume"),
    page=Page("<uuid:pk>/resume/", "resume", done="Queued again. It resumes from step {returned}."),
    gives=RUN_OF,
)
def resume(*, run: TrainingRun, by: Any) -> int:
    """Queues a failed, stopped or paused run again from its last checkpoint. 409 says why it
    cannot continue.
    """
    return actions.resume(run=run, by=by)


@extend_schema(
    operation_id="v1_training_runs_fork",
    request={JSON: json_schema(ForkRun)},
    responses=described({201: RUN}, 400, 403, 404, 409, 413),
    examples=[EXAMPLE],
    description=(
        "Queues a new run from a checkpoint of this one, with changed settings. 409 says which"
        " setting cannot change, or that the checkpoint no longer exists; GET lists the available"
        " ones (`checkpoints`)."
    ),
)
@api(POST=MANAGED)
def fork(request: Request, pk: UUID) -> Response:
    run, by = find(request, pk), member_of(request).user
    asked = form_of(request, ForkRun)
    config = {
        name: value
        for name, value in (run.spec["config"] | asked.changes).items()
        if value is not None
    }
    if asked.step is UNSET and not checkpoints.available(run):
        raise actions.TrainingError(
            f"{run} has no checkpoint to fork from. With “step” 0 the fork begins at the start."
        )
    made = forking.fork(
        run=run,
        step=forking.default_step(run) if asked.step is UNSET else asked.step,
        config=config,
        by=by,
        seed=None if asked.seed is UNSET else asked.seed,
        name=asked.name,
    )
    return Response(as_json(request, made), status=201)
