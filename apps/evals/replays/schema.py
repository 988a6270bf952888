"""What step searches take and answer."""

from __future__ import annotations

from typing import Annotated, Any

from django.db.models import Case, Q, QuerySet, When
from django.http import Http404
from msgspec import Meta, Struct

from apps.core.http import row_number, uuid_of
from apps.core.models import Project
from apps.core.operations import Reference
from apps.evals.models import Split, Task
from apps.evals.references import EnvironmentNamed, VersionNamed, has_servers
from apps.evals.replays import episode
from apps.evals.replays.forecast import Forecast
from apps.evals.runs_schema import StateName, Tokens, Usd
from apps.failures.models import Failure
from apps.registry import engines
from workers.lib.typed import Seed, Text

MOST_EACH = 64


def find_failure(project: Project, name: int | str) -> Failure:
    """By its number, or the id of its run. Raises Http404."""
    rows = Failure.objects.filter(project=project).select_related("trajectory", "mode", "project")
    named = Q(trajectory__external_id=str(name))
    if number := row_number(name):
        named |= Q(pk=number)
    found = rows.filter(named).order_by("pk").first()
    if found is None:
        raise Http404("No run of this project with this number or id has a failure.")
    return found


def find_task(project: Project, name: Any) -> Task:
    """Raises Http404."""
    rows = Task.objects.filter(project=project).exclude(split=Split.HOLDOUT)
    found = rows.select_related("eval_set").filter(pk=uuid_of(str(name))).first()
    if found is None:
        raise Http404("No task of this project outside its hold-outs has this id.")
    return found


def offered_tasks(failure: Failure) -> QuerySet[Task]:
    found = [task.pk for task in episode.tasks_of(failure) if task.split != Split.HOLDOUT]
    order = Case(*(When(pk=pk, then=at) for at, pk in enumerate(found)))
    rows = Task.objects.filter(pk__in=found).select_related("eval_set")
    return rows.order_by(order) if found else rows


FailureNamed = Annotated[
    Failure,
    Reference(find_failure, sent=Text | int),
    Meta(description="Its number, or the id of its run"),
]


class NewSearch(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which failed run is replayed where, by whom, and how often. The run has to begin with the
    request of the task, and the environment's verifier has to see that it failed.
    """

    failure: FailureNamed
    environment: Annotated[
        EnvironmentNamed,
        Meta(
            title="Environment",
            description="slug@version",
            extra={"hint": "The recorded calls are run again in it, and it scores continuations"},
        ),
    ]
    model_version: Annotated[
        VersionNamed,
        Meta(
            title="Model",
            description="Its name, such as support-v3, or its number",
            extra={"hint": "The one that failed, or a better one"},
        ),
    ]
    task: (
        Annotated[
            Task,
            Reference(find_task, rows=offered_tasks),
            Meta(
                title="Task",
                description="Its id; left out, the task with which most of the run can be replayed",
                extra={"empty": "Choose automatically", "hint": "Says what the right end is"},
            ),
        ]
        | None
    ) = None
    each: Annotated[
        int,
        Meta(
            title="Continuations per step",
            ge=4,
            le=MOST_EACH,
            description="The two steps around the result get twice as many",
        ),
    ] = 8
    every: Annotated[
        bool,
        Meta(
            title="Try every step",
            description="Otherwise long runs are halved: fewer continuations, the same rule",
        ),
    ] = False
    temperature: (
        Annotated[
            float,
            Meta(title="Temperature", gt=0, le=2, description="Left out: the environment's"),
        ]
        | None
    ) = None
    seed: Seed = 0
    engine: Annotated[
        Text,
        Meta(
            title="Engine",
            description="“auto”, “transformers” (in a worker) or a server's name",
            extra={"hint": "", "choices": engines.choices, "only_if": has_servers},
        ),
    ] = engines.AUTO
    most_tokens: (
        Annotated[
            Tokens,
            Meta(title="Max tokens", description="The search stops there, and keeps what it has"),
        ]
        | None
    ) = None
    most_usd: (
        Annotated[
            Usd,
            Meta(
                title="Max cost (USD)",
                description="For servers with known prices",
                extra={"only_if": has_servers},
            ),
        ]
        | None
    ) = None


class ValueOut(Struct):
    """`step` is a message's index. `low` and `high`: 95% Wilson interval of successes of n."""

    step: int
    successes: int
    n: int
    masked: int
    low: float
    high: float


class VerdictOut(Struct):
    """`step` decided the run: resumed there it can succeed, resumed at `after` it no longer does;
    null: `step` is the last one. `effect` is the difference, with an interval.
    """

    step: int | None
    after: int | None
    effect: float
    low: float
    high: float
    is_sure: bool
    text: str


class SearchOut(Struct):
    """`total` and `forecast` were expected before the start. Of what was used, `usd` is null where
    no price is known; `uncounted` continuations reported no tokens. `differs_at`: the step from
    which on the environment responds otherwise than in the run, so that no later one can be
    tried.
    """

    id: str
    failure: int
    state: StateName
    error: str
    environment: str
    model_version: str
    task: str | None
    each: int
    every: bool
    done: int
    total: int
    forecast: Forecast
    input_tokens: int
    output_tokens: int
    usd: float | None
    uncounted: int
    differs_at: int | None
    values: list[ValueOut]
    verdict: VerdictOut


class ContinuationOut(Struct):
    step: int
    index: int
    success: bool
    reward: float | None
    masked: bool
    mask_reason: str
    messages: list[dict]
    details: list[str]
    stop_reason: str
    input_tokens: int | None
    output_tokens: int | None
