"""What was said in a sample, and what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from apps.core.diffing import changed_lines
from apps.environments.models import Environment
from apps.evals.models import EvalRun, Sample
from apps.trajectories.pages.transcript import pretty
from workers.lib.environments import load
from workers.lib.errors import SpecError
from workers.lib.messages import (
    ToolCall,
    calls_of,
    json_of,
    last_answer,
    last_request,
    native_calls,
    text_of,
    unfenced,
)

WHOLE = 1_000_000  # lines around a change: all of them
MOST_CHARACTERS = 60_000  # of either side of a diff; the transcript folds at the same length


def answered(sample: Sample) -> list[dict]:
    """The agent's messages, with the tools' replies."""
    return sample.messages or [{"role": "assistant", "content": sample.output}]


def conversation(sample: Sample) -> list[dict]:
    """All messages: the harness's opening, the task's, the agent's."""
    return [*opening(sample.run), *sample.task.messages, *answered(sample)]


def opening(run: EvalRun) -> list[dict]:
    """The messages before a task's own: the environment's, or those of the prompt version that was
    evaluated. None of an agent that played: it has its own prompt.
    """
    return [] if run.spec.get("harness") else run.environment.opening_with(run.prompt)


def offered(sample: Sample) -> list[dict]:
    """The tools offered to the agent: the task's own, or else the environment's, or those of the
    prompt version.
    """
    return sample.task.tools or list(tools_of(sample.run))


def tools_of(run: EvalRun) -> tuple[dict, ...]:
    """An environment that cannot be loaded here has the tools of its harness."""
    return tools_in(run.environment, run.prompt)


def tools_in(environment: Environment, prompt: dict | None = None) -> tuple[dict, ...]:
    """The tools of an environment, or those of a prompt version in it."""
    return _tools(environment.hash, json.dumps(prompt or {}, sort_keys=True), environment)


@lru_cache(maxsize=64)
def _tools(digest: str, prompt: str, environment: Environment) -> tuple[dict, ...]:
    spec = environment.as_spec(json.loads(prompt))
    try:
        return tuple(load(spec).tools)
    except SpecError:
        return tuple(spec.harness.tools or [])


def request_of(messages: list[dict]) -> str:
    """The user's last message, as a heading."""
    at = last_request(messages)
    return (at is not None and text_of(messages[at])) or "A sample"


# Expected against actual


def difference(expected: Any, messages: Iterable[dict]) -> list[tuple[str, str]] | None:
    """(kind, line) of a diff from what was expected to what the agent did, all lines; None if
    `expected` is no value that an answer could be equal to (a constraint, a pattern)."""
    right = _as_values(expected)
    if right is None:
        return None
    said = list(messages)
    made = _calls(said) if "calls" in right else _words(said)
    before, after = _lines(right.get("calls", right.get("answer"))), _lines(made)
    return list(changed_lines(before, after, WHOLE)) or [("same", line) for line in after]


def changes(before: list[dict], after: list[dict]) -> list[tuple[str, str]]:
    """(kind, line) of a diff between what two samples said, all lines."""
    one, other = _script(before), _script(after)
    return list(changed_lines(one, other, WHOLE)) or [("same", line) for line in other]


def _script(messages: Iterable[dict]) -> list[str]:
    """The messages as lines: who speaks, the text, and each native call."""
    lines, room = [], MOST_CHARACTERS
    for message in messages:
        calls = [{"tool": call.tool, "args": _args(call)} for call in native_calls(message)]
        said = [pretty(text_of(message)), *(pretty(call) for call in calls)]
        found = [
            f"{message.get('role')}:",
            *(line for text in said if text for line in text.splitlines()),
        ]
        room -= sum(map(len, found))
        if room < 0:
            return [*lines, "… see the conversation for the rest"]
        lines += found
    return lines


def _as_values(expected: Any) -> dict[str, Any] | None:
    """{"calls": …} or {"answer": …} of the forms that name a value."""
    if not isinstance(expected, dict):
        return None
    if "calls" in expected:
        return {"calls": [_bare(call) for call in expected["calls"]]}
    if "tool" in expected:
        return {"calls": [_bare(expected)]}
    return {"answer": _ordered(expected["answer"])} if "answer" in expected else None


def _bare(call: Any) -> Any:
    return (
        {"tool": call.get("tool"), "args": _ordered(call.get("args", {}))}
        if isinstance(call, dict)
        else call
    )


def _ordered(value: Any) -> Any:
    """With the names of objects in order: an agent may write them in any."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=str)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _calls(messages: list[dict]) -> Any:
    """The calls in the form of expected ones; the words of an agent that called nothing."""
    made = [
        {"tool": call.tool, "args": _args(call)}
        for message in messages
        if message.get("role") == "assistant"
        for call in calls_of(message)
    ]
    return made or _words(messages) or []


def _args(call: ToolCall) -> Any:
    return _ordered(call.given if call.args is None else call.args)


def _words(messages: list[dict]) -> Any:
    text = text_of(last_answer(messages)).strip()
    value = json_of(unfenced(text))
    return text if value is None else _ordered(value)


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} more characters"
    return text.splitlines()
