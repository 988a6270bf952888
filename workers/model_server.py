"""Serves a model of this machine through vLLM's HTTP API, for machines without vLLM. `python -m
workers.model_server FOLDER …` (docs/servers.md).

It uses the engine of in-process evaluations (workers.ml.transformers_engine), loads adapters at run
time, and batches waiting requests (workers.ml.batches). It starts listening once the model is
loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from workers.lib.answer_text import CallText, StopText, TokenText, message_of
from workers.lib.asgi import EVENTS, Gone, Send, answer, body_of, events, left
from workers.lib.engines import Sampling
from workers.lib.errors import sentence
from workers.lib.garbage import is_imported
from workers.lib.messages_over_chat import (
    MessagesRequest,
    MessagesWriter,
    counted,
    error_body,
    late_instructions,
    model_list,
    prompt_too_long,
    read_count,
    read_messages,
)
from workers.lib.openai_requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Request,
    prompts_of,
    read_chat,
    read_completion,
    too_long,
)
from workers.lib.responses_over_chat import ResponsesRequest, ResponseWriter, read_responses

if TYPE_CHECKING:
    from workers.ml.batches import Ask, Batches, Token
    from workers.ml.hot_adapters import HotAdapters, Loaded
    from workers.ml.transformers_engine import TransformersEngine

MESSAGES = "/v1/messages"
RETRY_AFTER_S = 2
log = logging.getLogger("model_server")


@dataclass
class Choice:
    """One answer being generated. `text` and `tokens` are its content so far, without a stop string
    and anything after it.
    """

    index: int
    prompt: list[int]
    ask: Ask
    reader: TokenText
    stops: StopText
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    stop_reason: str | int | None = None

    def add(self, token: Token, eos: Sequence[int]) -> str:
        """Add a token; return the text that can now be shown."""
        self.tokens.append(token)
        new = self.stops.add(self.reader.add(token.id))
        if token.end and self.stops.stopped is None:
            new += self.stops.add(self.reader.rest())
        if self.stops.stopped is not None:
            self.finish, self.stop_reason, self.ask.cancelled = "stop", self.stops.stopped, True
        elif token.end:
            new += self.stops.rest()
            self.finish = token.end
            self.stop_reason = token.id if token.end == "stop" and token.id not in eos else None
        self.text += new
        return new


class Served:
    """The model, its adapters by name, and the requests being answered."""

    def __init__(
        self, engine: TransformersEngine, name: str, *, context: int, slots: int, most_rank: int
    ) -> None:
        from workers.ml.batches import Batches
        from workers.ml.hot_adapters import HotAdapters

        self.engine, self.name, self.context, self.slots = engine, name, context, slots
        self.hot: HotAdapters = HotAdapters(engine.model, most_rank)
        self.adapters: dict[str, Loaded] = {}
        self.batches: Batches = Batches(engine, self.hot, self._deliver)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loading = asyncio.Lock()
        self.writer = ThreadPoolExecutor(
            1, "prompts"
        )  # formatting and tokenizing a long prompt takes long
        self.vocabulary = engine.model.get_input_embeddings().weight.shape[0]
        self.created = int(time.time())

    def _deliver(self, found: list[tuple[Ask, Token | Exception]]) -> None:
        def sink() -> None:
            for ask, token in found:
                ask.sink(token)

        assert self.loop is not None
        self.loop.call_soon_threadsafe(sink)

    # Information

    def health(self) -> dict[str, Any]:
        if not self.batches.thread.is_alive():
            raise ApiError(503, "The engine has ended.")
        return {}

    def models(self) -> dict[str, Any]:
        common = {
            "object": "model",
            "created": self.created,
            "owned_by": "flywheel",
            "max_model_len": self.context,
        }
        rows = [{"id": self.name, "root": self.name, "parent": None} | common]
        rows += [
            {"id": one.name, "root": one.path, "parent": self.name} | common
            for one in self.adapters.values()
        ]
        return model_list(rows)

    def metrics(self) -> bytes:
        """Those of vLLM's metrics that Flywheel reads."""
        names = ",".join(self.adapters)
        rows = [
            f'vllm:num_requests_running{{model_name="{self.name}"}} {self.batches.running}',
            f'vllm:num_requests_waiting{{model_name="{self.name}"}} {len(self.batches.waiting)}',
        ]
        if self.slots:
            rows.append(
                f'vllm:lora_requests_info{{max_lora="{self.slots}",running_lora_adapters="{names}"}} 1'  # noqa: E501
            )
        return ("\n".join(rows) + "\n").encode()

    # Adapters

    async def load(self, body: dict[str, Any]) -> str:
        name, path = body.get("lora_name"), body.get("lora_path")
        if not (name and path and isinstance(name, str) and isinstance(path, str)):
            raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if not self.slots:
            raise ApiError(400, "This server has no LoRA slots.")
        from workers.ml.hot_adapters import MOST, Refused

        async with self.loading:
            if name in self.adapters or name == self.name:
                raise ApiError(400, f"The lora adapter '{name}' has already been loaded.")
            if len(self.adapters) >= MOST:
                raise ApiError(
                    400, f"{MOST} adapters are loaded, which is the most. Unload one first."
                )
            try:
                loaded = await asyncio.wrap_future(
                    self.batches.call(partial(self.hot.load, name, path))
                )
            except Refused as error:
                raise ApiError(error.status, str(error)) from error
            self.adapters[name] = loaded
        log.info("loaded %s from %s", name, path)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, body: dict[str, Any]) -> str:
        """Answers that are being generated with the adapter are finished first."""
        name = body.get("lora_name")
        loaded = self.adapters.pop(name, None) if isinstance(name, str) else None
        if loaded is None:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.")
        self.batches.retire(loaded)
        log.info("unloaded %s", name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    def adapter(self, model: str) -> Loaded | None:
        if model in self.adapters:
            return self.adapters[model]
        if model in ("", self.name):
            return None
        raise ApiError(404, f"The model `{model}` does not exist.", "model")

    # Answers

    def choices(
        self, asked: Request, prompts: list[list[int]], wanted: int | None, likeliest: int
    ) -> tuple[list[Choice], asyncio.Queue[tuple[Choice, Token | Exception]]]:
        """Submit the request. Raises ApiError."""
        from workers.ml.batches import Ask, Busy, any_seed

        adapter, queue = self.adapter(asked.model), asyncio.Queue[Any]()
        if any(len(ids) + (wanted or 1) > self.context for ids in prompts):
            raise too_long(max(map(len, prompts)), wanted, self.context)
        temperature = 1.0 if asked.temperature is None else asked.temperature
        stop_ids = frozenset(self.engine.stop_ids) | frozenset(asked.stop_token_ids or ())
        seed, count, found = (
            any_seed() if asked.seed is None else asked.seed,
            asked.n or 1,
            list[Choice](),
        )
        for index in range(len(prompts) * count):
            ids = prompts[index // count]
            sampling = Sampling(temperature, asked.top_p or 1.0, wanted or self.context - len(ids))
            ask = Ask(
                ids,
                adapter,
                sampling,
                (seed + index % count) % 2**63,
                stop_ids,
                lambda token: None,
                likeliest,
            )
            choice = Choice(index, ids, ask, TokenText(self.decoded), StopText(asked.stops))
            ask.sink = lambda token, choice=choice: queue.put_nowait((choice, token))
            found.append(choice)
        try:
            self.batches.submit([choice.ask for choice in found])
        except Busy as error:
            said = "Too many requests are waiting; try again later."
            raise ApiError(503, said, retry_after_s=RETRY_AFTER_S) from error
        return found, queue

    def decoded(self, ids: list[int]) -> str:
        return self.engine.tokenizer.decode(ids, skip_special_tokens=True)

    def token(self, id: int) -> str:
        return self.engine.tokenizer.decode([id])

    async def in_writer(self, work: Callable[[], list[int]]) -> list[int]:
        """Run work in the thread for prompts. Raises ApiError for messages that the chat template
        rejects.
        """
        try:
            ids = await asyncio.get_running_loop().run_in_executor(self.writer, work)
        except (
            TemplateError,
            UnicodeError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ApiError(
                400, f"The messages cannot be written for this model: {str(error)[:300]}"
            ) from error
        if not ids:
            raise ApiError(400, "The prompt is empty.")
        return ids


async def written(
    choices: list[Choice],
    queue: asyncio.Queue[tuple[Choice, Token | Exception]],
    gone: asyncio.Task[None],
    eos: Sequence[int],
) -> AsyncIterator[tuple[Choice, Token, str]]:
    """Yield (choice, token, new text) until all choices are finished. Raises Gone or ApiError;
    unfinished choices are then dropped.
    """
    left = len(choices)
    try:
        while left:
            getting = asyncio.ensure_future(queue.get())
            await asyncio.wait({getting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                getting.cancel()
                raise Gone
            choice, token = getting.result()
            if choice.finish:
                continue  # generated before the stop string was noticed
            if isinstance(token, Exception):
                raise ApiError(500, sentence(token)) from token
            text = choice.add(token, eos)
            left -= bool(choice.finish)
            yield choice, token, text
    finally:
        for choice in choices:
            choice.ask.cancelled = True


class Shape(ABC):
    """The common part of both kinds of completion: the frame around choices, whole or as a
    stream.
    """

    kind, prefix, chunk = "", "", ""
    last = b"data: [DONE]\n\n"
    asked: Request
    about: dict[str, Any]  # id, created, model

    def begin(self, about: dict[str, Any]) -> None:
        self.about = about

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        made = {"choices": [self.whole(choice) for choice in choices], "usage": usage_of(choices)}
        return self.about | {"object": self.kind} | made | self.top(choices)

    def rows(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows that a stream sends for new chunks of choices."""
        return [self.about | {"object": self.chunk, "choices": [chunk]} for chunk in chunks]

    def closing(self, choices: list[Choice]) -> list[dict[str, Any]]:
        if not self.asked.with_usage:
            return []
        return [self.about | {"object": self.chunk, "choices": [], "usage": usage_of(choices)}]

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return [error.body()]

    @abstractmethod
    def whole(self, choice: Choice) -> dict[str, Any]: ...

    def top(self, choices: list[Choice]) -> dict[str, Any]:
        return {}


class Chat(Shape):
    """The shape of chat completions."""

    kind, prefix, chunk = "chat.completion", "chatcmpl-", "chat.completion.chunk"

    def __init__(self, served: Served, asked: ChatRequest) -> None:
        self.served, self.asked = served, asked
        self.tools = (asked.tools or []) if asked.tool_choice != "none" else []
        self.parallel = asked.parallel_tool_calls is not False
        self.calls: dict[int, CallText] = {}
        self.likeliest = (asked.top_logprobs or 0) if asked.logprobs else 0
        self.wanted = asked.max_completion_tokens or asked.max_tokens

    async def prompts(self) -> list[list[int]]:
        work = partial(self.served.engine.prompt_ids, self.asked.messages, self.tools)
        return [await self.served.in_writer(work)]

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None
        return {
            "content": [
                self._row(token.id, token.logprob)
                | {"top_logprobs": [self._row(*one) for one in token.likeliest]}
                for token in tokens
            ]
        }

    def _row(self, id: int, logprob: float) -> dict[str, Any]:
        text = self.served.token(id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def whole(self, choice: Choice) -> dict[str, Any]:
        message = message_of(choice.text, bool(self.tools), self.parallel)
        finish = (
            "tool_calls" if message.get("tool_calls") and choice.finish == "stop" else choice.finish
        )
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self.logprobs(choice.tokens),
            "finish_reason": finish,
            "stop_reason": choice.stop_reason,
        } | self._ids(choice.tokens)

    def _ids(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"token_ids": [token.id for token in tokens]} if self.asked.return_token_ids else {}

    def top(self, choices: list[Choice]) -> dict[str, Any]:
        return {"prompt_token_ids": choices[0].prompt} if self.asked.return_token_ids else {}

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        return [self._chunk(choice, {"role": "assistant", "content": ""})]

    def piece(self, choice: Choice, token: Token, text: str) -> list[dict[str, Any]]:
        if self.tools:
            text = self.calls.setdefault(choice.index, CallText()).add(text)
        more = {"logprobs": self.logprobs([token])} | self._ids([token])
        wanted = text or self.asked.logprobs or self.asked.return_token_ids
        return [self._chunk(choice, {"content": text}, **more)] if wanted else []

    def ending(self, choice: Choice) -> list[dict[str, Any]]:
        words, calls = self.calls[choice.index].rest(self.parallel) if self.tools else ("", [])
        found = [self._chunk(choice, {"content": words})] if words else []
        if calls:
            numbered = [{"index": place} | call for place, call in enumerate(calls)]
            found.append(self._chunk(choice, {"tool_calls": numbered}))
        finish = "tool_calls" if calls and choice.finish == "stop" else choice.finish
        return [
            *found,
            self._chunk(choice, {}, finish_reason=finish, stop_reason=choice.stop_reason),
        ]

    def _chunk(self, choice: Choice, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
        } | more


class Responses(Chat):
    """The shape of the Responses API, built from the same chunks."""

    prefix, last = "resp_", b""
    writer: ResponseWriter

    def __init__(self, served: Served, given: ResponsesRequest) -> None:
        super().__init__(served, given.chat())
        self.given = given

    def begin(self, about: dict[str, Any]) -> None:
        self.writer = ResponseWriter(self.given, **about)

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        return self.writer.whole(self.whole(choices[0]), usage_of(choices))

    def rows(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for chunk in chunks for event in self.writer.add(chunk)]

    def closing(self, choices: list[Choice]) -> list[dict[str, Any]]:
        return self.writer.end(usage_of(choices))

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return self.writer.fail(str(error))


class Messages(Chat):
    """The shape of Anthropic's Messages API, built from the same chunks."""

    prefix, last = "msg_", b""
    writer: MessagesWriter

    def __init__(self, served: Served, given: MessagesRequest) -> None:
        super().__init__(served, given.chat())
        self.given, self.prompt_tokens = given, 0

    async def prompts(self) -> list[list[int]]:
        """An answer may also end where the context does, as at Anthropic: its clients ask for more
        tokens than small models have.
        """
        ids = await self.served.in_writer(self._prompt)
        room, self.prompt_tokens = self.served.context - len(ids), len(ids)
        if room < 1:
            raise prompt_too_long(len(ids), self.served.context)
        self.wanted = min(self.given.max_tokens, room)
        return [ids]

    def _prompt(self) -> list[int]:
        engine, messages = self.served.engine, self.asked.messages
        if any(message["role"] == "system" for message in messages[1:]):
            problem = engine.writer.problem(messages, self.tools)
            if "system" in problem.lower():
                raise late_instructions(problem)
        return engine.prompt_ids(messages, self.tools)

    def begin(self, about: dict[str, Any]) -> None:
        self.writer = MessagesWriter(
            self.given, id=about["id"], model=about["model"], prompt_tokens=self.prompt_tokens
        )

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        return self.writer.whole(self.whole(choices[0]), usage_of(choices))

    def rows(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for chunk in chunks for event in self.writer.add(chunk)]

    def closing(self, choices: list[Choice]) -> list[dict[str, Any]]:
        return self.writer.end(usage_of(choices))

    def failed(self, error: ApiError) -> list[dict[str, Any]]:
        return [error_body(error)]


class Completion(Shape):
    """The shape of completions, token in and token out."""

    kind, prefix, chunk = "text_completion", "cmpl-", "text_completion"

    def __init__(self, served: Served, asked: CompletionRequest) -> None:
        self.served, self.asked = served, asked
        self.likeliest, self.wanted = asked.logprobs or 0, asked.max_tokens or 16
        # By prompt: log-probabilities of its tokens except the first, set by its first choice.
        self.scores: dict[int, list[float]] = {}
        if asked.prompt_logprobs is not None and asked.stream:
            raise ApiError(400, "prompt_logprobs cannot be streamed.", "prompt_logprobs")

    async def prompts(self) -> list[list[int]]:
        special = self.asked.add_special_tokens is not False
        found = []
        for prompt in prompts_of(self.asked):
            if isinstance(prompt, str):
                text = partial(self.served.engine.tokenizer, prompt, add_special_tokens=special)
                found.append(await self.served.in_writer(lambda text=text: text()["input_ids"]))
                continue
            if not all(0 <= id < self.served.vocabulary for id in prompt):
                raise ApiError(
                    400, f"Token ids must be from 0 to {self.served.vocabulary - 1}.", "prompt"
                )
            found.append(prompt)
        if self.asked.prompt_logprobs is not None:
            await self._score(found)
        return found

    async def _score(self, prompts: list[list[int]]) -> None:
        if any(len(ids) + self.wanted > self.served.context for ids in prompts):
            raise too_long(max(map(len, prompts)), self.wanted, self.served.context)
        adapter, count = self.served.adapter(self.asked.model), self.asked.n or 1
        work = partial(self.served.batches.scores, adapter, prompts)
        scores = await asyncio.wrap_future(self.served.batches.call(work))
        self.scores = {
            place * count + more: row for place, row in enumerate(scores) for more in range(count)
        }

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self.logprobs(choice.tokens),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "prompt_logprobs": self._of_prompt(choice),
        } | self._ids(choice, choice.tokens)

    def _of_prompt(self, choice: Choice) -> list[dict[str, Any] | None] | None:
        if (scores := self.scores.get(choice.index)) is None:
            return None
        rows = zip(choice.prompt[1:], scores, strict=True)
        return [
            None,
            *(
                {str(id): {"logprob": value, "decoded_token": self.served.token(id)}}
                for id, value in rows
            ),
        ]

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if self.asked.logprobs is None:
            return None
        texts = [self.served.token(token.id) for token in tokens]
        likeliest = [
            {text: token.logprob} | {self.served.token(id): value for id, value in token.likeliest}
            for text, token in zip(texts, tokens, strict=True)
        ]
        return {
            "text_offset": _offsets(texts),
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": texts,
            "top_logprobs": likeliest,
        }

    def _ids(self, choice: Choice, tokens: Sequence[Token]) -> dict[str, Any]:
        if not self.asked.return_token_ids:
            return {}
        return {"token_ids": [token.id for token in tokens], "prompt_token_ids": choice.prompt}

    def opening(self, choice: Choice) -> list[dict[str, Any]]:
        return []

    def piece(self, choice: Choice, token: Token, text: str) -> list[dict[str, Any]]:
        wanted = text or self.asked.logprobs is not None or self.asked.return_token_ids
        return (
            [
                self._chunk(
                    choice, text, logprobs=self.logprobs([token]), **self._ids(choice, [token])
                )
            ]
            if wanted
            else []
        )

    def ending(self, choice: Choice) -> list[dict[str, Any]]:
        return [
            self._chunk(choice, "", finish_reason=choice.finish, stop_reason=choice.stop_reason)
        ]

    def _chunk(self, choice: Choice, text: str, **more: Any) -> dict[str, Any]:
        return {"index": choice.index, "text": text, "logprobs": None, "finish_reason": None} | more


def _offsets(texts: list[str]) -> list[int]:
    found, at = [], 0
    for text in texts:
        found.append(at)
        at += len(text)
    return found


def usage_of(choices: list[Choice]) -> dict[str, int]:
    asked = sum(
        len(ids) for ids in {id(choice.prompt): choice.prompt for choice in choices}.values()
    )
    answered = sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


class App:
    """The ASGI application."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.routes: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/load_lora_adapter"): partial(self.change, served.load),
            ("POST", "/v1/unload_lora_adapter"): partial(self.change, served.unload),
            ("POST", "/v1/chat/completions"): partial(
                self.complete, lambda data: Chat(served, read_chat(data))
            ),
            ("POST", "/v1/completions"): partial(
                self.complete, lambda data: Completion(served, read_completion(data))
            ),
            ("POST", "/v1/responses"): partial(
                self.complete, lambda data: Responses(served, read_responses(data))
            ),
            ("POST", MESSAGES): partial(
                self.complete, lambda data: Messages(served, read_messages(data))
            ),
            ("POST", f"{MESSAGES}/count_tokens"): self.count,
        }

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[dict]], send: Send
    ) -> None:
        self.served.loop = asyncio.get_running_loop()
        gone: asyncio.Task[None] | None = None
        try:
            route = self.routes.get((scope["method"], scope["path"]))
            if route is None:
                known = any(path == scope["path"] for _, path in self.routes)
                raise ApiError(405, "Method Not Allowed") if known else ApiError(404, "Not Found")
            data = await body_of(receive)
            gone = asyncio.create_task(left(receive))
            await route(data, gone, send)
        except ApiError as error:
            await refuse(send, scope["path"], error)
        except Gone:
            log.info("%s: the client has left", scope["path"])
        except Exception as error:
            log.exception("%s failed", scope["path"])
            await refuse(send, scope["path"], ApiError(500, sentence(error)))
        finally:
            if gone is not None:
                gone.cancel()

    async def health(self, data: bytes, gone: asyncio.Task[None], send: Send) -> None:
        await answer(send, 200, self.served.health())

    async def models(self, data: bytes, gone: asyncio.Task[None], send: Send) -> None:
        await answer(send, 200, self.served.models())

    async def metrics(self, data: bytes, gone: asyncio.Task[None], send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/plain")],
            }
        )
        await send({"type": "http.response.body", "body": self.served.metrics()})

    async def change(
        self,
        work: Callable[[dict], Awaitable[str]],
        data: bytes,
        gone: asyncio.Task[None],
        send: Send,
    ) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, "The body is not JSON.") from error
        await answer(send, 200, await work(body if isinstance(body, dict) else {}))

    async def count(self, data: bytes, gone: asyncio.Task[None], send: Send) -> None:
        asked = read_count(data)
        self.served.adapter(asked.model)
        (ids,) = await Chat(self.served, asked.chat()).prompts()
        await answer(send, 200, counted(len(ids)))

    async def complete(
        self,
        read: Callable[[bytes], Chat | Completion],
        data: bytes,
        gone: asyncio.Task[None],
        send: Send,
    ) -> None:
        shape = read(data)
        asked, served = shape.asked, self.served
        served.adapter(asked.model)
        prompts = await shape.prompts()
        choices, queue = served.choices(asked, prompts, shape.wanted, shape.likeliest)
        tokens = written(choices, queue, gone, served.engine.stop_ids)
        shape.begin(
            {
                "id": f"{shape.prefix}{uuid.uuid4().hex[:16]}",
                "created": int(time.time()),
                "model": asked.model or served.name,
            }
        )
        async with contextlib.aclosing(tokens):
            if asked.stream:
                await self.stream(shape, choices, tokens, send)
                return
            async for _ in tokens:
                pass
        await answer(send, 200, shape.answer(choices))

    async def stream(
        self,
        shape: Chat | Completion,
        choices: list[Choice],
        tokens: AsyncIterator[tuple[Choice, Token, str]],
        send: Send,
    ) -> None:
        """Send the answer as a stream. The headers are sent with the first token, so that an
        earlier error still gets its HTTP status.
        """
        begun = False
        try:
            async for choice, token, text in tokens:
                chunks = list[dict[str, Any]]()
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
                    chunks = [chunk for one in choices for chunk in shape.opening(one)]
                chunks += shape.piece(choice, token, text) + (
                    shape.ending(choice) if choice.finish else []
                )
                await events(send, shape.rows(chunks))
        except ApiError as error:
            if not begun:
                raise
            await events(send, shape.failed(error))
        else:
            await events(send, shape.closing(choices))
        await send({"type": "http.response.body", "body": shape.last})


async def refuse(send: Send, path: str, error: ApiError) -> None:
    body = error_body(error) if path.startswith(MESSAGES) else error.body()
    await answer(send, error.status, body, retry_after_s=error.retry_after_s)


def load(given: argparse.Namespace) -> Served:
    from workers.lib.specs.engines import InProcess, Model
    from workers.ml.transformers_engine import TransformersEngine

    spec = InProcess(dtype=given.dtype, batch_size=given.max_num_seqs)
    engine = TransformersEngine.load(spec, Model(base=given.folder))
    longest = getattr(engine.model.config, "max_position_embeddings", 4096)
    context = min(given.max_model_len or longest, longest)
    return Served(
        engine,
        given.served_model_name,
        context=context,
        slots=given.max_loras,
        most_rank=given.max_lora_rank,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.model_server", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-model-len", type=int, default=0)
    parser.add_argument("--max-loras", type=int, default=0)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    given = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(levelname)s %(asctime)s %(message)s")
    from granian.constants import HTTPModes, Interfaces
    from granian.server.embed import Server

    served = load(given)
    is_imported()
    log.info(
        "%s is loaded: %d tokens of context, %d LoRA slots",
        given.served_model_name,
        served.context,
        served.slots,
    )
    server = Server(
        App(served),
        given.host,
        given.port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
    asyncio.run(server.serve())  # SIGTERM ends it immediately: there is nothing to save


if __name__ == "__main__":
    main()
