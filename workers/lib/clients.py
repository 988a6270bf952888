"""Clients for external models that verifiers in a job use, over HTTP. Light: no torch."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from workers.lib.chat_client import ChatClient, ChatServer
from workers.lib.errors import SpecError
from workers.lib.messages import text_of
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.reward_scorer import RewardModelFolder, RewardScorer
from workers.lib.specs import REMOTE, ModelServer
from workers.lib.typed import convert

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


def clients_of(given: dict[str, Any]) -> dict[str, Any]:
    """The clients that a spec names: `ask` and `complete` for {"judge": {base_url, model,
    api_key_env?, allow_private?}}, `reward_models` for {"reward_models": [folder]}
    (`RewardModelFolder`); {} if it names none. Raises SpecError, ChatError.
    """
    folders = convert(
        given.get("reward_models") or [],
        list[RewardModelFolder],
        "environment.clients.reward_models",
    )
    found: dict[str, Any] = (
        {"reward_models": {folder.digest: RewardScorer(folder) for folder in folders}}
        if folders
        else {}
    )
    return found | _judge(given) if given.get("judge") else found


def _judge(given: dict[str, Any]) -> dict[str, Any]:
    judge = convert(given["judge"], ModelServer, "environment.clients.judge")
    droppable = ("seed", "temperature", "response_format")
    client = ChatClient(chat_server(judge, "judge", name="judge's server", droppable=droppable))
    return {"ask": partial(answer, client), "complete": client.ask}


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


def key_variables(spec: dict[str, Any]) -> list[str]:
    """Names of the environment variables with the keys that a job's spec needs, for itself or for
    its `versions` or `sides`.
    """
    parts = [spec, *spec.get("versions", []), *spec.get("sides", [])]
    return [name for part in parts for name in _key_variables(part)]


def _key_variables(spec: dict[str, Any]) -> list[str]:
    environment = spec.get("environment") or {}
    clients = [
        given for given in (environment.get("clients") or {}).values() if isinstance(given, dict)
    ]
    rollouts = (spec.get("rollouts") or {}).get("servers", [])
    named = [spec.get(name) or {} for name in ("server", "engine", "teacher_server")]
    asked = [*clients, *named, *rollouts]
    names = [server.get("api_key_env") for server in asked] + [key_variable(environment)]
    return [name for name in names if name]


def key_variable(environment: dict[str, Any]) -> str:
    """The variable with the key for a remote environment's server; "" if there is none."""
    config = environment.get("config") or {}
    return config.get("api_key_env", "") if environment.get("kind") in REMOTE else ""
