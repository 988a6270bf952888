"""The common part of episodes: whose turn it is, which calls ran, and when the episode ends. Light:
no torch.
"""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from workers.lib.environments import EnvironmentFailed, EpisodeError, opening
from workers.lib.environments.users import ACTS_AS, Ask, play_user, texts_in
from workers.lib.messages import (
    MAX_DEPTH,
    ToolCall,
    arguments_of,
    calls_in_text,
    native_calls,
    text_of,
    to_native,
    without_reasoning,
)
from workers.lib.prompts import shown
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.storable import storable, storable_json
from workers.lib.verifiers import (
    Clients,
    Execution,
    Rollout,
    Score,
    Verifier,
    build,
    masked,
    parse_call,
)

TAG = "<tool_call>"
CRASH = "The tool failed ("  # how a reply begins if the tool's own code raised
MAX_CALLS = 32  # per turn; further calls are rejected with an observation
MAX_TEXT = 200_000  # characters kept of one message
SCORED_AT_ONCE = 16
# Up to this many characters, a `quick` verifier runs in the episode's thread: handing over to
# another thread would take longer.
QUICK_TEXT = 4_000
# A separate executor, because the default one's size depends on the machine's cores, and may be too
# small for asking a judge.
_scorers = ThreadPoolExecutor(SCORED_AT_ONCE, "score")


def crashed(kind: str) -> str:
    """What the agent is told when a tool's own code raised: no message and no path."""
    return f"{CRASH}{kind})."


def as_assistant(message: Any, turn: int) -> dict:
    """A policy's output as a well-formed assistant message: text, and calls that have a name and an
    id.
    """
    message = message if isinstance(message, dict) else {"content": str(message)}
    calls = [_call(call, f"call_{turn}_{n}") for n, call in enumerate(native_calls(message), 1)]
    text = storable(text_of(message | {"role": "assistant"})[:MAX_TEXT])
    return {"role": "assistant", "content": text or (None if calls else "")} | (
        {"tool_calls": calls} if calls else {}
    )


def _call(call: ToolCall, fallback: str) -> dict:
    """Arguments that cannot be parsed are kept as text, so that the call is rejected when it
    runs.
    """
    arguments = storable((call.arguments or "{}")[:MAX_TEXT])
    return {
        "id": storable(call.id) or fallback,
        "type": "function",
        "function": {"name": storable(call.tool), "arguments": arguments},
    }


def with_calls(message: dict, turn: int, *, tags: bool = True) -> dict:
    """A message with native calls, if the text is exactly one {"tool", "args"} object, or calls in
    <tool_call> tags.
    """
    text = message.get("content") or ""
    if message.get("tool_calls") or not text:
        return message
    answer = without_reasoning(text)  # has the same length as the text
    if call := parse_call(text.strip()):
        thought = text[: len(answer) - len(answer.lstrip())].strip()
        return as_assistant(
            {"content": thought, "tool_calls": [to_native(call["tool"], call["args"])]}, turn
        )
    before, tag, _ = answer.partition(TAG)
    calls = calls_in_text(text) if tag and tags else []
    if not calls or any(call.problem for call in calls):
        return message
    native = [to_native(call.tool, call.args or {}) for call in calls]
    return as_assistant({"content": text[: len(before)].strip(), "tool_calls": native}, turn)


def _adopted(messages: list[dict]) -> list[dict]:
    return [
        as_assistant(message, number) if message.get("role") == "assistant" else dict(message)
        for number, message in enumerate(messages, 1)
    ]


