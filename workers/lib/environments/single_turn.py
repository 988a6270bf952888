"""Any task, any harness, any verifier: one answer and its score. Light: no torch."""

from __future__ import annotations

from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode, judged
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score, build


class SingleTurn(ToolEnvironment):
    """The agent answers once. The task's tools, or else the harness's, are shown (unless the
    harness sets `show_tools` to false, because its system prompt describes them), but none is run:
    the verifier judges the call itself.
    """

    multi_turn = False

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        super().__init__(spec)
        self.tools = self.harness.tools or []
        self.verifier = build(spec.verifier, clients=clients)

    def open(self, task: dict, state: dict | None = None) -> OneAnswer:
        return OneAnswer(self, task, state)


class OneAnswer(ToolEpisode):
    """Over after the first message, with calls or without."""

    def __init__(self, environment: SingleTurn, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state, tools=task.get("tools") or environment.tools)
        self.environment = environment

    def visible(self) -> list[dict]:
        return self.tools if self.environment.harness.show_tools else []

    def read(self, message: dict) -> dict:
        # verifiers parse calls in text themselves, and verifiers of texts need the original
        return message

    async def step(self, message: dict) -> None:
        await super().step(message)
        self.said = self.said[:1]  # calls are judged rather than run, so there is no observation
        self.calls, self.stop_reason = [], "stop"

    async def run(self, tool: str, args: dict) -> Execution:
        return Execution(True, False, "The call was noted.", name=tool, args=args)

    async def score(self) -> Score:
        return await judged(self.environment.verifier, self.rollout())
