"""What answers in a job: a model in this process, a model on a server, or a whole agent."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from workers.lib.addresses import PrivateNetworks
from workers.lib.prices import Price
from workers.lib.typed import AtLeastOne, Count, Form, NotNegative, Positive, Text


class Model(Form, kw_only=True):
    """`base` and `adapter` are folders (of an engine in this process)."""

    base: Text
    adapter: str | None = None


class InProcess(Form, kw_only=True, tag_field="kind", tag="transformers"):
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Count = 0  # 0: all cores
    batch_size: AtLeastOne = 64


class ServerAddress(Form, kw_only=True):
    """`api_key_env` names the environment variable with the server's key."""

    base_url: Text
    api_key_env: str | None = None
    allow_private: PrivateNetworks = False


class ModelServer(ServerAddress, kw_only=True):
    """Any OpenAI-compatible server. `dialect`: tools and calls as in chat completions, written as
    text for models without tool support, or as in OpenAI's Responses API. `template`: the model's
    chat template where it is known, for what it refuses in a conversation written as text.
    """

    model: Text
    timeout_s: Positive = 120.0
    dialect: Literal["native", "text", "responses"] = "native"
    template: str = ""


class Server(ModelServer, kw_only=True, tag_field="kind", tag="openai"):
    concurrency: AtLeastOne = 64
    price: Price = field(default_factory=Price)
    most_tokens: Count = 0  # for the whole job; 0: no limit
    most_usd: NotNegative = 0.0


class AgentEndpoint(Form, kw_only=True, tag_field="kind", tag="agent"):
    """A whole agent that is called over HTTP: it gets the task in the format of `protocol` and runs
    its own loop.

    `version` is the one being evaluated; if an answer names another one, the job stops. `timeout_s`
    covers everything it does for one sample. `tokens_per_call` and `usd_per_call` are assumed for a
    call that reports no usage, `prices` are those of the models that an answer may name.
    """

    base_url: Text
    name: Text
    version: Text
    protocol: Literal["chat", "responses", "gym"] = "chat"
    api_key_env: str | None = None
    timeout_s: Positive = 300.0
    concurrency: AtLeastOne = 8
    allow_private: PrivateNetworks = False
    most_tokens: Count = 0  # for the whole job; 0: no limit
    most_usd: NotNegative = 0.0
    tokens_per_call: Count = 0
    usd_per_call: NotNegative = 0.0
    prices: dict[str, Price] = {}


Engine = InProcess | Server | AgentEndpoint


def computes(spec: Any) -> bool:
    """Whether the program of a spec computes with a model itself, and so imports torch."""
    parts = (spec, *getattr(spec, "sides", ()), *getattr(spec, "versions", ()))
    return any(
        isinstance(getattr(part, "model", None), Model)
        and isinstance(getattr(part, "engine", None), InProcess | None)
        for part in parts
    )
