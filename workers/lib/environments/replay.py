"""Replays a recorded run: tools return what they returned then. Light: no torch.

A task's metadata contains `recorded_results` [{"tool", "args", "content"}], `state` [{"path",
"equals"}] (what must hold afterwards, see `workers.lib.checks`), and `nearest: true` if a call with
other arguments may be answered with the nearest recorded one of that tool.
"""

from __future__ import annotations

from rapidfuzz.distance import Indel

from workers.lib.checks import answered_calls, assertions_in, state_after, state_share
from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode, judged
from workers.lib.environments.users import user_model
from workers.lib.messages import argument_share, normalise, same_value
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score, build


class Replay(ToolEnvironment):
    """Harness and verifier come from the spec, the recorded tools from the task."""

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        super().__init__(spec)
        self.nearest = bool(spec.config.get("nearest", False))
        self.ask = user_model(spec, clients)
        self.verifier = build(spec.verifier, clients=clients)

    def open(self, task: dict, state: dict | None = None) -> ReplayEpisode:
        return ReplayEpisode(self, task, state)


class ReplayEpisode(ToolEpisode):
    """A result is served once as long as there are others for the same call; the last one may be
    served repeatedly.
    """

    def __init__(self, environment: Replay, task: dict, state: dict | None) -> None:
        super().__init__(
            environment, task, state, tools=task.get("tools") or environment.harness.tools or []
        )
        metadata = task.get("metadata") or {}
        found = metadata.get("recorded_results")
        self.recorded: list[dict] = (
            [item for item in found if _is_result(item)] if isinstance(found, list) else []
        )
        self.nearest = bool(metadata.get("nearest", environment.nearest))
        self.assertions = assertions_in(metadata)
        self.verifier = environment.verifier
        self.used: list[int] = list((state or {}).get("used", []))

    def world(self) -> dict:
        return {"used": list(self.used)}

    async def run(self, tool: str, args: dict) -> Execution:
        found = self._find(tool, args)
        if found is None:
            return self.refusal(tool, args, "not recorded")
        self.used.append(found)
        return Execution(True, False, self.recorded[found]["content"], name=tool, args=args)

    def _find(self, tool: str, args: dict) -> int | None:
        """The first unused result of exactly this call, else its last one, else the nearest if the
        task allows it.
        """
        mine = [index for index, item in enumerate(self.recorded) if item["tool"] == tool]
        same = [index for index in mine if same_value(self.recorded[index]["args"], args)]
        if same:
            return next((index for index in same if index not in self.used), same[-1])
        if not self.nearest or not mine:
            return None
        return max(mine, key=lambda index: (_likeness(args, self.recorded[index]["args"]), -index))

    async def score(self) -> Score:
        """The verifier's score. If some assertions do not hold, it is not a success, and its credit
        is reduced to the share that holds.
        """
        score = await judged(self.verifier, self.rollout())
        if not self.assertions or score.masked or score.reward is None:
            return score
        made = [
            {"tool": call.name, "args": call.args, "content": call.observation}
            for call in self.calls
            if call.ok
        ]
        share = state_share(
            self.assertions, state_after(answered_calls(self.task["messages"]) + made)
        )
        score.components["state"] = share
        score.reward = min(score.reward, score.reward * share)
        score.success = score.success and share == 1.0
        if share < 1.0:
            score.details.insert(0, f"{share:.0%} of what must hold afterwards holds.")
        return score


def _is_result(item: object) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("tool"), str)
        and isinstance(item.get("args"), dict)
        and isinstance(item.get("content"), str)
    )


def _likeness(args: dict, recorded: dict) -> tuple[float, float]:
    """Sort key: the share of equal arguments first, then the similarity of the rest."""
    alike = Indel.normalized_similarity(
        repr(normalise(args))[:2000], repr(normalise(recorded))[:2000]
    )
    return argument_share(args, recorded), alike
