"""What verifiers ask from outside, in the process of a job: a judge model, over HTTP. Light: no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.engines import Sampling
from workers.engines.openai_engine import OpenAIEngine

JUDGING = Sampling(temperature=0.0, top_p=1.0, max_new_tokens=800, seed=0)


def clients_of(given: dict[str, Any]) -> dict[str, Any]:
    """`ask` of {"judge": {base_url, model, api_key_env?}}; {} where no judge is named. Raises SpecError, JobError."""
    judge = given.get("judge")
    return {"ask": asker(OpenAIEngine(judge))} if judge else {}


def asker(engine: OpenAIEngine) -> Callable[[list[dict]], str]:
    """One answer to a chat, from any thread. Raises JobError where the server gives none."""

    def ask(messages: list[dict]) -> str:
        ((_, outputs),) = engine.generate([messages], JUDGING, 1)
        return outputs[0].text

    return ask


def key_variables(spec: dict[str, Any]) -> list[str]:
    """Names of the environment variables with the keys that a job's spec says it needs."""
    clients = (spec.get("environment") or {}).get("clients") or {}
    return [client["api_key_env"] for client in clients.values() if client.get("api_key_env")]
