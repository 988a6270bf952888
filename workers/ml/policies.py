"""The policy that a spec names. Loads torch only for an engine in this process."""

from __future__ import annotations

from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import Environment
from workers.lib.policies import EnginePolicy, Policy
from workers.lib.spec import SpecError

AT_ONCE = 64
BATCHES = 16  # that wait for an engine in this process: enough to put answers of about the same length together


def open_policy(engine: dict, model: dict, sampling: Sampling) -> Policy:
    """From the `engine` and `model` parts of a spec. Raises SpecError, or JobError for a model that does not load."""
    kind = engine.get("kind", "transformers")
    if kind == "openai":
        return ChatPolicy(engine, sampling)
    if kind == "transformers":
        from workers.ml.transformers_engine import TransformersEngine

        return EnginePolicy(TransformersEngine.load(engine, model), sampling)
    raise SpecError(f"There is no engine “{kind}”. Use transformers or openai.")


def episodes_at_once(engine: dict, environment: Environment) -> int:
    """How many are open at a time. Of one step each, they hold nothing outside while they wait for a batch."""
    waiting = engine.get("kind", "transformers") == "transformers" and not environment.multi_turn
    return engine.get("concurrency", BATCHES * engine.get("batch_size", AT_ONCE) if waiting else AT_ONCE)
