"""Evaluations: list them, start one, and stop it."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from apps.core import jobs
from apps.core.models import ApiKey, Project
from apps.core.operations import Page, Paged, Rest, Written, operation
from apps.core.routes import SHOWS_TOTALS, Disclosure
from apps.core.scopes import Scope
from apps.evals import runs_schema as schema
from apps.evals.actions import EvalSetError
from apps.evals.advice import advice
from apps.evals.answers import open_run
from apps.evals.lookups import MAX_PAGE, require_right
from apps.evals.models import EvalRun, Split
from apps.evals.references import EnvironmentNamed, EvalSetNamed, VersionNamed, runs_of
from apps.evals.runs_api import as_json
from apps.evals.submission import submit_eval
from apps.registry.actions import ModelError, register_agent
from apps.registry.engines import AUTO, LIMITS
from apps.registry.models import Reach
from workers.lib.typed import FormError

RUN = Written(schema.RUN, as_json)
RESULTS = (Scope.READ, Scope.EVALUATE)
LIMITED = (
    *LIMITS,
    "timeout_s",
    "at_once",
    "played_by",
)  # what an evaluation that is run here may use
SCORES = Disclosure("scores of a model on the hold-out, once it has run")


@operation(
    "eval_runs_list",
    rest=Rest("GET", "eval-runs/", "runs"),
    gives=Paged(RUN, MAX_PAGE),
    scope=RESULTS,
    shows=SHOWS_TOTALS,
)
def evaluations(
    *,
    project: Project,
    state: schema.StateName | None = None,
    split: schema.SplitName | None = None,
    eval_set: EvalSetNamed | None = None,
    environment: EnvironmentNamed | None = None,
    model_version: VersionNamed | None = None,
) -> QuerySet[EvalRun]:
    """Evaluations, newest first."""
    filters = {
        "state": state,
        "split": split,
        "eval_set": eval_set,
        "environment": environment,
        "model_version": model_version,
    }
    return runs_of(project).filter(**{name: value for name, value in filters.items() if value})


@operation(
    "eval_runs_start",
    rest=Rest("POST", "eval-runs/", "runs"),
    page=Page(
        "<uuid:eval_set>/evaluate/",
        "new_run",
        template="evals/new_run.html",
        context=advice,
        without=("agent",),
    ),
    gives={200: RUN, 201: RUN},
    outcome=lambda started: (201 if started[1] else 200, started[0]),
    scope=Scope.EVALUATE,
    examples=(schema.START_EXAMPLE, schema.AGENT_EXAMPLE, schema.RUN_EXAMPLE),
    shows=SCORES,
)
@transaction.atomic  # an agent that cannot be evaluated is not registered either
def start_evaluation(
    *, project: Project, by: Any, evaluation: schema.StartRun, key: ApiKey | None = None
) -> tuple[EvalRun, bool]:
    """Queues an evaluation of a model version; poll it until its state is final. With `agent`
    instead, you run the agent yourself: get the tasks, send the answers (`/tasks/`, `/samples/`),
    and they are scored here; 200 if the same evaluation is already running. On a hold-out this
    requires a key with access to hold-outs and counts as a view.

    Returns it, and whether it is new. Raises EvalSetError, ModelError, FormError.
    """
    require_right(key, evaluation.split)
    tasks: dict[str, Any] = {
        "project": project,
        "eval_set": evaluation.eval_set,
        "split": Split(evaluation.split),
        "environment": evaluation.environment,
        "samples_per_task": evaluation.samples_per_task,
        "seed": evaluation.seed,
        "by": by,
        "viewer": key,
    }
    if (evaluation.model_version is None) == (evaluation.agent is None):
        raise FormError("model_version", "send either this or “agent”")
    if evaluation.agent:
        return open_run(agent=_agent(evaluation, project, by), **tasks)
    run = submit_eval(
        model_version=evaluation.model_version,
        engine=evaluation.engine,
        stop_against=evaluation.stop_against,
        stop_channel=evaluation.stop_channel,
        **{name: getattr(evaluation, name) for name in LIMITED},
        **tasks,
    )
    return run, True


def _agent(evaluation: schema.StartRun, project: Project, by: Any) -> Any:
    """The version of an agent that answers elsewhere. Raises EvalSetError, FormError."""
    if evaluation.stop_against is not None:
        raise EvalSetError("Evaluations of agents that run elsewhere cannot stop early.")
    unused = {name: getattr(evaluation, name) for name in LIMITED} | {
        "engine": None if evaluation.engine == AUTO else evaluation.engine
    }
    for name, value in unused.items():
        if value is not None:
            raise FormError(name, "does not apply to an agent that runs elsewhere; leave it out")
    agent = evaluation.agent
    assert agent is not None
    try:
        return register_agent(
            project=project,
            name=agent.name,
            agent_version=agent.version,
            by=by,
            reached_by=Reach(agent.reached_by),
        )
    except ModelError as error:
        raise FormError("agent", str(error)) from error


@operation(
    "eval_runs_cancel",
    rest=Rest("POST", "eval-runs/<uuid:pk>/cancel/", "run_cancel"),
    page=Page("runs/<uuid:pk>/cancel/", "cancel"),
    gives=RUN,
    scope=Scope.EVALUATE,
    shows=SHOWS_TOTALS,
)
def cancel(*, run: EvalRun, by: Any, key: ApiKey | None = None) -> None:
    """Stops an evaluation; samples so far are kept. On a hold-out this requires a key with access
    to hold-outs, like starting it.

    Raises Rejected if it has finished.
    """
    require_right(key, run.split)
    jobs.stop(run, by=by)
