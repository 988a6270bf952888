"""Opens the policy that a spec describes. Imports torch only for an engine in this process."""

from __future__ import annotations

from collections.abc import Sequence

from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import Environment
from workers.lib.policies import EnginePolicy, Policy, Watch
from workers.lib.specs.engines import AgentEndpoint, Engine, Model, Server
from workers.lib.specs.measure_latency import Timed
from workers.lib.spending import Account

AT_ONCE = 64
KEPT_TOKENS = 8192  # of prompts, for each version that is timed: servers keep them, too
BATCHES = (
    16  # batches that wait for an in-process engine, enough to group answers of similar length
)


def open_policy(
    engine: Engine,
    model: Model,
    sampling: Sampling,
    account: Account | None = None,
    watch: Watch | None = None,
    goes_on: bool = True,
) -> Policy:
    """Open the `engine` and `model` of a spec. `account`: for a job whose requests to servers share
    a limit. `goes_on`: an in-process engine keeps what it computed for later turns. Raises
    SpecError, or JobError for a model that cannot be loaded.
    """
    if isinstance(engine, Server):
        return ChatPolicy(engine, sampling, account, watch)
    from workers.ml.transformers_engine import TransformersEngine

    return EnginePolicy(TransformersEngine.load(engine, model), sampling, watch, goes_on=goes_on)


def open_side_by_side(
    versions: Sequence[Timed], samplings: Sequence[Sampling], *, merged: bool
) -> list[Policy]:
    """A policy for each version, to be asked alternately. Those in this process share their base
    (`load_side_by_side`).
    """
    engines = [version.engine for version in versions]
    if any(isinstance(engine, Server) for engine in engines):
        return [
            open_policy(version.engine, version.model, sampling)
            for version, sampling in zip(versions, samplings, strict=True)
        ]
    from workers.ml.models import load_side_by_side, set_threads
    from workers.ml.transformers_engine import TransformersEngine

    set_threads(engines[0].threads)
    loaded = load_side_by_side(
        [version.model for version in versions], engines[0].dtype, merged=merged
    )
    return [
        EnginePolicy(
            TransformersEngine(*pair, batch_size=1, kept_tokens=KEPT_TOKENS),
            sampling,
            goes_on=False,
        )
        for pair, sampling in zip(loaded, samplings, strict=True)
    ]


def episodes_at_once(engine: Engine, environment: Environment) -> int:
    """How many episodes run at a time. Single-turn episodes hold no resources while they wait for a
    batch.
    """
    if isinstance(engine, Server | AgentEndpoint):
        return engine.concurrency
    return AT_ONCE if environment.multi_turn else BATCHES * engine.batch_size
