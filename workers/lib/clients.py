"""What verifiers ask from outside, in the process of a job: a judge model, over HTTP. Light: no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workers.lib.engines.openai_engine import OpenAIEngine, Sampling
from workers.lib.environments import REMOTE

JUDGING = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=800, seed=0)
VOTING_TEMPERATURE = 0.7  # at 0 every vote is the same answer again


def clients_of(given: dict[str, Any]) -> dict[str, Any]:
    """`ask` of {"judge": {base_url, model, api_key_env?}}; {} where no judge is named. Raises SpecError, JobError."""
    judge = given.get("judge")
    return {"ask": asker(OpenAIEngine(judge))} if judge else {}


def judging(sample: int) -> Sampling:
    """How a judge's answer is drawn. 0: the likeliest one; n > 0: the n-th of several, each with a seed of its own."""
    return replace(JUDGING, temperature=VOTING_TEMPERATURE, seed=sample) if sample else JUDGING


def asker(engine: OpenAIEngine) -> Callable[..., str]:
    """ask(messages, *, sample=0): one answer to a chat, from any thread. Raises JobError where the server gives none."""

    def ask(messages: list[dict], *, sample: int = 0) -> str:
        ((_, outputs),) = engine.generate([messages], judging(sample), 1)
        return outputs[0].text

    return ask


def key_variables(spec: dict[str, Any]) -> list[str]:
    """Names of the environment variables with the keys that a job's spec says it needs."""
    environment = spec.get("environment") or {}
    clients = (environment.get("clients") or {}).values()
    names = [client.get("api_key_env") for client in [*clients, spec.get("server") or {}]] + [key_variable(environment)]
    return [name for name in names if name]


def key_variable(environment: dict[str, Any]) -> str:
    """The variable with the key of a remote environment's server; "" where there is none."""
    config = environment.get("config") or {}
    return config.get("api_key_env", "") if environment.get("kind") in REMOTE else ""
