"""Step searches: listing, forecasting, starting, reading and cancelling them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from msgspec import Meta

from apps.core import jobs
from apps.core.models import ApiKey, Project
from apps.core.openapi import sent
from apps.core.operations import Page, Paged, Rest, operation
from apps.core.routes import RUNS, SHOWS_SIDES, Disclosure
from apps.evals.actions import EvalSetError
from apps.evals.models import Continuation, StepSearch
from apps.evals.replays.advice import advice
from apps.evals.replays.forecast import Forecast
from apps.evals.replays.preparing import prepared
from apps.evals.replays.results import SEARCH
from apps.evals.replays.schema import ContinuationOut, FailureNamed, NewSearch
from apps.evals.runs_schema import StateName
from apps.failures.models import Failure
from apps.trajectories.shown import runs_shown
from workers.lib.step_search import most_tries
from workers.lib.typed import FormError

ACTIVE = "A step search of this failure is already running. Wait for it, or stop it."
COLD = (
    "the model samples at temperature 0 in this environment, so all continuations would be the"
    " same; enter a temperature above 0, such as 0.7"
)


def searches_of(project: Project) -> QuerySet[StepSearch]:
    rows = StepSearch.objects.filter(project=project)
    return rows.select_related(
        "environment", "model_version", "failure__trajectory", "failure__mode", "task"
    )


@operation(
    "step_searches_list",
    rest=Rest("GET", "step-searches/", "step_searches"),
    gives=Paged(SEARCH),
)
def listed(
    *,
    project: Project,
    failure: FailureNamed | None = None,
    state: StateName | None = None,
) -> QuerySet[StepSearch]:
    """Step searches, newest first."""
    filters = {"failure": failure, "state": state}
    return searches_of(project).filter(**{name: value for name, value in filters.items() if value})


@operation(
    "step_searches_read",
    rest=Rest("GET", "step-searches/<uuid:pk>/", "step_search"),
    gives=SEARCH,
)
def read(*, search: StepSearch) -> StepSearch:
    """A step search: how often the run succeeds resumed at each step, and which step decided it."""
    return search


@operation(
    "step_searches_continuations",
    rest=Rest("GET", "step-searches/<uuid:pk>/continuations/", "continuations"),
    gives=list[ContinuationOut],
    shows=Disclosure(RUNS),
)
def continuations(
    *,
    search: StepSearch,
    project: Project,
    by: Any,
    key: ApiKey | None = None,
    step: Annotated[int, Meta(ge=0, description="A message's index")] | None = None,
    success: bool | None = None,
) -> QuerySet[Continuation]:
    """How the run went on from its steps, message by message."""
    runs_shown(project, [search.failure.trajectory_id], to=key or by, where="a step search")
    filters = {"step": step, "success": success}
    return search.continuations.filter(
        **{name: value for name, value in filters.items() if value is not None}
    )


@operation(
    "step_searches_forecast",
    rest=Rest("GET", "step-searches/forecast/", "step_search_forecast"),
    gives=Forecast,
    shows=SHOWS_SIDES,
)
def before(*, project: Project, given: NewSearch) -> Forecast:
    """What a step search with these settings would use: continuations, tokens, money and time.

    Raises EvalSetError.
    """
    return prepared(given).forecast


@operation(
    "step_searches_start",
    rest=Rest("POST", "step-searches/", "step_searches", 201),
    page=Page(
        "failures/<int:failure>/find-step/",
        "find_step",
        template="evals/find_step.html",
        context=advice,
    ),
    gives=SEARCH,
    examples=(
        sent(
            "Find the step",
            {"failure": 12, "environment": "office@1", "model_version": "support-v3"},
        ),
    ),
    shows=SHOWS_SIDES,
)
@transaction.atomic
def start(*, project: Project, by: Any, given: NewSearch) -> StepSearch:
    """Finds the step whose correction would have changed the end of a failed run: the recorded run
    is replayed in an environment up to some of its steps, and a model continues from there. Poll it
    until its state is final; if the result is certain, the failure's blamed step is set.

    Raises EvalSetError, FormError.
    """
    ready = prepared(given)
    temperature = given.temperature or given.environment.harness.get("temperature", 1.0)
    if not temperature:
        raise FormError("temperature", COLD)
    Failure.objects.select_for_update(of=("self",)).get(pk=given.failure.pk)  # not twice at once
    if given.failure.step_searches.active().exists():
        raise EvalSetError(ACTIVE)
    search = StepSearch(
        project=project,
        failure=given.failure,
        task=ready.run.stored,
        environment=given.environment,
        model_version=given.model_version,
        name=f"Step of {given.failure.trajectory.external_id}"[:200],
        total=most_tries(len(ready.run.steps), given.each, every=given.every),
        spec={
            "seed": given.seed,
            "each": given.each,
            "every": given.every,
            "temperature": temperature,
            "most_tokens": given.most_tokens or 0,
            "engine": ready.engine,
            "prompt": ready.prompt,
            "places": ready.run.places,
            "steps": ready.run.steps,
            "content": ready.run.source.row.content_digest,
            "scored_by": ready.run.named,
            "environment_hash": given.environment.hash,
            "model_digest": given.model_version.digest,
            "forecast": msgspec.to_builtins(ready.forecast),
        },
    )
    return jobs.submit(search, by=by)


@operation(
    "step_searches_cancel",
    rest=Rest("POST", "step-searches/<uuid:pk>/cancel/", "step_search_cancel"),
    page=Page("step-searches/<uuid:pk>/cancel/", "step_search_cancel"),
    gives=SEARCH,
)
def cancel(*, search: StepSearch, by: Any) -> None:
    """Stops a step search; its continuations so far are kept.

    Raises Rejected if it has finished.
    """
    jobs.stop(search, by=by)
