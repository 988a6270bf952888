"""Any task, any harness, any verifier: one answer and its score. Light: no torch."""

from __future__ import annotations

from workers.lib.environments import opening
from workers.lib.environments.episodes import ToolEpisode, judged
from workers.lib.verifiers import Clients, Execution, Score, build


class SingleTurn:
    """The agent answers once. The task's tools, or else the harness's, are shown (not where the harness says `show_tools`:
    false, since its system prompt describes them), none is run: the verifier judges the call itself."""

    multi_turn = False

    def __init__(self, spec: dict, *, clients: Clients | None = None) -> None:
        self.harness: dict = spec.get("harness") or {}
        self.tools: list[dict] = self.harness.get("tools") or []
        self.verifier = build(spec.get("verifier") or {}, clients=clients)

    def conversation(self, task: dict) -> list[dict]:
        return opening(self.harness) + task["messages"]

    def open(self, task: dict, state: dict | None = None) -> OneAnswer:
        return OneAnswer(self, task, state)


class OneAnswer(ToolEpisode):
    """Over after the first message, with calls or without."""

    def __init__(self, environment: SingleTurn, task: dict, state: dict | None) -> None:
        tools = task.get("tools") or environment.tools
        super().__init__(task, environment.conversation(task), tools, max_turns=1, state=state)
        self.environment = environment

    @property
    def offered(self) -> list[dict]:
        return self.tools if self.environment.harness.get("show_tools", True) else []

    def read(self, message: dict) -> dict:
        return message  # verifiers read calls in text, and those of texts need it as it was written

    async def step(self, message: dict) -> None:
        await super().step(message)
        self.said = self.said[:1]  # calls are judged, not run: there is no observation to show
        self.calls, self.stop_reason = [], "stop"

    async def run(self, tool: str, args: dict) -> Execution:
        return Execution(True, False, "The call was noted.", name=tool, args=args)

    async def score(self) -> Score:
        return await judged(self.environment.verifier, self.rollout())
