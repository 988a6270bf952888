"""A whole agent as a policy: it gets the task and returns everything it did, which is then replayed
in the episode. Light: no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from workers.lib.agent_client import AgentClient, AgentError
from workers.lib.harness.addressed import RAN, Address, Ran, Rollouts
from workers.lib.policies import PolicyError, Reply
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.spending import NOTHING

DOWN_AFTER = 10  # unreachable for this many samples in a row, after which the job ends


@dataclass
class _Sample:
    """The rest of an agent's answer, and of its time; `address` is that of its tools, if it has
    one.
    """

    seconds: float
    address: Address | None = None
    turns: deque[Reply] = field(default_factory=deque)
    asked: int = 0


class AgentPolicy:
    """Calls the agent once and replays its messages turn by turn, like those of an external agent
    in CI: tool results come from the environment. If all messages are replayed and the episode
    continues (with a tool's result or a user's next message), the agent is called again with the
    whole conversation; except in a Gym run, which is a whole episode. `tools` are used if an
    episode shows none.

    With `rollouts`, each sample has an address at which the agent may call the tools itself. If it
    did, its messages are not replayed: they are one reply, with what ran there
    (`harness.addressed`).

    A failure of the agent fails the sample, so that it cannot choose what counts; if it is
    unreachable, the sample is masked.
    """

    shares_time = True  # its time is measured here, without waiting for a slot

    def __init__(
        self,
        agent: AgentEndpoint,
        client: AgentClient | None = None,
        *,
        tools: Sequence[dict] = (),
        rollouts: Rollouts | None = None,
    ) -> None:
        self.agent, self.client, self.tools = agent, client or AgentClient(agent), list(tools)
        self.rollouts = rollouts
        self.samples: dict[int, _Sample] = {}
        self.away = 0  # samples in a row for which it was unreachable

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply | None:
        sample = self.samples.setdefault(key, _Sample(self.agent.timeout_s))
        if not sample.turns:
            if sample.asked and self.agent.protocol == "gym":
                return None
            await self._ask(sample, messages, tools or self.tools, seed, key)
        return sample.turns.popleft()

    async def _ask(
        self, sample: _Sample, messages: list[dict], tools: list[dict], seed: int, key: int
    ) -> None:
        sample.asked += 1
        name = f"{seed}-{key}-{sample.asked}"
        if self.rollouts and sample.address is None:
            sample.address = await self.rollouts.begin(key)
        try:
            answer = await self.client.ask(
                messages,
                tools,
                seed=seed,
                name=name,
                seconds=sample.seconds,
                address=sample.address,
            )
        except AgentError as error:
            failure = self._failure(error)
            ran = None if failure.final else await self._ran(key, (), failure)
            if ran is None:
                raise failure from error
            if error.is_silent:  # what it did at its address is its answer
                ran.error = None
            sample.turns.append(Reply(ran.as_message(), counted=False))
            return
        self.away = 0
        sample.seconds = max(0.0, sample.seconds - answer.seconds)
        turns, ran = answer.said.turns, await self._ran(key, answer.said.turns)
        if ran and ran.state is not None:
            turns = [ran.as_message()]
        elif ran:
            turns = [*turns[:-1], turns[-1] | {RAN: ran}]
        sample.turns.extend(Reply(message, _text(message)) for message in turns)
        used = answer.said.tokens or NOTHING
        sample.turns[0] = replace(
            sample.turns[0],
            prompt_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            counted=answer.said.tokens is not None,
            latency_ms=answer.seconds * 1000,
        )

    async def _ran(
        self, key: int, said: Sequence[dict], error: PolicyError | None = None
    ) -> Ran | None:
        """Ends the sample's address. None if it has none, or if an agent that failed called
        nothing there.
        """
        if self.rollouts is None:
            return None
        state = await self.rollouts.take(key)
        if error and state is None:
            return None
        return Ran(state, said, error, partial(self.rollouts.put_back, key))

    def _failure(self, error: AgentError) -> PolicyError:
        self.away = 0 if error.limit or error.final else self.away + 1
        if self.away >= DOWN_AFTER:
            return PolicyError(
                f"{error} So ended {DOWN_AFTER} samples in a row; those before are kept.",
                final=True,
            )
        return PolicyError(str(error), error.final, error.limit)

    def forget(self, key: int) -> None:
        self.samples.pop(key, None)

    async def responds(self) -> bool:
        """Always true: an agent cannot be asked a trivial question, and its time is its own:
        hanging must not be better than failing.
        """
        return True

    async def aclose(self) -> None:
        await self.client.aclose()


def _text(message: dict) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