def tool_names(tools: list[dict]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


class ToolEnvironment:
    """The common part of our environments: a harness, and a limit on turns if the harness sets
    none.
    """

    multi_turn = True
    # whether scores include the reward of each turn (workers.lib.advantages.turn_components)
    turn_rewards = False
    tools: list[dict] = []
    max_turns = 10
    ask: Ask | None = None  # the model that plays the users of tasks that have one

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.harness = spec.harness

    def conversation(self, task: dict) -> list[dict]:
        return opening(self.harness) + task["messages"]


class ToolEpisode:
    """An agent with tools. Subclasses define how a tool runs (`run`), what a text leads to
    (`replied`), and the score.

    The state contains what the episode cannot recompute; `world` is the subclass's part of it.
    """

    def __init__(
        self,
        environment: ToolEnvironment,
        task: dict,
        state: dict | None,
        *,
        tools: list[dict] | None = None,
    ) -> None:
        self.task, self.before = task, environment.conversation(task)
        self.tools = environment.tools if tools is None else tools
        self.max_turns = environment.harness.max_turns or environment.max_turns
        self.definitions, self.ask = environment.harness.shown_tools, environment.ask
        state = copy.deepcopy(state) if state else {}
        self.said: list[dict] = state.get("said", [])
        self.calls = [Execution(**call) for call in state.get("calls", [])]
        self.stop_reason: str = state.get("stop_reason", "")
        self.failure: str = state.get("failure", "")

    @property
    def messages(self) -> list[dict]:
        return self.before + self.said

    @property
    def offered(self) -> list[dict]:
        return shown(self.visible(), self.definitions)

    @property
    def judges_words(self) -> bool:
        """Whether the score may depend on what the agent writes besides its calls."""
        return not getattr(getattr(self, "verifier", None), "only_calls", False)

    def visible(self) -> list[dict]:
        """The tools that the agent is shown."""
        return self.tools

    @property
    def done(self) -> bool:
        return bool(self.stop_reason)

    @property
    def turns(self) -> int:
        return sum(message["role"] == "assistant" for message in self.said)

    @property
    def state(self) -> dict:
        return {
            "said": copy.deepcopy(self.said),
            "calls": [copy.deepcopy(vars(call)) for call in self.calls],
            "stop_reason": self.stop_reason,
            **({"failure": self.failure} if self.failure else {}),
            **self.world(),
        }

    def world(self) -> dict:
        """The subclass's JSON-able part of the state."""
        return {}

    async def step(self, message: dict) -> None:
        if self.done:
            raise EpisodeError(f"The episode is over ({self.stop_reason}).")
        said = self.read(as_assistant(message, self.turns + 1))
        self.said.append(said)
        for number, call in enumerate(said.get("tool_calls", [])):
            self.said.append(await self._answer(call, number))
        if not said.get("tool_calls"):
            await self.replied(said["content"] or "")
        if not self.done and self.turns >= self.max_turns:
            self.stop_reason = "turns"

    def read(self, message: dict) -> dict:
        """The agent's message. Text that is a call becomes one, since not every model has native
        calls.
        """
        return (
            with_calls(message, self.turns + 1, tags=bool(self.offered)) if self.tools else message
        )

    async def _answer(self, call: dict, number: int) -> dict:
        name = call["function"]["name"]
        if number >= MAX_CALLS or self.failure:
            text = self.failure or f"Error: at most {MAX_CALLS} calls are run in one turn."
        else:
            text = (await self.call(name, call["function"]["arguments"])).observation
        return {"role": "tool", "tool_call_id": call["id"], "content": text}

    async def call(self, tool: str, args: Any) -> Execution:
        given, tool = arguments_of(args), storable(tool)
        if given is None:
            done = self.refusal(
                tool, {}, f"The arguments are not a JSON object (or deeper than {MAX_DEPTH})."
            )
        else:
            try:
                done = await self.run(tool, storable_json(given))
            except EnvironmentFailed as error:
                self.failure, self.stop_reason = (
                    f"The environment failed: {error}"[:500],
                    "environment error",
                )
                done = self.refusal(tool, given, self.failure)
            except (
                Exception
            ) as error:  # a crashing tool is an observation, which must not contain our paths
                done = self.refusal(tool, given, crashed(type(error).__name__))
        self.calls.append(done)
        return done

    def refusal(self, tool: str, args: dict, why: str, *, unsafe: bool = False) -> Execution:
        return Execution(False, unsafe, f"Error: {why}", name=tool, args=args, error=why)

    async def run(self, tool: str, args: dict) -> Execution:
        raise NotImplementedError

    async def replied(self, text: str) -> None:
        """Called after a message without calls: the user's next turn (`users`), or the end of the
        episode.
        """
        turns = texts_in(self.task, "user_turns")
        said = sum(message["role"] == "user" for message in self.said)
        if turns and self.ask:
            wish = "\n".join(texts_in(self.task, "user_says")) or "Nothing else."
            answer, over = await play_user(self.ask, ACTS_AS + wish, self.dialogue())
            self.said.append({"role": "user", "content": answer})
            self.stop_reason = "user" if over else ""
        elif said < len(turns):
            self.said.append({"role": "user", "content": turns[said]})
        else:
            self.stop_reason = "stop"

    def dialogue(self) -> list[dict]:
        """The conversation that the user takes part in."""
        return [*self.task["messages"], *self.said]

    def add_messages(self, messages: list[dict]) -> None:
        self.said = _adopted(messages)
        self.stop_reason = self.stop_reason or "stop"

    async def record(self, messages: list[dict]) -> None:
        self.said += _adopted(messages)
        if not self.done:
            await self.replied(text_of(messages[-1]) if messages else "")

    def rollout(self) -> Rollout:
        return Rollout(
            task=self.task,
            messages=copy.deepcopy(self.said),
            tools=self.tools,
            calls=list(self.calls),
            stats={"turns": self.turns, "stop_reason": self.stop_reason},
        )

    async def responds(self) -> bool:
        return False  # if something in this process hangs, that is our own fault

    async def score(self) -> Score:
        return masked("The environment has no verifier.")

    async def close(self) -> None:
        """Nothing outside of this process has to be released."""


def _is_short(rollout: Rollout) -> bool:
    return len(rollout.messages) == 1 and len(text_of(rollout.messages[0])) <= QUICK_TEXT


async def judged(verifier: Verifier, rollout: Rollout) -> Score:
    """Score in a thread if it may take long, since verifiers may run programs or call a model. A
    crash, although verifiers promise not to, masks.
    """
    try:
        if getattr(verifier, "quick", False) and _is_short(rollout):
            score = verifier.score(rollout)
        else:
            here = copy_context()  # carries who is asking for the sandbox
            score = await asyncio.get_running_loop().run_in_executor(
                _scorers, here.run, verifier.score, rollout
            )
    except Exception as error:
        score = masked(f"The verifier failed: {type(error).__name__}: {error}")
    if not score.messages:
        score.messages = rollout.messages
    return score


class StateEpisode(ToolEpisode):
    """Scored by comparing the state after the calls with the one after the expected calls."""

    verifier: Verifier | None  # None: the environment's own comparison

    def states(self) -> tuple[dict, dict]:
        """(the state after the calls, the state that was expected). Raises ValueError, KeyError,
        TypeError for a task without usable calls.
        """
        raise NotImplementedError

    def compared(self, rollout: Rollout) -> Score:
        raise NotImplementedError

    def rollout(self) -> Rollout:
        state, expected = self.states()
        return replace(super().rollout(), state=state, expected_state=expected)

    async def score(self) -> Score:
        try:
            rollout = self.rollout()
        except (ValueError, KeyError, TypeError) as error:
            score = masked(f"The task has no usable expected calls: {error}")
            score.messages = copy.deepcopy(self.said)
            return score
        return (
            self.compared(rollout)
            if self.verifier is None
            else await judged(self.verifier, rollout)
        )


def verifier_of(spec: EnvironmentSpec, clients: Clients | None, own: str) -> Verifier | None:
    """The verifier that the spec names; None for the environment's own (kind `own`, or none
    given).
    """
    if spec.verifier.get("kind", own) == own:
        return None
    return build(spec.verifier, clients=clients)
