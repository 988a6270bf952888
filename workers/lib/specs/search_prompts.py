"""The spec of `workers.search_prompts`."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from workers.lib.prices import Price
from workers.lib.specs.engines import Engine, Model, ModelServer
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Count, Form, NotNegative, Text


class ReflectingServer(ModelServer, kw_only=True):
    """The server whose model writes prompts."""

    price: Price = field(default_factory=Price)


class SearchConfig(Form, kw_only=True):
    """`most_calls` limits samples of the agent; the limits on tokens and money are for requests to
    servers, both by the agent and for proposals (0: none). `score`: how a candidate is scored, by
    the share of samples that succeed or by their mean reward.
    """

    samples_per_task: AtLeastOne = 1
    minibatch: AtLeastOne = 3  # training tasks that a proposal is based on, and first tried on
    most_proposals: AtLeastOne = 20
    most_calls: AtLeastOne
    most_tokens: Count = 0
    most_usd: NotNegative = 0.0
    score: Literal["success", "reward"] = "success"
    reflection_tokens: AtLeastOne = 4096  # per answer of the reflecting model
    most_characters: AtLeastOne = 20_000  # of a proposal; longer ones are not tried


class UsedBefore(Form, kw_only=True):
    """The usage of earlier attempts of this job."""

    calls: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    usd: NotNegative = 0.0


class SearchPrompts(Job, kw_only=True, tag="search_prompts"):
    """`prompt`: the system prompt that the search starts with. `evidence`: {task: what is known
    about the failure that it was made from}. `python`: the interpreter with GEPA installed.
    """

    out_dir: Text
    model: Model
    engine: Engine
    environment: Environment
    server: ReflectingServer
    prompt: str
    tasks: Tasks
    validation_tasks: Tasks
    evidence: dict[str, str] = {}
    config: SearchConfig
    used: UsedBefore = field(default_factory=UsedBefore)
    python: Text
