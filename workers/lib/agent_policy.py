"""A whole agent as a policy: it gets the task and returns everything it did, which is then replayed
in the episode. Light: no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from workers.lib.agent_client import AgentClient, AgentError
from workers.lib.policies import PolicyError, Reply
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.spending import NOTHING

DOWN_AFTER = 10  # unreachable for this many samples in a row, after which the job ends


@dataclass
class _Sample:
    """The rest of an agent's answer, and of its time."""

    seconds: float
    turns: deque[Reply] = field(default_factory=deque)
    asked: int = 0


class AgentPolicy:
    """Calls the agent once and replays its messages turn by turn, like those of an external agent
    in CI: tool results come from the environment. If all messages are replayed and the episode
    continues (with a tool's result or a user's next message), the agent is called again with the
    whole conversation; except in a Gym run, which is a whole episode. `tools` are used if an
    episode shows none.

    A failure of the agent fails the sample, so that it cannot choose what counts; if it is
    unreachable, the sample is masked.
    """

    shares_time = True  # its time is measured here, without waiting for a slot

    def __init__(
        self, agent: AgentEndpoint, client: AgentClient | None = None, *, tools: Sequence[dict] = ()
    ) -> None:
        self.agent, self.client, self.tools = agent, client or AgentClient(agent), list(tools)
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
        try:
            answer = await self.client.ask(
                messages, tools, seed=seed, name=name, seconds=sample.seconds
            )
        except AgentError as error:
            raise self._failure(error) from error
        self.away = 0
        sample.seconds = max(0.0, sample.seconds - answer.seconds)
        for at, message in enumerate(answer.said.turns):
            reply = Reply(message, _text(message))
            if at == 0:
                used = answer.said.tokens or NOTHING
                reply = replace(
                    reply,
                    prompt_tokens=used.input_tokens,
                    output_tokens=used.output_tokens,
                    counted=answer.said.tokens is not None,
                    latency_ms=answer.seconds * 1000,
                )
            sample.turns.append(reply)

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
