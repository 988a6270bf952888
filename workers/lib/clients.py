"""Clients for external models that verifiers in a job use, over HTTP. Light: no torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from workers.lib.chat_client import ChatClient, ChatServer
from workers.lib.embeddings import EmbeddingClient
from workers.lib.errors import SpecError
from workers.lib.messages import text_of
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.reward_scorer import RewardScorer
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import REMOTE, Clients, Environment

MAX_OUTPUT = 800  # tokens per answer
VOTING_TEMPERATURE = 0.7  # at 0, every vote would be the same answer
TRIES = 6


class Drawn(NamedTuple):
    """The sampling settings of a judge's answer."""

    temperature: float
    seed: int


def chat_server(given: ModelServer, path: str, **options: Any) -> ChatServer:
    """The server that a part of a job's spec names. Raises SpecError.

    This process was only given the variable that the spec names, after it had been checked.
    """
    try:
        # Whether this installation allows it is checked with each request.
        check_url(given.base_url, allow_private=True)
    except RefusedAddress as error:
        raise SpecError(f"The spec's “{path}.base_url”: {error}") from error
    return ChatServer(
        base_url=given.base_url.rstrip("/"),
        model=given.model,
        key_variable=given.api_key_env or "",
        timeout_s=given.timeout_s,
        tries=TRIES,
        allow_private=given.allow_private,
        protocol="responses" if given.dialect == "responses" else "chat",
        **options,
    )


def clients_of(spec: Clients) -> dict[str, Any]:
    """The clients that a spec names: `ask`, `complete` and `embed` of a judge's server,
    `reward_models` by digest; {} if it names none. Raises SpecError, ChatError.
    """
    clients: dict[str, Any] = {}
    if spec.reward_models:
        clients["reward_models"] = {
            folder.digest: RewardScorer(folder) for folder in spec.reward_models
        }
    if spec.judge:
        droppable = ("seed", "temperature", "response_format")
        server = chat_server(spec.judge, "judge", name="judge's server", droppable=droppable)
        client = ChatClient(server)
        embedding = EmbeddingClient(replace(server, protocol="chat"))
        clients |= {
            "ask": partial(answer, client),
            "complete": client.ask,
            "embed": embedding.ask,
        }
    return clients


def judging(sample: int) -> Drawn:
    """0: the likeliest answer; n > 0: the n-th of several votes, each with its own seed."""
    return Drawn(VOTING_TEMPERATURE, sample) if sample else Drawn(0.0, 0)


def answer(client: ChatClient, messages: list[dict], *, sample: int = 0) -> str:
    """One answer to a chat; may be called from any thread. Raises ChatError if the server gives
    none.
    """
    drawn = judging(sample)
    body = {
        "messages": messages,
        "temperature": drawn.temperature,
        "max_tokens": MAX_OUTPUT,
        "seed": drawn.seed,
    }
    return text_of(client.ask(body)["choices"][0]["message"])


def key_variables(spec: Any) -> list[str]:
    """Names of the environment variables with the keys that a job's spec needs: of its servers and
    remote environments, at any depth. Only its own Structs are read, never the JSON in them: a task
    names no variable of this process.
    """
    if isinstance(spec, list | tuple):
        return [name for item in spec for name in key_variables(item)]
    if not isinstance(spec, Struct):
        return []
    own = key_variable(spec.kind, spec.config) if isinstance(spec, Environment) else ""
    names = [getattr(spec, "api_key_env", ""), own]
    parts = (getattr(spec, name) for name in spec.__struct_fields__)
    return [name for name in names if name] + key_variables(list(parts))


def key_variable(kind: str, config: dict[str, Any]) -> str:
    """The variable with the key for a remote environment's server; "" if there is none."""
    return config.get("api_key_env", "") if kind in REMOTE else ""
