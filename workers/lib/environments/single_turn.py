"""Any task, any harness, any verifier: one answer and its score. Light: no torch."""

from __future__ import annotations

from workers.lib.environments import opening
from workers.lib.environments.episodes import ToolEpisode, judged
from workers.lib.verifiers import Clients, Execution, Rollout, Score, Verifier, build


class SingleTurn:
    """The agent answers once. The task's own tools are shown, none is run: the verifier judges the call itself."""

    multi_turn = False

    def __init__(self, spec: dict, *, clients: Clients | None = None) -> None:
        self.harness: dict = spec.get("harness") or {}
        self.tools: list[dict] = self.harness.get("tools") or []
        self.verifier = build(spec.get("verifier") or {}, clients=clients)

    def conversation(self, task: dict) -> list[dict]:
        return opening(self.harness) + task["messages"]

    def open(self, task: dict, state: dict | None = None) -> ToolEpisode:
        tools = task.get("tools") or self.tools
        return OneAnswer(self.verifier, task, self.conversation(task), tools, max_turns=1, state=state)

    def score(self, task: dict, output: str) -> Score:
        score = self.verifier.score(Rollout.of_text(task, output, tools=task.get("tools") or self.tools))
        score.messages = score.messages or [{"role": "assistant", "content": output}]
        return score


class OneAnswer(ToolEpisode):
    """Over after the first message, with calls or without."""

    def __init__(self, verifier: Verifier, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.verifier = verifier

    async def step(self, message: dict) -> None:
        await super().step(message)
        self.said = self.said[:1]  # calls are judged, not run: there is no observation to show
        self.calls, self.stop_reason = [], "stop"

    async def run(self, tool: str, args: dict) -> Execution:
        return Execution(True, False, "The call was noted.", name=tool, args=args)

    async def score(self) -> Score:
        return await judged(self.verifier, self.rollout())
