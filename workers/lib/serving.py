"""Finds out what an inference server has and supports, without side effects on it. Light: no torch,
no Django.

Anything may answer at an address that a user entered. So each request is limited in bytes and in
seconds from start to end, redirects are not followed, and texts are truncated before they are
stored or shown.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx2

from workers.lib.addresses import PrivateNetworks
from workers.lib.chat_client import FEW_TOKENS, AsyncChatClient, ChatError, ChatServer
from workers.lib.errors import JobError
from workers.lib.keys import RefusedKey, bearer, checked_key, hidden, key_in, refusal
from workers.lib.messages import calls_in, native_calls
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client, check_url

Kind = Literal[
    "vllm", "sglang", "openai", "transformers"
]  # the last is Flywheel's own, which has vLLM's API
Dialect = Literal["native", "text", "responses"]
Health = Literal["healthy", "unlisted", "down"]
TIMEOUT_S, ANSWER_S = (
    10.0,
    30.0,
)  # seconds: for requests about facts, and for one that a model answers
PATIENCE_S, SEARCH_S = 10.0, 180.0  # until the next model is asked too, and until none is any more
MOST_REASONS = 5
MAX_BYTES = 8 * 1024 * 1024
MAX_MODELS, MAX_NAME, MAX_SAID = 500, 200, 200
LARGEST = 2**31 - 1
ADAPTER_PREFIX = "flywheel-"  # prefix of adapters that Flywheel has loaded
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASKED = [{"role": "user", "content": "Use the tool get_weather to find the weather in Paris."}]
LORA_SLOTS = re.compile(r'^vllm:lora_requests_info\{[^}\n]*max_lora="(\d{1,6})"', re.MULTILINE)


@dataclass(frozen=True)
class Address:
    """The address of a server. `key_hosts` as in `chat_client.ChatServer`."""

    base_url: str
    key_variable: str = ""
    allow_private: PrivateNetworks = False
    key_hosts: dict[str, str] | None = None


@dataclass(frozen=True)
class Listing:
    """The response of `/models`. `models` are [{id, context, parent}], at most `MAX_MODELS`;
    `parent` is an adapter's base.
    """

    health: Health
    sentence: str
    models: list[dict] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class _Answer:
    """status 0: there was no response, and `problem` says why."""

    status: int = 0
    data: bytes = b""
    problem: str = ""

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            return None


def shown(text: str) -> str:
    """A server's text made safe for storing and showing: printable, on one line, and short."""
    line = " ".join(
        "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_SAID]).split()
    )
    return line if len(line) <= MAX_SAID else f"{line[:MAX_SAID]}…"


