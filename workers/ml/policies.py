"""The policy that a spec names. Loads torch only for an engine in this process."""

from __future__ import annotations

from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import Environment
from workers.lib.policies import EnginePolicy, Policy
from workers.lib.specs import Engine, Model, Server

AT_ONCE = 64
BATCHES = 16  # that wait for an engine in this process: enough to put answers of about the same length together


def open_policy(engine: Engine, model: Model, sampling: Sampling) -> Policy:
    """From the `engine` and `model` parts of a spec. Raises SpecError, or JobError for a model that does not load."""
    if isinstance(engine, Server):
        return ChatPolicy(engine, sampling)
    from workers.ml.transformers_engine import TransformersEngine

    return EnginePolicy(TransformersEngine.load(engine, model), sampling)


def episodes_at_once(engine: Engine, environment: Environment) -> int:
    """How many are open at a time. Of one step each, they hold nothing outside while they wait for a batch."""
    if isinstance(engine, Server):
        return engine.concurrency
    return AT_ONCE if environment.multi_turn else BATCHES * engine.batch_size
