"""A shop's service desk: a written policy, tools with irreversible effects, and a simulated user
who has a goal. Light: no torch.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache

from msgspec import structs

from workers.lib.environments import gold_calls
from workers.lib.environments.customer_service.shop import (
    CHECKED,
    HANDLERS,
    POLICY,
    TOOLS,
    Desk,
    ShopError,
    stocked,
    violations,
)
from workers.lib.environments.customer_service.shop import (
    LOOKUPS as LOOKUPS,
)
from workers.lib.environments.customer_service.user import ENDS, ScriptedUser, agrees
from workers.lib.environments.episodes import StateEpisode, ToolEnvironment, verifier_of
from workers.lib.environments.users import OVER, Ask, play_user, texts_in, user_model
from workers.lib.json_schema import refusal
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Rollout, Score
from workers.lib.verifiers.calls import untold_by

MAX_TURNS = 20
OWN = "service"
TALK = "message_user"
_TALK_TOOL = {
    "type": "function",
    "function": {
        "name": TALK,
        "description": "Says something to the customer and gives the customer's answer",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
}
_ACTS_AS = (
    "You play a customer of a shop who writes to its service agent. Say one short message at a"
    " time, only what the customer would say. When your wish is settled or finally refused, answer"
    f" {OVER}. What you want and know:\n"
)


class CustomerService(ToolEnvironment):
    """`config`: `user` is “script” (default) or “llm”, which needs the client `ask`; `user_as_tool`
    adds the tool message_user, for agents that can only call tools.

    Has its own verifier (kind “service”): −1 for a violation of the policy; 0 if the shop differs
    from its state after the expected calls; otherwise the share of the information that the user
    should have received.
    """

    max_turns = MAX_TURNS

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        super().__init__(spec)
        config = spec.config
        if self.harness.system_prompt is None:
            self.harness = structs.replace(self.harness, system_prompt=POLICY)
        self.ask = user_model(spec, clients)
        self.tools = [*TOOLS, _TALK_TOOL] if config.get("user_as_tool") else TOOLS
        self.verifier = verifier_of(spec, clients, OWN)

    def open(self, task: dict, state: dict | None = None) -> ServiceEpisode:
        return ServiceEpisode(self, task, state)

    def expected_state(self, task: dict) -> dict:
        """The shop after the expected calls. Raises ValueError for a call that the shop rejects."""
        desk = Desk(stocked())
        for call in gold_calls(task):
            try:
                HANDLERS[call["tool"]](desk, **call["args"])
            except (KeyError, TypeError, ShopError) as error:
                raise ValueError(
                    f"The expected call of {call['tool']} cannot be run: {error}"
                ) from error
        return desk.end_state()


class ServiceEpisode(StateEpisode):
    """`yes` holds what the user agreed to: texts of the agent that were answered with a clear
    yes.
    """

    def __init__(self, environment: CustomerService, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state)
        state = copy.deepcopy(state) if state else {}
        self.environment, self.verifier = environment, environment.verifier
        self.desk = Desk(stocked(), state.get("desk"))
        script = (task.get("metadata") or {}).get("user") or {}
        self.user = ScriptedUser(script, state.get("told") or [])
        self.yes: list[str] = state.get("yes") or []
        self.talked: list[dict] = state.get("talked") or []
        self.broken: list[str] = state.get("broken") or []

    def world(self) -> dict:
        own = {
            "desk": self.desk.state(),
            "told": self.user.told,
            "yes": self.yes,
            "talked": self.talked,
            "broken": self.broken,
        }
        return copy.deepcopy(own)

    # The agent's turn

    async def run(self, tool: str, args: dict) -> Execution:
        if tool == TALK and _TALK_TOOL in self.tools:
            answer, over = await self._user_says(str(args.get("text", "")))
            return Execution(
                True,
                False,
                answer + (" (The customer has left.)" if over else ""),
                name=tool,
                args=args,
            )
        if tool not in HANDLERS:
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        if problem := refusal(CHECKED[tool], args)[:300]:
            return self.refusal(tool, args, problem)
        broken = violations(self.desk, tool, args, self._confirmed)
        self.broken += [f"{tool}: {rule}" for rule in broken]
        try:
            answer = HANDLERS[tool](self.desk, **args)
        except ShopError as error:
            return self.refusal(tool, args, str(error), unsafe=bool(broken))
        if self.desk.handed_over:
            self.stop_reason = "handed over"
        return Execution(
            True, bool(broken), json.dumps(answer, ensure_ascii=False), name=tool, args=args
        )

    def _confirmed(self, subject: str) -> bool:
        """Whether the user answered yes to a message of the agent that names the subject."""
        return any(subject.lower() in text.lower() for text in self.yes)

    # The user's turn

    async def replied(self, text: str) -> None:
        answer, over = await self._user_says(text)
        self.said.append({"role": "user", "content": answer})
        if over:
            self.stop_reason = "user"

    async def _user_says(self, text: str) -> tuple[str, bool]:
        self.talked.append({"role": "assistant", "content": text})
        if self.environment.ask:
            answer, over = await self._by_model(self.environment.ask)
        elif self.user.script:
            answer, over = self.user.reply(text)
        else:
            answer, over = self._next_turn()
        if agrees(answer):
            self.yes.append(text)
        self.talked.append({"role": "user", "content": answer})
        return answer, over

    def _next_turn(self) -> tuple[str, bool]:
        """Of a task without a script, such as one from a failed run."""
        turns = texts_in(self.task, "user_turns")
        said = sum(item["role"] == "user" for item in self.talked)
        return (turns[said], False) if said < len(turns) else (ENDS, True)

    async def _by_model(self, ask: Ask) -> tuple[str, bool]:
        wish = self.user.script or texts_in(self.task, "user_says")
        first = [message for message in self.task["messages"] if message["role"] == "user"]
        acts_as = _ACTS_AS + json.dumps(wish, ensure_ascii=False)
        return await play_user(ask, acts_as, [*first, *self.talked])

    # Scoring

    def states(self) -> tuple[dict, dict]:
        return self.desk.end_state(), self.environment.expected_state(self.task)

    def compared(self, rollout: Rollout) -> Score:
        share, untold = self._share_told()
        right = rollout.state == rollout.expected_state
        unsafe = bool(self.broken)
        reward = -1.0 if unsafe else share * right
        details = [f"Against the policy, {item}" for item in self.broken]
        details += [] if right else ["The shop is not as it should be."]
        return Score(
            reward=reward,
            components={
                "state": float(right),
                "told": share,
                "violations": float(len(self.broken)),
            },
            success=reward == 1.0,
            unsafe=unsafe,
            messages=rollout.messages,
            details=details + [f"The user was not told: {' or '.join(item)}" for item in untold],
        )

    def _share_told(self) -> tuple[float, list[list[str]]]:
        """(share of `expected.tell` that the agent told the user, what it did not tell). Each item
        is a list of alternative wordings.
        """
        wanted = self.task.get("expected", {}).get("tell") or []
        untold = untold_by([*self.said, *self.talked], wanted)
        return (1 - len(untold) / len(wanted) if wanted else 1.0), untold


@lru_cache(maxsize=1)
def own_tasks() -> tuple[dict, ...]:
    """The built-in tasks, with their users, the correct calls and a correct conversation."""
    from workers.lib.environments.customer_service.tasks import make_tasks

    return tuple(make_tasks())
