"""An environment that people write as a small Python package (docs/own-environment.md): its tools,
state, tasks and verifier.

The spec contains the package's files, so that what runs is what was hashed, wherever it runs and
whatever was edited since. Light: no torch; the package's own code runs in separate processes
(runners.py).
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

from msgspec import Struct, structs

from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import (
    ToolEnvironment,
    ToolEpisode,
    crashed,
    judged,
    tool_names,
    verifier_of,
)
from workers.lib.environments.packages.runners import PackageFailed, Runner, runner_of
from workers.lib.errors import SpecError
from workers.lib.json_schema import JsonSchema, refusal
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.typed import convert
from workers.lib.verifiers import Clients, Execution, Rollout, Score
from workers.lib.verifiers.base import Guarded, Unavailable, Unscorable

OWN = "package"
BROKEN_OF_ITSELF = (
    "import",
    "definition",
    "sandbox",
)  # kinds of failures that do not depend on the agent
TASK = ("id", "messages", "expected", "metadata", "tools")


class PackageConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`files` in the format of workers.lib.environments.packages.files; the other fields are what
    the package says about itself (`describe`).
    """

    package: str
    digest: str
    trusted: bool = False
    tools: list[dict] = []
    max_turns: int = 10
    tool_seconds: float = 20.0
    verify_seconds: float = 60.0
    description: str = ""
    files: dict[str, str] = {}


class Package(ToolEnvironment):
    """Uses the package's own verifier (kind “package”) unless the spec names another."""

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        """Does not run any of the package's code. Raises SpecError."""
        super().__init__(spec)
        self.config = convert(spec.config, PackageConfig, "environment.config")
        self.tools = self.config.tools
        self.schemas = {
            tool["function"]["name"]: JsonSchema(tool["function"]["parameters"], tolerant=True)
            for tool in self.tools
        }
        self.max_turns = self.config.max_turns
        if not self.config.files:
            raise SpecError(
                f"“environment.config.files”: the files of the package {self.config.package} are"
                " missing."
            )
        self.verifier = verifier_of(spec, clients, OWN) or OwnVerifier(self)

    @property
    def runner(self) -> Runner:
        config = self.config
        return runner_of(config.package, config.digest, config.files, trusted=config.trusted)

    def open(self, task: dict, state: dict | None = None) -> PackageEpisode:
        return PackageEpisode(self, task, state)

    def start(self, task: dict) -> dict:
        """The state at the beginning of a task. Raises PackageFailed."""
        return self.runner.ask("start", {"task": given(task)}, self.config.tool_seconds)


def given(task: dict) -> dict:
    """The part of a task that a package sees."""
    return {name: task[name] for name in TASK if name in task}


class PackageEpisode(ToolEpisode):
    """`inner` is the package's state; None before anything ran."""

    def __init__(self, environment: Package, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state)
        self.environment = environment
        self.inner: dict | None = copy.deepcopy((state or {}).get("package"))
        self.crashes: list[PackageFailed] = []

    @property
    def faults(self) -> list[str]:
        """Errors in the tools' code, and where: for people, never for the agent."""
        return [
            f"{one.text} ({one.where.splitlines()[-1]})" if one.where else one.text
            for one in self.crashes
        ]

    def world(self) -> dict:
        return {} if self.inner is None else {"package": copy.deepcopy(self.inner)}

    async def _begin(self) -> dict:
        """Raises EnvironmentFailed."""
        if self.inner is None:
            try:
                self.inner = await asyncio.to_thread(self.environment.start, self.task)
            except PackageFailed as error:
                raise EnvironmentFailed(error.text) from error
        return self.inner

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in tool_names(self.tools):
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        if problem := refusal(self.environment.schemas[tool], args)[:300]:
            return self.refusal(tool, args, problem)
        asked = {"tool": tool, "args": args, "state": await self._begin()}
        try:
            done = await asyncio.to_thread(
                self.environment.runner.ask, "call", asked, self.environment.config.tool_seconds
            )
        except PackageFailed as error:
            self.crashes.append(error)
            if error.kind == "state" or error.kind in BROKEN_OF_ITSELF:
                raise EnvironmentFailed(error.text) from error
            return self.refusal(
                tool, args, crashed(error.kind)
            )  # after a crash the agent sees no paths
        self.inner = done["state"]
        if done["finished"]:
            self.stop_reason = "finished"
        if done["error"]:
            return self.refusal(tool, args, done["error"])
        return Execution(True, False, done["text"], name=tool, args=args)

    def rollout(self) -> Rollout:
        return replace(super().rollout(), state=self.inner)

    async def score(self) -> Score:
        await self._begin()
        return await judged(self.environment.verifier, self.rollout())


class OwnVerifier(Guarded):
    """The package's `verify`. An error in it masks the sample, unless `verify` can score another
    attempt at the task.
    """

    def __init__(self, package: Package) -> None:
        self.package = package

    def judge(self, rollout: Rollout) -> Score:
        """Raises Unscorable, Unavailable."""
        state = rollout.state or self._fresh(rollout.task)
        calls = [
            {"tool": call.name, "args": call.args, "ok": call.ok, "result": call.observation}
            for call in rollout.calls
        ]
        attempt = {
            "task": given(rollout.task),
            "state": state,
            "messages": rollout.messages,
            "calls": calls,
            "answer": rollout.answer,
        }
        found = self._ask("verify", {"attempt": attempt}, self.package.config.verify_seconds)
        return Score(
            **found,
            messages=rollout.messages,
        )

    def _fresh(self, task: dict) -> dict:
        return self._ask("start", {"task": given(task)}, self.package.config.tool_seconds)

    def _ask(self, op: str, payload: dict, seconds: float) -> Any:
        try:
            return self.package.runner.ask(op, payload, seconds)
        except PackageFailed as error:
            kind = Unavailable if error.kind in BROKEN_OF_ITSELF else Unscorable
            place = (
                error.where.splitlines()[-1].split(" ")[0] if error.where else ""
            )  # without its code, because a model may read this
            text = f"{error.text} ({place})" if place else error.text
            raise kind(f"The verifier of {self.package.config.package}: {text}") from error


def config_of(name: str, digest: str, described: dict, *, trusted: bool) -> dict:
    """The `config` of an environment from the result of the driver's `describe`, without the
    files.
    """
    known = {field.name for field in structs.fields(PackageConfig)}
    return {name: value for name, value in described.items() if name in known} | {
        "package": name,
        "digest": digest,
        "trusted": trusted,
    }


__all__ = ["OWN", "Package", "PackageConfig", "PackageEpisode", "config_of"]
