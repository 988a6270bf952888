"""A production run, read once into one value, and its steps, at which tasks begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apps.core.models import Project
from apps.evals.actions import EvalSetError
from apps.evals.canonical import canonical_hash
from apps.evals.holdout.groups import RunGroups, groups_of
from apps.evals.models import Origin, Task
from apps.failures.actions.diagnose import as_input
from apps.failures.models import Failure
from apps.failures.rules.expected import KnownAnswers, known_answers
from apps.failures.rules.reading import Run, read
from apps.trajectories.models import Trajectory
from workers.lib.messages import call_key, is_example, is_prompt

PARTS_OF_TURN = ("role", "content", "name", "tool_calls", "tool_call_id")
MAX_RECORDED = 200  # results kept from one run


@dataclass(frozen=True)
class SourceRun:
    """A production run, read once, and what tasks take from it. `steps` are the turns of the agent
    at which a task may begin.
    """

    row: Trajectory
    run: Run
    steps: list[int]
    answers: KnownAnswers
    groups: RunGroups


@dataclass(frozen=True)
class RunStep:
    """A step at which a task begins: the agent is shown `prompt` and answers next. `digest` is the
    prompt's canonical hash.
    """

    source: SourceRun
    cut: int
    prompt: list[dict]
    digest: str


def read_run(row: Trajectory) -> SourceRun:
    run = read(as_input(row) | {"messages": row.messages})
    return SourceRun(row, run, steps_of(row.messages), known_answers(run), groups_of(row))


def step_at(source: SourceRun, cut: int) -> RunStep:
    """Raises EvalSetError unless the message is a step of the agent."""
    if cut not in source.steps:
        raise EvalSetError(f"Message {cut} is not a step of the agent. Choose one of its turns.")
    prompt = prompt_at(source.row.messages, cut)
    return RunStep(source, cut, prompt, canonical_hash(prompt))


def failed_step(failure: Failure, chosen: int | None = None) -> RunStep | None:
    """The chosen step of a failure's run if there is one, else the blamed one. None if the agent
    took no step.
    """
    source = read_run(failure.trajectory)
    cut = chosen if chosen in source.steps else default_cut(source.steps, failure.blamed_message)
    return None if cut is None else step_at(source, cut)


def steps_of(messages: list[dict]) -> list[int]:
    """Where a task may begin: before each turn of the agent that follows a request."""
    has_request, steps = False, []
    for index, message in enumerate(messages):
        if is_example(message):
            continue
        if message.get("role") == "assistant" and has_request:
            steps.append(index)
        has_request = has_request or message.get("role") == "user"
    return steps


def default_cut(steps: list[int], blamed: int | None) -> int | None:
    """The blamed step, or else the agent's last one before it, or else its first; None without
    steps.
    """
    before = [step for step in steps if blamed is not None and step <= blamed]
    return before[-1] if before else steps[0] if steps else None


def prompt_at(messages: list[dict], cut: int) -> list[dict]:
    """The messages before a step, without those of the harness: system messages and examples."""
    return [
        {"content": None}
        | {name: message[name] for name in PARTS_OF_TURN if message.get(name) is not None}
        for message in messages[:cut]
        if not is_prompt(message) and not is_example(message)
    ]


def recorded_results(run: Run, success: Run | None = None) -> list[dict]:
    """[{tool, args, content}] of every answered call, which a mock returns when the task is
    replayed: those of the run, then those that only the successful run has.
    """
    results = _results(run)
    known = {call_key(result["tool"], result["args"]) for result in results}
    more = _results(success) if success else []
    return results + [
        result for result in more if call_key(result["tool"], result["args"]) not in known
    ]


def _results(run: Run) -> list[dict]:
    return [
        {"tool": call.tool, "args": call.args, "content": call.reply}
        for call in run.calls
        if call.args is not None and call.reply is not None
    ][:MAX_RECORDED]


def task_at(step: RunStep, project: Project, *, key: str, expected: dict, **fields: Any) -> Task:
    """Unsaved."""
    return Task(
        project=project,
        key=key,
        groups=step.source.groups.keys,
        canonical_hash=step.digest,
        messages=step.prompt,
        tools=step.source.row.tools,
        expected=expected,
        trajectory=step.source.row,
        origin=Origin.FAILURE,
        **fields,
    )
