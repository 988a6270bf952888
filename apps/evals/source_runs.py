"""A production run, read once into one value, and its steps, at which tasks begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.core.models import Project
from apps.environments.models import Environment, EnvironmentKind
from apps.evals.actions import EvalSetError
from apps.evals.canonical import canonical_hash
from apps.evals.effects import ToolEffects, effects_of
from apps.evals.holdout.groups import RunGroups, groups_of
from apps.evals.models import Origin, Task
from apps.failures.actions.diagnose import as_input
from apps.failures.rules.expected import KnownAnswers, known_answers
from apps.failures.rules.reading import Run, read
from apps.trajectories.models import Trajectory
from workers.lib.environments import builtin_tools
from workers.lib.messages import call_key, functions_of, is_example, is_prompt

PARTS_OF_TURN = ("role", "content", "name", "tool_calls", "tool_call_id")
MAX_RECORDED = 200  # results kept from one run
REPLAY = "replay"  # the environment that returns what was recorded
WITH_STATE = (
    EnvironmentKind.BUILTIN,
    EnvironmentKind.PACKAGE,
    EnvironmentKind.MCP,
    EnvironmentKind.OPENENV,
    EnvironmentKind.REMOTE,
)


@dataclass(frozen=True)
class Setting:
    """An environment of the project in which a run's tools can be called again."""

    name: str
    slug: str
    tools: frozenset[str]
    lookups: frozenset[str] | None  # None: it does not say which of its tools are look-ups


@dataclass(frozen=True)
class SourceRun:
    """A production run, read once, and what tasks take from it. `steps` are the turns of the agent
    at which a task may begin; `environment` is where its tools can be called again: one of the
    project's, REPLAY if their results were recorded, or "".
    """

    row: Trajectory
    run: Run
    steps: list[int]
    answers: KnownAnswers
    groups: RunGroups
    effects: ToolEffects
    environment: str


@dataclass(frozen=True)
class RunStep:
    """A step at which a task begins: the agent is shown `prompt` and answers next. `digest` is the
    prompt's canonical hash.
    """

    source: SourceRun
    cut: int
    prompt: list[dict]
    digest: str


def read_run(row: Trajectory, settings: Sequence[Setting] | None = None) -> SourceRun:
    """`settings` are those of the run's project, if they are already known."""
    run = read(as_input(row) | {"messages": row.messages})
    setting = setting_of(run, settings_of(row.project) if settings is None else settings)
    own = (setting.tools, setting.lookups) if setting and setting.lookups is not None else ((), ())
    return SourceRun(
        row,
        run,
        steps_of(row.messages),
        known_answers(run),
        groups_of(row),
        effects_of(row.tools, [run], own),
        setting.name if setting else REPLAY if _results(run) else "",
    )


def settings_of(project: Project) -> list[Setting]:
    """The newest version of each environment with tools, the newest environment first."""
    rows = Environment.objects.filter(project=project, kind__in=WITH_STATE).current()
    newest: dict[str, Environment] = {}
    for row in rows.order_by("-created_at"):
        newest.setdefault(row.slug, row)
    return [setting for row in newest.values() if (setting := _setting(row)).tools]


def _setting(row: Environment) -> Setting:
    own, lookups = builtin_tools(row.builtin)
    given = row.config.get("tools") or row.harness.get("tools") or own
    chosen = {tool for tool in given if isinstance(tool, str)} | {
        name for name, _ in functions_of([tool for tool in given if isinstance(tool, dict)])
    }
    return Setting(str(row), row.slug, frozenset(chosen), lookups if own else None)


def setting_of(run: Run, settings: Sequence[Setting]) -> Setting | None:
    """The environment that the run names (`metadata.environment`), or else the first that has all
    of the run's tools.
    """
    named = run.metadata.get("environment")
    if named is not None:
        return next((item for item in settings if named in (item.name, item.slug)), None)
    tools = run.offer.names | {call.tool for call in run.calls}
    return next((item for item in settings if tools and tools <= item.tools), None)


def step_at(source: SourceRun, cut: int) -> RunStep:
    """Raises EvalSetError unless the message is a step of the agent."""
    if cut not in source.steps:
        raise EvalSetError(f"Message {cut} is not a step of the agent. Choose one of its turns.")
    prompt = prompt_at(source.row.messages, cut)
    return RunStep(source, cut, prompt, canonical_hash(prompt))


def steps_of(messages: list[dict]) -> list[int]:
    """Where a task may begin: before each turn of the agent that follows a request, or a tool's
    answer that brought one.
    """
    has_request, steps = False, []
    for index, message in enumerate(messages):
        if is_example(message):
            continue
        if message.get("role") == "assistant" and has_request:
            steps.append(index)
        has_request = has_request or message.get("role") in ("user", "tool")
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