class Server:
    """Use it with `async with`. Raises RefusedAddress, RefusedKey if the server may not be called
    at all.
    """

    def __init__(self, address: Address) -> None:
        self.url = check_url(address.base_url, allow_private=address.allow_private)
        self.key = checked_key(address.key_variable, self.url.host, address.key_hosts)
        self.base = str(self.url).rstrip("/")
        self.root = self.base.removesuffix("/v1")
        self.http = async_client(
            allow_private=address.allow_private,
            bounds=Bounds(MAX_BYTES, TIMEOUT_S),
            headers=bearer(self.key),
            timeout=TIMEOUT_S,
        )

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def ask(
        self, method: str, url: str, body: dict | None = None, seconds: float | None = None
    ) -> _Answer:
        """Never raises for what the server does. The time limit covers the whole response, so a
        server that sends slowly cannot hold on to it.
        """
        seconds = seconds or TIMEOUT_S
        try:
            async with asyncio.timeout(seconds):
                response = await self.http.request(method, url, json=body, timeout=seconds)
            return _Answer(response.status_code, response.content)
        except (TimeoutError, httpx2.TimeoutException):
            return _Answer(problem=f"No answer within {seconds:g} s.")
        except RefusedAddress as error:
            return _Answer(problem=str(error))
        except TooMuch as error:
            return _Answer(problem=f"It sent {error}.")
        except (httpx2.HTTPError, OSError, UnicodeError, ValueError) as error:
            return _Answer(
                problem=f"No connection: {self.said(str(error) or type(error).__name__)}."
            )

    def said(self, text: str) -> str:
        return shown(hidden(text, self.key))

    async def listing(self) -> Listing:
        return self.read_listing(await self.ask("GET", f"{self.base}/models"))

    def read_listing(self, answer: _Answer) -> Listing:
        if problem := self._why_down(answer):
            return Listing("down", problem)
        if answer.status in (404, 405):
            return Listing(
                "unlisted",
                f"Something answers there, but it lists no models (HTTP {answer.status} at"
                " /models). The address usually ends in /v1. If this server has no list, type the"
                " names of its models.",
            )
        found = answer.json
        rows = found.get("data") if isinstance(found, dict) else None
        if not isinstance(rows, list):
            return Listing("down", self._not_a_list(answer, found))
        models = {row["id"]: row for row in rows if _is_model(row)}
        kept = [_as_model(models[name], models) for name in sorted(models)[:MAX_MODELS]]
        left_out = len(rows) - len(kept)
        if not kept:
            unusable = (
                f"none of the {left_out:,} entries of its list has an “id” that names a model."
                if left_out
                else "its list of models is empty."
            )
            return Listing("unlisted", f"The server answers, but {unusable}", left_out=left_out)
        more = f" {left_out:,} entries of its list are not shown." if left_out else ""
        return Listing(
            "healthy", f"The server answers and lists {len(models):,} models.{more}", kept, left_out
        )

    def _why_down(self, answer: _Answer) -> str:
        """Why this answer cannot be a list of models, as a sentence; "" if it can."""
        status = answer.status
        if not status:
            return answer.problem
        if status in (401, 403):
            advice = "" if self.key else " Enter the variable that holds it."
            return f"The server {refusal(self.key)} (HTTP {status}).{advice}"
        if 300 <= status < 400:
            return f"The server redirects elsewhere (HTTP {status}). Give the final address."
        if status not in (200, 404, 405):
            return (
                f"The server answered HTTP {status}:"
                f" {self.said(answer.data.decode(errors='replace'))}"
            )
        return ""

    def _not_a_list(self, answer: _Answer, found: Any) -> str:
        if isinstance(found, dict) and found.get("error"):
            return (
                "The server answered HTTP 200 with an error:"
                f" {self.said(json.dumps(found['error']))}"
            )
        if answer.data.lstrip()[:1] == b"<":
            return (
                "The address answers with a web page, not with a list of models. The address of an"
                " API usually ends in /v1."
            )
        return (
            "The answer at /models is no list of models:"
            f" {self.said(answer.data.decode(errors='replace'))}"
        )


def _is_error(answer: _Answer) -> bool:
    """HTTP 200 with an error in the body: vLLM and gateways send `{"error": …}`, SGLang
    `{"success": false}`.
    """
    body = answer.json
    return isinstance(body, dict) and (bool(body.get("error")) or body.get("success") is False)


def _is_model(row: Any) -> bool:
    name = row.get("id") if isinstance(row, dict) else None
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name.isprintable()
        and name == name.strip()
    )


def _as_model(row: dict, models: dict[str, dict]) -> dict:
    lengths = (row.get(name) for name in ("max_model_len", "context_length", "context_window"))
    context = next(
        (value for value in lengths if type(value) is int and 0 < value <= LARGEST), None
    )
    parent = row.get("parent")
    return {
        "id": row["id"],
        "context": context,
        "parent": parent if isinstance(parent, str) and parent in models else "",
    }


# Capabilities: {name: {value, how}}. `value` is True, False, a number, or None if it could not be
# determined; `how` is a sentence.


def found(value: bool | int | None, how: str) -> dict:
    return {"value": value, "how": how}


TEST_TOKENS = 64
TEST_ANSWER = f"A test call of at most {TEST_TOKENS} tokens, with no other beside it."
NOT_ASKED = f"Not asked within {SEARCH_S:g} s."
NO_TEST_ANSWER = f"No answer within {ANSWER_S:g} s."


