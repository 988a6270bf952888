"""What of a failed run is replayed: the task that it begins with, and the agent's steps after
that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Case, Q, When

from apps.environments.models import Environment, EnvironmentKind
from apps.evals.actions import EvalSetError
from apps.evals.canonical import canonical_hash
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.holdout.groups import held_out_runs
from apps.evals.models import Answer, EvalRun, Split, Task
from apps.evals.source_runs import SourceRun, prompt_at, read_run, recorded_results
from apps.failures.models import Failure
from apps.trajectories.models import with_content
from workers.lib.messages import is_example, is_prompt

MOST_STEPS = 200
NO_STEP = "The agent took no step in this run, so there is nothing to replay."
NO_TASK = (
    "This run cannot be replayed because its correct outcome is unknown: no task of this project"
    " begins with its request, and its log has no expected calls. Make an eval task at the run's"
    " first step, then come back."
)
HELD_OUT = (
    "This run belongs to a hold-out. Replaying it would reveal what is held out; choose another"
    " failure."
)
TRUTH = "the ground truth in the run's log"


@dataclass(frozen=True)
class Replayable:
    """A failed run after its task: `recorded` are its messages from there on, `places` their
    indices in the trajectory, and `steps` the indices of the agent's. `stored`: the task, or None
    for one that is made from the run's ground truth.
    """

    source: SourceRun
    task: dict[str, Any]
    stored: Task | None
    recorded: list[dict]
    places: list[int]

    @property
    def steps(self) -> list[int]:
        return [
            place
            for place, message in zip(self.places, self.recorded, strict=True)
            if message.get("role") == "assistant"
        ]

    @property
    def named(self) -> str:
        return f"{self.stored.key} of {self.stored.eval_set}" if self.stored else TRUTH

    def position_of(self, step: int) -> int:
        return self.places.index(step)

    def task_in(self, environment: Environment) -> dict[str, Any]:
        """The task as a worker gets it. Recorded tools have what this run's tools returned, if the
        task itself has no results.
        """
        metadata = self.task["metadata"]
        if environment.kind != EnvironmentKind.REPLAY or metadata.get(RECORDED):
            return self.task
        return self.task | {"metadata": metadata | {RECORDED: recorded_results(self.source.run)}}


def replayable(failure: Failure, task: Task | None = None) -> Replayable:
    """Raises EvalSetError, a sentence that says what to do, if the run cannot be replayed."""
    source, begins = _opened(failure)
    if not source.steps:
        raise EvalSetError(NO_STEP)
    tasks = _tasks(failure, begins)
    _refuse_held_out(failure, tasks)
    if task is not None and task not in tasks:
        raise EvalSetError(
            f"This run does not begin with the request of the task {task.key}, so it cannot be"
            " scored by it. Choose another task."
        )
    stored = task or next(iter(tasks), None)
    if stored is not None:
        return _from(source, begins[stored.canonical_hash], stored.as_spec(), stored)
    if expected := _truth(source):
        begin = source.steps[0]
        own = {
            "id": str(source.row.pk),
            "messages": prompt_at(source.row.messages, begin),
            "tools": source.row.tools,
            "expected": expected,
            "metadata": {},
        }
        return _from(source, begin, own, None)
    raise EvalSetError(NO_TASK)


def tasks_of(failure: Failure) -> list[Task]:
    """The tasks with whose request the run begins, those from which most of it can be played
    first.
    """
    return _tasks(failure, _opened(failure)[1])


def usual_environment(run: Replayable) -> Environment | None:
    """That of the evaluation which the run is an answer of, or else of the newest evaluation on the
    task's set; else the one that has the run's tools, or the project's newest.
    """
    row = run.source.row
    runs = EvalRun.objects.filter(project=row.project_id).select_related("environment__verifier")
    answered = Answer.objects.filter(trajectory=row.pk).values("run")
    known = Q(pk__in=answered)
    if run.stored is not None:
        known |= Q(eval_set__slug=run.stored.eval_set.slug)
    evaluation = (
        runs.filter(known, environment__archived_at=None)
        .order_by(Case(When(pk__in=answered, then=0), default=1), "-created_at")
        .first()
    )
    if evaluation is not None:
        return evaluation.environment
    rows = list(row.project.environments.current().select_related("verifier"))
    newest = sorted(rows, key=lambda one: one.created_at, reverse=True)
    named = (one for one in newest if str(one) == run.source.environment)
    return next(named, newest[0] if newest else None)


def _opened(failure: Failure) -> tuple[SourceRun, dict[str, int]]:
    """The run, and where its tasks may begin. A form asks three times about the same failure, so it
    is read once for each object.
    """
    if (known := vars(failure).get("opened_run")) is None:
        with_content([failure.trajectory])
        source = read_run(failure.trajectory)
        known = vars(failure)["opened_run"] = source, _begins(source)
    return known


def _begins(source: SourceRun) -> dict[str, int]:
    """{canonical hash of what the agent was shown: the step that followed, the earliest}."""
    begins: dict[str, int] = {}
    for cut in source.steps[:MOST_STEPS]:
        begins.setdefault(canonical_hash(prompt_at(source.row.messages, cut)), cut)
    return begins


def _tasks(failure: Failure, begins: dict[str, int]) -> list[Task]:
    rows = Task.objects.filter(project=failure.project_id, canonical_hash__in=begins)
    found = rows.select_related("eval_set").order_by("-eval_set__created_at", "pk")
    return sorted(found, key=lambda task: begins[task.canonical_hash])


def _refuse_held_out(failure: Failure, tasks: list[Task]) -> None:
    """Raises EvalSetError, with the tasks about which that says something."""
    held = [task.canonical_hash for task in tasks if task.split == Split.HOLDOUT]
    groups = held_out_runs(failure.project, [failure.trajectory]).values()
    rows = Task.objects.holdout().filter(project=failure.project_id, group__in=groups)
    if held or groups:
        error = EvalSetError(HELD_OUT)
        error.held = [*held, *rows.values_list("canonical_hash", flat=True)]
        raise error


def _truth(source: SourceRun) -> dict[str, Any] | None:
    truth = source.answers.truth
    if truth is None or any(call.args is None for call in truth.wanted):
        return None
    return {"calls": [{"tool": call.tool, "args": call.args} for call in truth.wanted]}


def _from(source: SourceRun, begin: int, task: dict[str, Any], stored: Task | None) -> Replayable:
    places = [
        at
        for at, message in enumerate(source.row.messages)
        if at >= begin and not is_prompt(message) and not is_example(message)
    ]
    recorded = [source.row.messages[at] for at in places]
    return Replayable(source, task, stored, recorded, places)
