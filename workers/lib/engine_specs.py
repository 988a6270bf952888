"""What a job's spec says of who answers: a model in this process, a model's server, or a whole agent that is called."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from workers.lib.typed import AtLeastOne, Count, NotNegative, Positive, Text


class Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A form without other fields than its own: a misspelt setting is an error, never a default."""


class Model(Form, kw_only=True):
    """`base` and `adapter` are folders (of an engine in this process)."""

    base: Text
    adapter: str | None = None


class InProcess(Form, kw_only=True, tag_field="kind", tag="transformers"):
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Count = 0  # 0: all cores
    batch_size: AtLeastOne = 64


class ModelServer(Form, kw_only=True):
    """Any OpenAI-compatible server. `api_key_env` names the environment variable with its key. `dialect`: tools and calls as
    chat completions have them, written as text for models that know no tools, or as OpenAI's Responses API has them."""

    base_url: Text
    model: Text
    api_key_env: str | None = None
    timeout_s: Positive = 120.0
    allow_private: bool = False
    dialect: Literal["native", "text", "responses"] = "native"


class Server(ModelServer, kw_only=True, tag_field="kind", tag="openai"):
    concurrency: AtLeastOne = 64
    price: tuple[NotNegative, NotNegative] = (0.0, 0.0)  # USD for a million tokens of questions and of answers
    most_tokens: Count = 0  # of the whole job; 0: no limit
    most_usd: NotNegative = 0.0


class AgentEndpoint(Form, kw_only=True, tag_field="kind", tag="agent"):
    """A whole agent that is called over HTTP: it gets the task in the shape that `protocol` names and runs its own loop.

    `version` is the one that is evaluated; where an answer says another, the job stops. `timeout_s` is for all that it does
    for one sample. `tokens_per_call` and `usd_per_call` are what a call counts for that reports none, `prices` are those of the
    models that an answer may name.
    """

    base_url: Text
    name: Text
    version: Text
    protocol: Literal["chat", "responses", "gym"] = "chat"
    api_key_env: str | None = None
    timeout_s: Positive = 300.0
    concurrency: AtLeastOne = 8
    allow_private: bool = False
    most_tokens: Count = 0  # of the whole job; 0: no limit
    most_usd: NotNegative = 0.0
    tokens_per_call: Count = 0
    usd_per_call: NotNegative = 0.0
    prices: dict[str, tuple[NotNegative, NotNegative]] = {}  # USD for a million tokens of questions and of answers


Engine = InProcess | Server | AgentEndpoint
