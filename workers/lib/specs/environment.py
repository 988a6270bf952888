"""The environment of a job's spec."""

from __future__ import annotations

from msgspec import Struct, field

from workers.lib.addresses import PrivateNetworks
from workers.lib.specs.engines import ModelServer
from workers.lib.typed import (
    AnswerTokens,
    AtLeastOne,
    Count,
    Form,
    NotNegative,
    Temperature,
    Text,
    TopP,
)


class Harness(Struct, kw_only=True):
    """What the agent brings (prompt, examples, sampling) and its limits. `max_turns` None: the
    environment's default.

    `tools` are those that run; for tools of the same name, the agent is shown the definitions in
    `shown_tools` instead.
    """

    system_prompt: str | None = None
    examples: list[dict] = []
    tools: list[dict] | None = None
    show_tools: bool = True
    shown_tools: list[dict] = []
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    max_new_tokens: AnswerTokens = 64
    max_turns: AtLeastOne | None = None
    max_seconds: NotNegative = 300.0
    max_tokens: Count = 0


REMOTE = ("remote", "mcp", "openenv")  # kinds of environments whose tools another server runs


class RewardModelFolder(Form, kw_only=True):
    """The folders of a reward model version. `digest` is that of the adapter's folder, and is
    checked when it is loaded.
    """

    name: Text
    base: Text
    adapter: Text
    digest: Text
    dtype: str = "float32"


class Clients(Form, kw_only=True):
    """What verifiers and simulated users ask: the judge's server, and reward models."""

    judge: ModelServer | None = None
    reward_models: list[RewardModelFolder] = []


class Environment(Struct, kw_only=True):
    """The common part of all kinds of environments; each validates its own `config`."""

    kind: Text
    name: str = ""
    config: dict = {}
    harness: Harness
    verifier: dict
    clients: Clients = field(default_factory=Clients)
    allow_private: PrivateNetworks = False