async def capabilities(
    server: Server, kind: Kind, listing: Listing, chat: ChatServer, model: str, dialect: Dialect
) -> dict[str, dict]:
    """Everything that four short requests reveal about one of its models, which answers chats."""
    context = next((row["context"] for row in listing.models if row["id"] == model), None)
    made = {
        "context": found(context, "As listed at /models." if context else "Not listed at /models."),
        **await _lora(server, kind, listing),
    }
    by_responses = replace(chat, model=model, protocol="responses")
    usual = by_responses if dialect == "responses" else replace(chat, model=model)
    for name, (body, read) in QUESTIONS.items():
        made[name], time_row = await _asked(usual, body, read)
        made.setdefault("answer_ms", time_row)
    made["responses"], _ = await _asked(by_responses, TOOL_QUESTION, _responses, missing=True)
    return made


async def unanswered(
    server: Server, kind: Kind, listing: Listing, problems: Iterable[str]
) -> dict[str, dict]:
    """What is known where no model answers a chat: only facts about the server, and that it was too
    slow if that is the only problem.
    """
    unknown = found(None, "Unknown, because no model answered a chat.")
    slow = set(problems) - {NOT_ASKED} == {NO_TEST_ANSWER}
    return {
        "context": unknown,
        **await _lora(server, kind, listing),
        **dict.fromkeys([*QUESTIONS, "responses"], unknown),
        "answer_ms": found(None, NO_TEST_ANSWER) if slow else unknown,
    }


async def _asked(
    server: ChatServer, body: dict, read: Callable[[dict], dict], *, missing: bool = False
) -> tuple[dict, dict]:
    """What an answer reveals, and how long it took. `missing`: since the server has the model, a
    404 means that it does not have this API.
    """
    late = found(None, NO_TEST_ANSWER)
    try:
        choice, ms = await _choice(server, body)
        return read(choice), found(round(ms), TEST_ANSWER)
    except TimeoutError:
        return late, late
    except ChatError as error:
        if error.limit == "time":
            return late, late
        if missing and error.status in (404, 405):
            row = found(False, f"Nothing answers at /responses (HTTP {error.status}).")
        else:
            row = found(False if error.limit == "refused" else None, shown(str(error)))
        return row, found(None, "The test call was not answered.")


async def _choice(server: ChatServer, body: dict) -> tuple[dict, float]:
    """The model's answer and how many milliseconds it took. Raises TimeoutError, ChatError."""
    client = AsyncChatClient(server, concurrency=1)
    try:
        async with asyncio.timeout(ANSWER_S):
            answer, ms = await client.ask(body)
        return answer["choices"][0], ms
    finally:
        await client.aclose()


async def _problem(server: ChatServer) -> str:
    """Why a model does not answer a chat; "" if it does."""
    try:
        await _choice(server, SHORT_QUESTION)
    except TimeoutError:
        return NO_TEST_ANSWER
    except ChatError as error:
        return NO_TEST_ANSWER if error.limit == "time" else shown(str(error))
    return ""


