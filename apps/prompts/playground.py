"""Starting a playground, and keeping what came of it as a prompt version or an eval task. Never on
a hold-out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.core import jobs
from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.evals import actions, source_runs
from apps.evals.actions import EvalSetError, HoldoutLeak, TasksMade
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.from_failures import free_key
from apps.evals.holdout import groups, leaks
from apps.evals.models import EvalSet, Split, Task
from apps.evals.suggestions import demonstration_of
from apps.prompts.models import CUT, Playground, PlaygroundAnswer, place_of
from apps.registry import engines
from apps.registry.actions import ModelError, register_prompt
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories.models import Trajectory
from workers.lib.environments import load
from workers.lib.errors import SpecError
from workers.lib.messages import is_example, system_prompt
from workers.lib.prompts import checked_prompt, tool_problem
from workers.lib.typed import FormError
from workers.lib.verifiers.expectations import problem_of

MOST_SIDES, MOST_CASES, MOST_SAMPLES = 4, 20, 8
MOST_SPEC = 4_000_000  # characters of all requests
MOST_TOKENS = 200_000  # of each version, unless somebody asks for another limit
# Kinds of verifiers that can score an answer without an expected one.
WITHOUT_EXPECTED = (
    "no_call",
    "regex",
    "constraints",
    "judge",
    "reward_model",
    "python",
    "openai_grader",
)
NEVER_HELD = "The playground never runs on what is held out. "


class PlaygroundError(EvalSetError):
    """What cannot be run or kept; the message is a sentence for the page."""


@dataclass(frozen=True)
class Side:
    """A version; `changes` replace parts of its prompt, `engine` is the argument of
    `engines.choose`.
    """

    version: ModelVersion
    changes: dict[str, Any] = field(default_factory=dict)
    engine: str = engines.AUTO


@dataclass(frozen=True)
class Step:
    """A step of a production run: the conversation before the message `cut`, and its prompt."""

    trajectory: Trajectory
    cut: int
    expected: dict = field(default_factory=dict)

    @cached_property
    def of_run(self) -> source_runs.RunStep:
        """Raises EvalSetError if there is no such step."""
        return source_runs.step_at(source_runs.read_run(self.trajectory), self.cut)

    @property
    def prompt(self) -> dict[str, Any]:
        messages = self.trajectory.messages[: self.cut]
        examples = [
            {name: message[name] for name in source_runs.PARTS_OF_TURN if name in message}
            for message in messages
            if is_example(message)
        ]
        text = system_prompt(messages)
        return ({"system_prompt": text} if text else {}) | (
            {"examples": examples} if examples else {}
        )


def task_at(step: Step) -> Task:
    """The unsaved task of a step, of no set. Raises EvalSetError if there is no such step."""
    return source_runs.task_at(
        step.of_run,
        step.trajectory.project,
        key=step.trajectory.external_id[:120],
        expected=step.expected,
        split=Split.TRAIN,
        group=step.of_run.digest,
        metadata={"cut": step.cut, RECORDED: source_runs.recorded_results(step.of_run.source.run)},
    )


def require_not_held(project: Project, tasks: Sequence[Task]) -> None:
    """Raises PlaygroundError or HoldoutLeak if a task is held out, resembles one that is, or
    belongs to a held-out group.
    """
    if any(task.split == Split.HOLDOUT for task in tasks):
        raise PlaygroundError(f"{NEVER_HELD}Choose tasks of another split.")
    if refused := groups.refusal(project, tasks):
        error = PlaygroundError(f"{NEVER_HELD}{refused.sentence}")
        error.held = refused.held
        raise error
    if leak := next(leaks.of_tasks(tasks), None):
        raise HoldoutLeak(f"{NEVER_HELD}{leak}", leak)


@transaction.atomic
def start(
    *,
    project: Project,
    environment: Environment,
    sides: Sequence[Side],
    by: Any,
    tasks: Sequence[Task] = (),
    step: Step | None = None,
    samples_per_task: int = 1,
    seed: int = 0,
    most_tokens: int = MOST_TOKENS,
    most_usd: float = 0.0,
) -> Playground:
    """Queues the answers of one to four versions to some tasks, or to a step of a run. Raises
    EvalSetError.
    """
    chosen = [task_at(step)] if step else list(tasks)
    if not 1 <= len(sides) <= MOST_SIDES:
        raise PlaygroundError(f"Choose one to {MOST_SIDES} versions.")
    if not 1 <= len(chosen) <= MOST_CASES:
        raise PlaygroundError(f"Choose one to {MOST_CASES} tasks.")
    require_not_held(project, chosen)
    cases = [_case(task, environment) for task in chosen]
    if len(json.dumps(cases)) > MOST_SPEC:
        raise PlaygroundError("These requests are too long together. Choose fewer tasks.")
    limits = {"most_tokens": most_tokens, "most_usd": most_usd}
    stored = [_side(side, environment, chosen, step, limits) for side in sides]
    what = (
        f"message {step.cut} of a run"
        if step
        else f"{len(cases)} task{'s' if len(cases) > 1 else ''}"
    )
    run = Playground(
        project=project,
        name=f"{', '.join(side['name'] for side in stored)} on {what}"[:200],
        environment=environment,
        trajectory=step.trajectory if step else None,
        step=step.cut if step else None,
        samples_per_task=samples_per_task,
        total=len(stored) * len(cases) * samples_per_task,
        spec={
            "sides": stored,
            "cases": cases,
            "seed": seed,
            "environment_hash": environment.hash,
            "verifier_hash": environment.verifier.hash,
        },
    )
    return jobs.submit(run, by=by)


def _case(task: Task, environment: Environment) -> dict[str, Any]:
    if problem := problem_of(environment.verifier.spec, task.expected) if task.expected else "":
        raise PlaygroundError(f"Task {task.key}: {problem}.")
    case = task.as_spec() | {"key": task.key, "hash": task.canonical_hash}
    case["set"] = str(task.eval_set) if task.eval_set_id else ""
    unscored = not task.expected and environment.verifier.spec.get("kind") not in WITHOUT_EXPECTED
    return case | (
        {"unscored": "No expected answer was given, so it is not scored."} if unscored else {}
    )


def _side(
    side: Side,
    environment: Environment,
    tasks: Sequence[Task],
    step: Step | None,
    limits: dict[str, Any],
) -> dict[str, Any]:
    """The spec's entry for a side. Raises EvalSetError if this version cannot be called this
    way.
    """
    version = side.version
    try:
        changed = checked_prompt(side.changes) if side.changes else {}
        prompt = (step.prompt if step else {}) | version.prompt | changed
        engine = engines.choose(version, side.engine)
        if engine["kind"] != engines.IN_PROCESS:
            engine = engines.with_limits(engine, **limits)
        loaded = load(environment.as_spec(prompt))
        described = next(
            (problem for task in tasks if (problem := _tools_problem(loaded, prompt, task))), ""
        )
    except (ModelError, FormError, SpecError) as error:
        raise PlaygroundError(f"{version}: {error}") from error
    if described:
        raise PlaygroundError(f"{version}: {described}")
    if leak := next(leaks.of_harness(environment, prompt), None):
        raise HoldoutLeak(f"{NEVER_HELD}The prompt of {version} would show it. {leak}", leak)
    name = f"{version} (edited)" if changed and changed != version.prompt else str(version)
    return {
        "version": version.pk,
        "name": name,
        "prompt": prompt,
        "changes": changed,
        "engine": engine,
    }


def _tools_problem(environment: Any, prompt: dict[str, Any], task: Task) -> str:
    if not prompt.get("tools"):
        return ""
    return tool_problem(prompt["tools"], environment.open(task.as_spec()).visible())


def asked_tasks(run: Playground) -> QuerySet[Task]:
    """The tasks with the same request, or from the same run: its content may have been held out
    since.
    """
    same = Q(canonical_hash__in=[case["hash"] for case in run.spec["cases"]])
    return Task.objects.filter(
        same | Q(trajectory=run.trajectory_id) if run.trajectory_id else same
    )


# What came of it


def partial_answers(run: Playground, answers: Sequence[PlaygroundAnswer]) -> list[dict[str, Any]]:
    """{side, case, index, text, thought, calls, seq, attempt, is_live} of what is being written
    (`is_live`), or was when it was cut.
    """
    ends, failed = (
        {place_of(answer.side, answer.case, answer.index): answer for answer in answers},
        failures(run),
    )
    parts = []
    for place, part in run.result.get("partial", {}).items():
        end = ends.get(place)
        if end is None or end.stop_reason in CUT:
            is_running = run.state == JobState.RUNNING and part["attempt"] == run.attempt
            parts.append(
                part | {"is_live": end is None and is_running and part["side"] not in failed}
            )
    return parts


def failures(run: Playground) -> dict[int, dict[str, Any]]:
    """{side: {error, seq}} of the versions that give no more answers, in the present attempt."""
    failed = run.result.get("failed", {}).items()
    return {int(side): failure for side, failure in failed if failure["attempt"] == run.attempt}


def tokens_of(answers: Sequence[PlaygroundAnswer]) -> int | None:
    """Of all of them together; None if a server did not count those of an answer."""
    counts = [(answer.input_tokens, answer.output_tokens) for answer in answers if answer.turns]
    return None if any(None in pair for pair in counts) else sum(map(sum, counts))


def sums_of(run: Playground, side: int, answers: Sequence[PlaygroundAnswer]) -> dict[str, Any]:
    """What the answers of one side add up to; `answers`: of all sides."""
    own = [answer for answer in answers if answer.side == side]
    scored = [answer for answer in own if not answer.masked]
    return {
        "scored": len(scored),
        "passed": sum(answer.success for answer in scored),
        "reward": sum(answer.reward or 0.0 for answer in scored) / len(scored) if scored else None,
        "tokens": tokens_of(own),
        "error": failures(run).get(side, {}).get("error", ""),
    }


# What is kept of it


def save_prompt(*, playground: Playground, side: int, name: str, by: Any) -> ModelVersion:
    """The prompt of a side as a version. Raises ModelError, FormError."""
    stored = playground.spec["sides"][side]
    version = ModelVersion.objects.get(project=playground.project, pk=stored["version"])
    started_from = None
    if version.kind != ModelKind.PROMPT and playground.trajectory:
        step = Step(playground.trajectory, playground.step or 0)
        started_from = {"name": f"run {playground.trajectory}", "prompt": step.prompt}
    return register_prompt(
        project=playground.project,
        name=name,
        on=version,
        prompt=stored["prompt"],
        started_from=started_from,
        by=by,
        lineage={"playground": str(playground.pk)},
    )


def save_task(
    *,
    playground: Playground,
    eval_set: EvalSet,
    split: Split,
    expected: dict,
    by: Any,
    viewer: Any = None,
) -> TasksMade:
    """The step that was replayed as a task of a draft, unless it is near a hold-out. Raises
    EvalSetError.
    """
    if playground.step is not None and playground.trajectory is None:
        raise PlaygroundError("The run was deleted since, so no task can be made from it.")
    if playground.trajectory is None or playground.step is None:
        raise PlaygroundError(
            "Only a step of a run in production becomes a task; this one is of tasks already."
        )
    task = task_at(Step(playground.trajectory, playground.step, expected))
    task.eval_set, task.split, task.confirmed_by = eval_set, split, by
    task.key = free_key(eval_set, playground.trajectory.external_id)
    task.demonstration = demonstration_of(expected)
    task.metadata["source"] = "playground"
    what = f"playground {playground.pk}"
    return actions.store_tasks(eval_set=eval_set, tasks=[task], by=by, what=what, viewer=viewer)
