"""The spec of `workers.write_variants`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from workers.lib.specs.engines import ModelServer
from workers.lib.specs.job import Job
from workers.lib.typed import AtLeastOne, Form


class Seed(Form, kw_only=True):
    """A task to vary: its conversation, the correct calls, and the tools."""

    key: str
    messages: list[dict]
    calls: list[dict]
    tools: list[dict]


class WriteVariants(Job, kw_only=True, tag="write_variants"):
    server: ModelServer
    seeds: Annotated[list[Seed], Meta(min_length=1)]
    kinds: Annotated[list[Literal["paraphrase", "arguments", "edge"]], Meta(min_length=1)]
    each: AtLeastOne
    most_tokens: AtLeastOne
