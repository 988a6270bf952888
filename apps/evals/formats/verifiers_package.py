"""A package for verifiers 0.4 (`vf-eval`, prime-rl): tasks as JSONL, a taskset that scores them, a
harness that runs them.

The package has its own harness because the built-in ones serve tools over MCP and rename them; a
model should see the tools, and earlier calls of them, under the names that it was trained with.
Tool results are the recorded ones, so nothing real is called. `checks.py` is included unchanged:
Flywheel and the package score with the same code.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from importlib import resources

from apps.evals.formats import own
from apps.evals.formats.rows import TaskRow

VERSION = "verifiers==0.4.*"
RECORDED = (  # metadata: [{"tool", "args", "content"}], what the tools returned in the recorded run
    "recorded_results"
)

PYPROJECT = """\
[project]
name = "{dash}"
version = "0.1.0"
description = "{count} tasks exported by Flywheel"
requires-python = ">=3.11"
dependencies = ["{verifiers}", "httpx"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""

README = """\
# {dash}

{count} tasks for verifiers 0.4, exported by Flywheel. `{name}/tasks.jsonl` holds them in \
Flywheel's own format.

    pip install .
    export MODEL_API_KEY=…
    vf-eval @ eval.toml --client.base-url http://YOUR-MODEL-SERVER/v1 --model MODEL --no-push \
--no-rich

The reward `correct` is 1 where all expected calls (or the answer) are right, nothing is too much \
and the state that the task
asks for holds afterwards, else 0. `tools`, `arguments` and `state` are metrics: the shares that \
are right. A tool that is
called is answered with its recorded result; where there is none, the rollout ends with that call.

The state is what the tools' answers say: JSON objects, merged in the order of the calls, those in \
the task's messages first.
Below `calls` it has of each tool the `count` and the `args` and `result` of the last call. What \
no answer tells does not hold.
"""

EVAL = """\
num_rollouts = 1
push = false

[env.taskset]
id = "{dash}"

[env.agent.harness]
id = "{dash}"

[env.agent.runtime]
type = "subprocess"

[client]
type = "eval"
base_url = "http://YOUR-MODEL-SERVER/v1"
api_key_var = "MODEL_API_KEY"
"""

INIT = """\
from {name}.harness import RecordedHarness
from {name}.taskset import ExportedTaskset

__all__ = ["ExportedTaskset", "RecordedHarness"]
"""

TASKSET = '''\
"""The tasks and how they are scored."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import parse_message

from {name}.checks import answered_calls, assertions_in, score, state_after, state_share
from {name}.messages import native_calls, same_value

TASKS = Path(__file__).with_name("tasks.jsonl")


class ExportedData(vf.TaskData):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    expected: dict[str, Any]
    recorded: list[dict[str, Any]] = []
    assertions: list[dict[str, Any]] = []


class ExportedTask(vf.Task[ExportedData]):
    @property
    def key(self) -> str:
        return self.data.id or self.hash

    def scores(self, trace: vf.Trace) -> dict[str, float]:
        """Of the last reply; where calls are expected, of all calls that the rollout made; of the \
state after them."""
        replies = [as_chat(reply) for reply in trace.assistant_messages]
        if not replies:
            return {{"success": 0.0}}
        made = [call for reply in replies for call in reply["tool_calls"]]
        found = score(self.data.expected, replies[-1] | {{"tool_calls": made}})
        if self.data.assertions:
            found["state"] = state_share(self.data.assertions, state_after(all_calls(self.data, \
replies)))
        return found

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        found = self.scores(trace)
        return float(found["success"] == found.get("state", 1.0) == 1.0)

    @vf.metric
    async def shares(self, trace: vf.Trace) -> dict[str, float]:
        return {{name: value for name, value in self.scores(trace).items() if name != "success"}}


class ExportedConfig(vf.TasksetConfig):
    split: str | None = None
    """Only the tasks of this split."""


class ExportedTaskset(vf.Taskset[ExportedTask, ExportedConfig]):
    def load(self) -> Iterator[ExportedTask]:
        with TASKS.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if self.config.split in (None, row.get("split")):
                    yield ExportedTask(data_of(row), self.config.task)


def data_of(row: dict[str, Any]) -> ExportedData:
    return ExportedData(
        id=row["key"],
        name=row["key"],
        prompt=[parse_message(without_developer(message)) for message in row["messages"]],
        messages=row["messages"],
        tools=row.get("tools", []),
        expected=row["expected"],
        recorded=row.get("metadata", {{}}).get("{recorded}", []),
        assertions=assertions_in(row.get("metadata", {{}})),
    )


def as_chat(reply: vf.AssistantMessage) -> dict[str, Any]:
    """A reply of the trace as a message of OpenAI's chat."""
    calls = [
        {{"id": call.id, "type": "function", "function": {{"name": call.name, "arguments": \
call.arguments}}}}
        for call in reply.tool_calls or []
    ]
    return {{"role": "assistant", "content": reply.content or "", "tool_calls": calls}}


def without_developer(message: dict[str, Any]) -> dict[str, Any]:
    """verifiers knows no role “developer”; the harness sends the messages as they are."""
    return message | {{"role": "system"}} if message["role"] == "developer" else message


def recorded_result(data: ExportedData, tool: str, args: dict[str, Any], used: set[int]) -> str | \
None:
    """What the tool answered to this call in the recorded run; a result is given once."""
    for index, result in enumerate(data.recorded):
        same = result["tool"] == tool and same_value(result["args"], args)
        if same and index not in used:
            used.add(index)
            return result["content"]
    return None


def served(data: ExportedData, reply: dict[str, Any], used: set[int]) -> list[dict[str, Any]]:
    """Tool messages for all calls of a reply; empty where it makes none or one has no recorded \
result."""
    calls = native_calls(reply)
    if not calls or any(call.problem for call in calls):
        return []
    results = [recorded_result(data, call.tool, call.args, used) for call in calls]
    if None in results:
        return []
    return [
        {{"role": "tool", "tool_call_id": call.id, "content": content}}
        for call, content in zip(calls, results, strict=True)
    ]


def all_calls(data: ExportedData, replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """[{{"tool", "args", "content"}}] of the task's messages, then of the rollout, with the \
results that it was served."""
    used: set[int] = set()
    rollout = [message for reply in replies for message in (reply, *served(data, reply, used))]
    return answered_calls(data.messages) + answered_calls(rollout)
'''

HARNESS = '''\
"""The conversation: the model answers; recorded results are served to its calls until there is \
none to serve."""

import httpx
import verifiers.v1 as vf

from {name}.taskset import served


class RecordedConfig(vf.HarnessConfig):
    max_turns: int = 10
    """Turns of the model at most."""
    timeout: float = 600.0
    """Seconds that one turn may take."""


class RecordedHarness(vf.Harness[RecordedConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> \
vf.ProgramResult:
        messages = list(data.messages)
        if data.system_prompt:
            messages.insert(0, {{"role": "system", "content": data.system_prompt}})
        body = {{"model": ctx.model, **({{"tools": data.tools}} if data.tools else {{}})}}
        headers = {{"Authorization": f"Bearer {{secret}}"}}
        used: set[int] = set()
        async with httpx.AsyncClient(headers=headers, timeout=self.config.timeout) as client:
            for _ in range(self.config.max_turns):
                response = await client.post(f"{{endpoint}}/chat/completions", json=body | \
{{"messages": messages}})
                if response.status_code >= 400:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=response.text[-2000:])
                reply = response.json()["choices"][0]["message"]
                results = served(data, reply, used)
                if not results:
                    break
                messages += [reply, *results]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
'''


def package(rows: Iterable[TaskRow], name: str) -> dict[str, str]:
    """{path: text} of a package for `pip install` and `vf-eval @ eval.toml`.

    `name` is converted to a valid package name. Raises ValueError if nothing remains of it or there
    are not tasks.
    """
    module = package_name(name)
    tasks = list(own.write(rows))
    if not tasks:
        raise ValueError("There are no tasks to export.")
    named = {
        "name": module,
        "dash": module.replace("_", "-"),
        "count": len(tasks),
        "verifiers": VERSION,
        "recorded": RECORDED,
    }
    texts = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        "eval.toml": EVAL,
        f"{module}/__init__.py": INIT,
        f"{module}/taskset.py": TASKSET,
        f"{module}/harness.py": HARNESS,
    }
    files = {path: text.format(**named) for path, text in texts.items()}
    return files | carried(module) | {f"{module}/tasks.jsonl": "".join(tasks)}


def carried(module: str) -> dict[str, str]:
    """{path: text} of our code that scoring needs: checks.py, storable.py and the package
    messages, with imports adapted to their new location.
    """
    home = resources.files("workers.lib")
    paths = [
        "checks.py",
        "storable.py",
        *(
            f"messages/{file.name}"
            for file in home.joinpath("messages").iterdir()
            if file.name.endswith(".py")
        ),
    ]
    return {
        f"{module}/{path}": (
            home.joinpath(path).read_text(encoding="utf-8").replace("workers.lib.", f"{module}.")
        )
        for path in sorted(paths)
    }


def package_name(name: str) -> str:
    """A Python package's name: lower-case letters, digits and underscores. Raises ValueError if
    nothing remains.
    """
    made = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
    if not made:
        raise ValueError(f"“{name}” gives no name for a package: use letters and digits.")
    return (
        f"tasks_{made}"
        if made[0].isdigit() or keyword.iskeyword(made) or made in ("verifiers", "tasks")
        else made
    )
