"""Environments: what turns a task into a conversation and what an agent did into a score. Light: no
torch.

Their spec is `workers.lib.specs.environment`. See docs/environments.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from workers.lib.clients import clients_of
from workers.lib.errors import SpecError
from workers.lib.messages import call_of
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.specs.environment import Harness
from workers.lib.typed import convert
from workers.lib.verifiers import Clients, Execution, Score

BUILTIN = {
    "workplace": "workers.lib.environments.workplace:Workplace",
    "workplace_assistant": "workers.lib.environments.workplace_assistant:WorkplaceAssistant",
    "customer_service": "workers.lib.environments.customer_service:CustomerService",
    "bfcl_turns": "workers.lib.environments.bfcl:BfclTurns",
}
KINDS = {
    "single_turn": "workers.lib.environments.single_turn:SingleTurn",
    "replay": "workers.lib.environments.replay:Replay",
    "remote": "workers.lib.environments.remote:Remote",
    "mcp": "workers.lib.environments.mcp:Mcp",
    "openenv": "workers.lib.environments.openenv:OpenEnv",
    "package": "workers.lib.environments.packages:Package",
}


class Episode(Protocol):
    """One conversation about one task. Its state can be stored as JSON, and the episode reopened
    from it.
    """

    messages: list[dict]
    tools: list[dict]  # all tools that may be called
    # Those passed to the agent along with the messages; empty if the harness describes them in its
    # prompt.
    offered: list[dict]
    done: bool
    stop_reason: str
    failure: str  # why the episode cannot be scored, through no fault of the agent; "" if it can
    state: dict

    async def step(self, message: dict) -> None:
        """Apply an assistant message: run its calls and append their results, or the user's next
        turn. A text that is a call counts as one.

        Raises EpisodeError if the episode is over. If a tool crashes, that is an observation.
        """

    async def call(self, tool: str, args: Any) -> Execution:
        """Run one tool outside of a conversation, as the REST protocol does. Never raises, whatever
        the agent sent.
        """

    def add_messages(self, messages: list[dict]) -> None:
        """Adopt a conversation whose calls were run by `call`, and end the episode."""

    async def record(self, messages: list[dict]) -> None:
        """Add what the agent did and said since it was asked, whose calls were run by `call`. The
        environment answers its last words as in `step`.
        """

    async def responds(self) -> bool:
        """Whether the environment currently answers a trivial question. If so, slow tools are due
        to the agent's calls.
        """

    async def score(self) -> Score: ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """One environment with its harness and verifier. The same object is used for evaluation and
    training. Unless `multi_turn`, episodes end after one message.
    """

    tools: list[dict]
    multi_turn: bool
    harness: Harness

    def conversation(self, task: dict) -> list[dict]:
        """The OpenAI chat messages that the agent answers: the harness's system prompt and the
        task's messages.
        """

    def open(self, task: dict, state: dict | None = None) -> Episode:
        """A new episode, or the one that `state` was taken from."""


class EpisodeError(Exception):
    """A step that cannot be taken: the episode is over."""


class EnvironmentFailed(Exception):
    """Something that the tools need is missing (their server, the simulated user): not an
    observation, but the end of the episode.
    """


def opening(harness: Harness) -> list[dict]:
    """The messages before the task's own: the system prompt and the examples (few-shot turns)."""
    return (
        [{"role": "system", "content": harness.system_prompt}] if harness.system_prompt else []
    ) + harness.examples


def load(spec: EnvironmentSpec | dict, *, clients: Clients | None = None) -> Environment:
    """Load the `environment` part of a job's spec, which may be JSON. Raises SpecError for an
    unknown kind or name.

    `clients` are what verifiers and simulated users need from outside
    (workers.lib.verifiers.build); by default, those that the spec names.
    """
    if isinstance(spec, dict):
        spec = convert({"harness": {}, "verifier": {}} | spec, EnvironmentSpec, "environment")
    if clients is None:
        clients = clients_of(spec.clients)
    clients = {"allow_private": spec.allow_private} | dict(clients)
    kind, name = spec.kind, spec.name
    if kind in KINDS:
        return _class(KINDS[kind])(spec, clients=clients)
    if kind != "builtin" or name not in BUILTIN:
        raise SpecError(
            f"There is no {kind} environment “{name}”. Built in: {', '.join(BUILTIN)}; other kinds:"
            f" {', '.join(KINDS)}."
        )
    return _class(BUILTIN[name])(spec, clients=clients)


def _class(where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(module), name)


def builtin_tools(name: str) -> tuple[list[dict], frozenset[str]]:
    """The tools of a built-in environment, and which of them are look-ups; none for one that has no
    tools of its own.
    """
    if name not in BUILTIN:
        return [], frozenset()
    module = import_module(BUILTIN[name].split(":")[0])
    return getattr(module, "TOOLS", []), getattr(module, "LOOKUPS", frozenset())


def gold_calls(task: dict) -> list[dict]:
    """The correct calls, [{"tool", "args"}], from `expected` or a NeMo Gym row's `ground_truth`.
    Raises ValueError.
    """
    expected = task.get("expected") or {}
    if "calls" in expected or "tool" in expected:
        return [
            {"tool": call["tool"], "args": call["args"]}
            for call in expected.get("calls", [expected])
        ]
    truth = task.get("ground_truth")
    if not isinstance(truth, list):
        raise ValueError("The task has no expected calls.")
    calls = [call_of(call) for call in truth]
    if any(call is None or call.problem for call in calls):
        raise ValueError("The task's ground_truth holds something that is not a call.")
    return [call.plain for call in calls if call]
