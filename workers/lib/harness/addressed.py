"""Episodes whose tools an agent called itself, at an address of its own: their state and their
calls are those of the address, and what the agent says that it did is not done again. Light: no
torch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.lib.environments import Environment, Episode
from workers.lib.errors import JobError
from workers.lib.messages import Message, calls_of, native_calls, same_json, text_of, to_native
from workers.lib.specs.evaluate import RolloutDoor
from workers.lib.verifiers import Execution

RAN = "ran"  # of an agent's message: what it did at its address before it said this
MOST_BYTES = 64 * 2**20  # of an answer of the runner
OPENS_S, ASKED_AGAIN_S = 15.0, 0.05


@dataclass
class Ran:
    """`state` is that of the episode if tools were called at its address, else None; `said` are
    then all messages of the agent. `error` is raised after that: the agent failed at the end.
    `put_back` opens the address again from a state, if the episode goes on.
    """

    state: dict | None = None
    said: Sequence[Message] = ()
    error: Exception | None = None
    put_back: Callable[[dict], Awaitable[None]] | None = None

    def as_message(self) -> Message:
        last = text_of(self.said[-1]) if self.said else ""
        return {"role": "assistant", "content": last, RAN: self}


def as_it_ran(said: Sequence[Message], calls: Sequence[Execution]) -> list[Message]:
    """What the agent says that it did, with exactly the calls that it made and what they returned.
    If it reports others, its calls come first, as they were made, and then its words: nothing that
    it only claims may be scored.
    """
    return _matched(said, list(calls)) or _in_order(said, calls)


def _matched(said: Sequence[Message], left: list[Execution]) -> list[Message]:
    """[] unless it reports each call that it made, and no other."""
    messages: list[Message] = []
    for turn in said:
        results: list[Message] = []
        native: list[dict] = []
        for call in calls_of(turn):
            same = (one for one in left if one.name == call.tool and same_json(one.args, call.args))
            if (made := next(same, None)) is None:
                return []
            left.remove(made)
            number = call.id or f"call_{len(messages)}_{len(native)}"
            native.append(to_native(made.name, made.args, number))
            results.append(_result(number, made))
        text = "" if native and not native_calls(turn) else text_of(turn)
        messages += [_turn(text, native), *results]
    return [] if left else messages


def _in_order(said: Sequence[Message], calls: Sequence[Execution]) -> list[Message]:
    messages: list[Message] = []
    for at, made in enumerate(calls, 1):
        number = f"call_{at}"
        native = to_native(made.name, made.args, number)
        messages += [_turn("", [native]), _result(number, made)]
    words = [{"role": "assistant", "content": text_of(turn)} for turn in said]
    return messages + [turn for turn in words if turn["content"] and not calls_of(turn)]


def _turn(text: str, calls: list[dict]) -> Message:
    more = {"tool_calls": calls} if calls else {}
    return {"role": "assistant", "content": text or (None if calls else "")} | more


def _result(number: str, made: Execution) -> Message:
    return {"role": "tool", "tool_call_id": number, "content": made.observation}


class Addressed:
    """An environment whose episodes may have an address."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def open(self, task: dict, state: dict | None = None) -> AddressedEpisode:
        return AddressedEpisode(self.environment, task, state)


class AddressedEpisode:
    """The episode itself, replaced by what it has become at its address when the agent answers."""

    def __init__(self, environment: Environment, task: dict, state: dict | None) -> None:
        self._environment, self._task = environment, task
        self._episode: Episode = environment.open(task, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)

    async def step(self, message: Message) -> None:
        ran = message.get(RAN)
        if not isinstance(ran, Ran):
            await self._episode.step(message)
            return
        if ran.state is None:
            rest = {name: value for name, value in message.items() if name != RAN}
            await self._episode.step(rest)
        else:
            await self._adopt(ran, ran.state)
        if ran.error is not None:
            raise ran.error
        if ran.put_back and not self._episode.done:
            await ran.put_back(self._episode.state)

    async def _adopt(self, ran: Ran, state: dict) -> None:
        before: Any = self._episode
        if client := getattr(before, "client", None):
            await client.aclose()  # its session at the other end goes on
        episode: Any = self._environment.open(self._task, state)
        self._episode = episode
        await episode.record(as_it_ran(ran.said, episode.calls[len(before.calls) :]))


@dataclass(frozen=True)
class Address:
    """Where an agent finds the environment's tools, and in training also its model."""

    mcp: str
    tools: str
    model: str = ""

    @classmethod
    def below(cls, root: str, *, has_model: bool = False) -> Address:
        """The parts of a rollout's address."""
        return cls(f"{root}/mcp", f"{root}/tools", f"{root}/v1" if has_model else "")


class Rollouts:
    """The addresses of the samples of a job, which its runner opens and ends. Raises JobError where
    that does not work: it is the installation's failure, and no sample could be trusted.
    """

    def __init__(self, door: RolloutDoor, tasks: Sequence[dict], samples: int) -> None:
        self.door, self.tasks, self.samples = door, tasks, samples

    async def begin(self, key: int) -> Address:
        said = await self._ask(key, do="begin")
        return Address.below(self.door.url + said["token"])

    async def take(self, key: int) -> dict | None:
        """Ends it. The state of its episode if a tool was called there, else None."""
        said = await self._ask(key, do="take")
        return said["state"] if said["calls"] else None

    async def put_back(self, key: int, state: dict) -> None:
        await self._ask(key, do="put back", state=state)

    async def _ask(self, key: int, **more: Any) -> dict:
        place = {"task": self.tasks[key // self.samples]["id"], "index": key % self.samples}
        reader, writer = await self._connected()
        try:
            writer.write(json.dumps(place | more).encode() + b"\n")
            await writer.drain()
            said = json.loads(await reader.readline())
        except (OSError, ValueError) as error:
            raise JobError(f"The job's runner did not answer ({error}).") from error
        finally:
            writer.close()
        if "error" in said:
            raise JobError(f"A rollout's address could not be used: {said['error']}")
        return said

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The runner opens its socket only after it has started this program."""
        until = asyncio.get_running_loop().time() + OPENS_S
        while True:
            try:
                return await asyncio.open_unix_connection(self.door.socket, limit=MOST_BYTES)
            except OSError as error:
                if asyncio.get_running_loop().time() > until:
                    raise JobError(f"The job's runner cannot be asked ({error}).") from error
            await asyncio.sleep(ASKED_AGAIN_S)
