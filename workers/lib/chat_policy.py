"""A policy on any OpenAI-compatible server (vLLM, SGLang, a provider), with tools. Light: no
torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from workers.lib.chat_client import FEW_TOKENS, AsyncChatClient, ChatError
from workers.lib.clients import chat_server
from workers.lib.engines import Sampling, SoFar
from workers.lib.environments.episodes import as_assistant
from workers.lib.messages import arguments_of
from workers.lib.model_names import SHOWN as MOST_NAME
from workers.lib.model_names import Answering
from workers.lib.policies import SPENT, PolicyError, Reply, Watch
from workers.lib.prompting import as_text
from workers.lib.specs.engines import Server
from workers.lib.spending import Account, Meter, Spent, Usage, estimate, is_counted, usage_of


class ChatPolicy:
    """Close it with `aclose`, or use it with `async with`. `account`: a shared limit that replaces
    the engine's own. `watch`: stream answers, and call this while they are generated. `answering`:
    an answer of a model that it refuses ends the job. `name` is how errors refer to the server.
    Raises SpecError, ChatError.
    """

    shares_time = False

    def __init__(
        self,
        engine: Server,
        sampling: Sampling,
        account: Account | None = None,
        watch: Watch | None = None,
        *,
        answering: Answering | None = None,
        name: str = "model server",
    ) -> None:
        server = chat_server(engine, "engine", name=name)
        self.sampling = sampling
        self.client = AsyncChatClient(
            server, concurrency=engine.concurrency, patient=engine.price.is_free
        )
        account = account or Account(most_tokens=engine.most_tokens, most_usd=engine.most_usd)
        self.meter = Meter(engine.price, account=account)
        self.watch, self.answering = watch, answering
        self.as_text, self.template = engine.dialect == "text", engine.template
        # Requested if an episode has fewer tokens left.
        self.fewest = FEW_TOKENS if engine.dialect == "responses" else 1

    async def __aenter__(self) -> ChatPolicy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.client.aclose()

    def forget(self, key: int) -> None:
        """Nothing is stored between turns."""

    async def responds(self) -> bool:
        return await self.client.responds()

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply:
        turn = sum(message["role"] == "assistant" for message in messages)
        if self.as_text:
            messages, tools = as_text(messages, tools, self.template), []
        body = {
            "messages": [_readable(message) for message in messages],
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self._most_tokens(most),
            "seed": seed,
        }
        body |= {"tools": tools} if tools else {}
        asked = estimate(body["messages"], tools)
        most_cost = Usage(asked, body["max_tokens"])
        try:
            await self.meter.book(most_cost)
        except Spent as error:
            raise PolicyError(
                f"{error} The samples so far are kept.", final=True, limit=SPENT
            ) from error
        used = most_cost
        try:
            found, latency_ms = await self.client.ask(
                body, partial(self.watch, key) if self.watch else None
            )
            usage, choice = found.get("usage"), found["choices"][0]
            text = _written(choice["message"])
            used = usage_of(usage, asked=asked, text=text)
        except ChatError as error:
            used = Usage(asked if error.paid else 0, 0)
            raise PolicyError(str(error), error.final, error.limit) from error
        finally:  # also if the episode's time runs out while the server still answers
            self.meter.settle(most_cost, used)
        if self.answering and (why := self.answering.why_not(found.get("model"))):
            raise PolicyError(f"{self.client.where} {why}", final=True)
        said = as_assistant(choice["message"], 1 + turn)
        return Reply(
            message=said,
            text=said["content"] or "",
            prompt_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            counted=is_counted(usage, text),
            latency_ms=latency_ms,
            truncated=choice.get("finish_reason") == "length",
            finish_reason=_text(choice.get("finish_reason")),
            model=_text(found.get("model")),
        )

    async def sample(
        self,
        messages: list[dict],
        tools: list[dict],
        so_far: SoFar | None,
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> tuple[Reply, SoFar]:
        """Without tokens: an agent's own harness can be evaluated on it, and not be trained."""
        reply = await self.answer(messages, tools, seed=seed, key=key, most=most)
        return reply, SoFar(messages, tools, [])

    def decode(self, ids: list[int]) -> str:
        """Servers return no ids here, and no tokens are no text."""
        assert not ids
        return ""

    def count(self, messages: list[dict], tools: list[dict]) -> int:
        """An estimate."""
        return estimate(messages, tools)

    def _most_tokens(self, left: int | None) -> int:
        most = self.sampling.max_new_tokens
        return most if left is None else min(max(left, self.fewest), most)


def _text(value: Any) -> str:
    return value[:MOST_NAME] if isinstance(value, str) else ""


def _readable(message: dict) -> dict:
    """Servers fail with HTTP 500 on an earlier call whose arguments are not a JSON object, which
    would mask the agent's fault. Make them one.
    """
    calls = message.get("tool_calls") if message["role"] == "assistant" else None
    if not calls or all(arguments_of(call["function"]["arguments"]) is not None for call in calls):
        return message
    return message | {"tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: dict) -> dict:
    function = call["function"]
    readable = arguments_of(function["arguments"]) is not None
    return call if readable else call | {"function": function | {"arguments": "{}"}}


def _written(message: dict) -> str:
    """Everything that was paid for: text, reasoning and calls."""
    return "".join(
        str(message[name])
        for name in ("content", "reasoning_content", "tool_calls")
        if message.get(name)
    )
