"""What environments need from outside: a project's judge to ask, and the keys of remote ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2

from apps.core import outgoing_keys
from apps.core.models import Project
from apps.environments import reward_models
from apps.environments.models import Environment
from apps.failures.judge.client import Server, ask, complete, key_of
from apps.failures.judge.rubrics import server_of
from apps.registry.servers import address_spec
from workers.lib.clients import judging, key_variable
from workers.lib.embeddings import EmbeddingClient
from workers.lib.environments import Environment as Loaded
from workers.lib.environments import load
from workers.lib.outgoing import check_url
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.environment import Clients
from workers.lib.specs.environment import Environment as Spec

JUDGED = ("judge", "score_model", "label_model")
MAX_LOADED = 128
NO_JUDGE = "No judge model is set up. Choose one under Failures → Judge, and switch it on."

_loaded: dict[tuple[int, str], Loaded] = {}


def load_for(environment: Environment) -> Loaded:
    """The environment with its project's clients. Raises SpecError. Versions never change, so they
    are kept.
    """
    check_key(environment)
    key = (environment.pk, environment.hash)
    if (loaded := _loaded.get(key)) is not None:
        return loaded
    spec = environment.as_spec()  # reads the files of a package
    if needs_judge([spec.verifier, spec.config, environment.harness]):
        return load(spec, clients=clients_of(environment.project))
    if len(_loaded) >= MAX_LOADED:
        _loaded.clear()
    loaded = _loaded[key] = load(spec)
    return loaded


def check_key(environment: Environment) -> None:
    """Whether the key that a remote environment names may go to its server, now. Raises RefusedKey,
    a SpecError.
    """
    if variable := key_variable(environment.kind, environment.config):
        outgoing_keys.key_of(variable, httpx2.URL(environment.config.get("url", "")).host)


def needs_judge(value: Any) -> bool:
    """Whether a spec names, at any depth, something that asks a model."""
    if isinstance(value, dict):
        named = (
            value.get("kind") in JUDGED
            or value.get("type") in JUDGED
            or value.get("user") == "llm"
            or value.get("evaluation_metric") == "cosine"
            or (value.get("kind") == "openai_grader" and not value.get("grader"))
        )
        return named or any(needs_judge(item) for item in value.values())
    return isinstance(value, list) and any(needs_judge(item) for item in value)


def job_spec(
    environment: Environment, prompt: dict | None = None, verifier: dict | None = None
) -> Spec:
    """The `environment` part of a job's spec (docs/jobs.md), with what it calls and scores with.

    Raises ServerError if the judge may not be called, RefusedKey if a remote server's key may not
    be sent, ArtifactError if the weights of a reward model are missing or were altered.
    """
    check_key(environment)
    verifier = verifier or environment.verifier.spec
    clients = Clients(
        judge=_judge_spec(environment, verifier),
        reward_models=reward_models.folders(environment.project, verifier),
    )
    return environment.as_spec(prompt, verifier=verifier, clients=clients)


def _judge_spec(environment: Environment, verifier: dict) -> ModelServer | None:
    """The judge that the environment calls."""
    if not needs_judge([verifier, environment.config, environment.harness]):
        return None
    server = judge_of(environment.project)
    if server is None:
        return None
    key_of(
        server, check_url(server.base_url, allow_private=server.allow_private).host
    )  # may the key go there?
    return address_spec(ModelServer, server.base_url, server.key_variable, model=server.model)


def clients_of(project: Project) -> dict[str, Any]:
    """`ask` (messages → text), `complete` (a completion's request → its response) and `embed` (the
    same of embeddings) of the project's judge.

    {} if none is enabled.
    """
    server = judge_of(project)
    if server is None:
        return {}
    return {"ask": asker(server), "complete": completer(server), "embed": embedder(server)}


def judge_of(project: Project) -> Server | None:
    rubric = project.rubrics.filter(is_on=True).first()
    return server_of(rubric) if rubric else None


def asker(server: Server) -> Callable[..., str]:
    """ask(messages, *, sample=0) → text. Touches no database, so that it may be called in another
    thread.

    Raises ServerError if no answer comes.
    """

    def judge(messages: list[dict], *, sample: int = 0) -> str:
        drawn, chat = judging(sample), [_plain(message) for message in messages]
        seed = drawn.seed if sample else None
        return complete(server, chat, temperature=drawn.temperature, seed=seed).text

    return judge


def completer(server: Server) -> Callable[[dict], dict]:
    """For graders: the whole request goes to the judge's server, which has to have the model that
    the grader names. Raises ServerError."""

    return partial(ask, server)


def embedder(server: Server) -> Callable[[dict], dict]:
    """For graders that compare embeddings: as `completer`. Raises ChatError."""

    def embed(body: dict) -> dict:
        with EmbeddingClient(replace(server, protocol="chat")) as client:
            return client.ask(body)

    return embed


def _plain(message: dict) -> dict[str, str]:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": str(message.get("role") or "user"), "content": text}