async def first_answering(
    chat: ChatServer, models: Iterable[str], progress: Callable[[str], None]
) -> tuple[str, dict[str, str]]:
    """(the first of the models that answers a chat, or ""; {model: why it did not answer}).

    The next model is asked once the one before it has failed, or has been silent for `PATIENCE_S`:
    asking all at once would make a server that loads models on demand load them all. No further
    model is asked after `SEARCH_S`.
    """
    waiting, problems = list(models), dict[str, str]()
    running: dict[asyncio.Task[str], str] = {}
    deadline = time.monotonic() + SEARCH_S
    try:
        while waiting or running:
            if waiting and time.monotonic() >= deadline:
                problems |= dict.fromkeys(waiting, NOT_ASKED)
                waiting.clear()
                continue
            if waiting:
                model = waiting.pop(0)
                progress(f"asking {model}")
                running[asyncio.create_task(_problem(replace(chat, model=model)))] = model
            done, _ = await asyncio.wait(
                running,
                timeout=PATIENCE_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in [task for task in running if task in done]:
                model = running.pop(task)
                if not (problem := task.result()):
                    return model, problems
                problems[model] = problem
        return "", problems
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _chat(model: str, problems: dict[str, str]) -> dict:
    """The capability `chat`: which model answered, and why others did not."""
    reasons = [f"{name}: {problem}" for name, problem in list(problems.items())[:MOST_REASONS]]
    more = [f"and {len(problems) - MOST_REASONS:,} more"] if len(problems) > MOST_REASONS else []
    others = " · ".join(reasons + more)
    if not model:
        return found(None, f"No model answered a short question. {others}")
    passed = f" Passed over, because they did not: {others}" if others else ""
    return found(True, f"{model} answered a short question.{passed}")


def _tools(choice: dict) -> dict:
    message = choice["message"]
    if native_calls(message):
        return found(True, "Test call: called the tool.")
    if calls_in(message):
        return found(False, "Test call: wrote the call as text. Use the style “text”.")
    return found(
        None,
        "Test call: answered in text instead of calling the tool, so the model may not support"
        " tools.",
    )


def _responses(choice: dict) -> dict:
    called = (
        "called the tool"
        if native_calls(choice["message"])
        else "answered in text instead of calling the tool"
    )
    return found(True, f"Test call: {called}.")


def _logprobs(choice: dict) -> dict:
    given = choice.get("logprobs")
    rows = given.get("content") if isinstance(given, dict) else None
    first = rows[0] if isinstance(rows, list) and rows else None
    value = first.get("logprob") if isinstance(first, dict) else None
    right = isinstance(value, int | float) and not isinstance(value, bool)
    return found(right, "The answer carries them." if right else "The answer carries none.")


def _token_ids(choice: dict) -> dict:
    ids = choice.get("token_ids")
    right = isinstance(ids, list) and bool(ids) and all(type(one) is int for one in ids)
    return found(right, "The answer carries them." if right else "The answer carries none.")


TOOL_QUESTION = {"messages": ASKED, "tools": [TOOL], "max_tokens": TEST_TOKENS, "temperature": 0}
SHORT_QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": FEW_TOKENS}
QUESTIONS: dict[str, tuple[dict, Callable[[dict], dict]]] = {
    "tools": (TOOL_QUESTION, _tools),
    "logprobs": (SHORT_QUESTION | {"logprobs": True}, _logprobs),
    "token_ids": (SHORT_QUESTION | {"return_token_ids": True}, _token_ids),
}


async def _lora(server: Server, kind: Kind, listing: Listing) -> dict[str, dict]:
    if kind == "openai":
        unknown = found(None, "Only vLLM and SGLang are asked.")
        return {"runtime_lora": unknown, "lora_slots": unknown}
    # Without a name and a path nothing is loaded: this only tests whether the route exists.
    answer = await server.ask("POST", lora_url(server.base, kind, "load"), {})
    if answer.status in (400, 409, 422, 500):
        runtime = found(True, "The route for loading adapters is there.")
    elif answer.status in (404, 405):
        runtime = found(False, f"No route for loading adapters (HTTP {answer.status}).")
    else:
        runtime = found(
            None, answer.problem or f"HTTP {answer.status} at the route for loading adapters."
        )
    return {"runtime_lora": runtime, "lora_slots": await _slots(server, kind, listing)}


async def _slots(server: Server, kind: Kind, listing: Listing) -> dict:
    if kind == "sglang":
        return found(None, "SGLang does not say.")
    answer = await server.ask("GET", f"{server.root}/metrics")
    named = (
        LORA_SLOTS.search(answer.data.decode(errors="replace")) if answer.status == 200 else None
    )
    if named is None:
        return found(None, "Its /metrics do not say, or not before an adapter has been asked.")
    most, loaded = int(named[1]), sum(bool(row["parent"]) for row in listing.models)
    free = found(
        max(0, most - loaded), f"Of {most} by its /metrics; adapters listed as loaded: {loaded}."
    )
    return free | {"most": most}


def lora_url(base: str, kind: Kind, what: Literal["load", "unload"]) -> str:
    """vLLM serves it under /v1, SGLang at the root."""
    base = base.rstrip("/")
    return f"{base.removesuffix('/v1') if kind == 'sglang' else base}/{what}_lora_adapter"


async def _with_server(address: Address, asked: Callable[[Server], Awaitable[Any]]) -> Any:
    async with Server(address) as server:
        return await asked(server)


def list_models(address: Address) -> Listing:
    """The server's current list of models. Never raises for what the server does."""
    try:
        return asyncio.run(_with_server(address, lambda server: server.listing()))
    except (RefusedAddress, RefusedKey) as error:
        return Listing("down", str(error))


def adapter_folders(address: Address) -> set[str] | None:
    """The folders of the adapters that a vLLM or our own server has loaded (`root`); None if it
    does not report them.
    """

    async def asked(server: Server) -> set[str] | None:
        answer = await server.ask("GET", f"{server.base}/models")
        found = answer.json if answer.status == 200 else None
        rows = found.get("data") if isinstance(found, dict) else None
        if not isinstance(rows, list):
            return None
        return {str(row.get("root")) for row in rows if _is_model(row) and row.get("parent")}

    try:
        return asyncio.run(_with_server(address, asked))
    except (RefusedAddress, RefusedKey):
        return None


def probe(
    address: Address,
    kind: Kind,
    model: str,
    progress: Callable[[str], None],
    dialect: Dialect = "native",
    registered: Sequence[str] = (),
) -> tuple[Listing, str, dict[str, dict]]:
    """(the list of models, the model that answered a chat, its capabilities). Only `model` is
    asked, if it is not ""; otherwise the registered ones and then those of the list, until one
    answers. If none does, its name is "" and the capabilities of models are unknown.

    Raises RefusedAddress, RefusedKey.
    """

    async def asked(server: Server) -> tuple[Listing, str, dict[str, dict]]:
        listing = await server.listing()
        listed = [row["id"] for row in listing.models if not row["parent"]]
        candidates = [model] if model else list(dict.fromkeys([*registered, *listed]))
        if listing.health == "down" or not candidates:
            return listing, "", {}
        chat = ChatServer(
            address.base_url.rstrip("/"),
            "",
            key_variable=address.key_variable,
            timeout_s=ANSWER_S,
            tries=1,
            allow_private=address.allow_private,
            key_hosts=address.key_hosts,
            name="server",
            droppable=("temperature",),
        )
        usual = replace(chat, protocol="responses") if dialect == "responses" else chat
        chosen, problems = await first_answering(usual, candidates, progress)
        made = (
            await capabilities(server, kind, listing, chat, chosen, dialect)
            if chosen
            else await unanswered(server, kind, listing, problems.values())
        )
        return listing, chosen, {"chat": _chat(chosen, problems)} | made

    return asyncio.run(_with_server(address, asked))


# Adapters at run time

LOAD_S = 120.0


class Adapters:
    """The adapters of one server. Use it under a lock that is shared with everybody who loads
    adapters there.
    """

    def __init__(self, address: Address, kind: Kind) -> None:
        self.address, self.kind = address, kind

    def names(self) -> list[str]:
        """Raises JobError if the server does not answer."""
        listing = list_models(self.address)
        if listing.health == "down":
            raise JobError(f"The server at {self.address.base_url} is down. {listing.sentence}")
        return [
            row["id"]
            for row in listing.models
            if row["parent"] or row["id"].startswith(ADAPTER_PREFIX)
        ]

    def load(self, name: str, path: str) -> None:
        """Raises JobError."""
        answer, said = self._post("load", {"lora_name": name, "lora_path": path})
        if (answer.status != 200 or _is_error(answer)) and "already" not in said:
            why = answer.problem or f"HTTP {answer.status}: {said}"
            raise JobError(
                f"The server at {self.address.base_url} did not load the adapter {path}."
                f" {why.rstrip('.')}."
            )

    def unload(self, name: str) -> bool:
        """Returns False if the server did not unload it."""
        answer, _ = self._post("unload", {"lora_name": name})
        return answer.status in (200, 404)

    def _post(self, what: Literal["load", "unload"], body: dict) -> tuple[_Answer, str]:
        async def asked(there: Server) -> _Answer:
            return await there.ask("POST", lora_url(there.base, self.kind, what), body, LOAD_S)

        try:
            answer = asyncio.run(_with_server(self.address, asked))
        except (RefusedAddress, RefusedKey) as error:
            raise JobError(str(error)) from error
        key = key_in(self.address.key_variable)
        return answer, shown(hidden(answer.data.decode(errors="replace"), key))
