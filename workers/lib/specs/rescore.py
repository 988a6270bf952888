"""The spec of `workers.rescore`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job
from workers.lib.typed import Form


class StoredSample(Form, kw_only=True):
    """A stored answer; its output is used if its turns were not stored."""

    id: str
    task: dict
    messages: list[dict]
    output: str = ""
    stop_reason: str = ""


class Rescore(Job, kw_only=True, tag="rescore"):
    environment: Environment
    samples: Annotated[list[StoredSample], Meta(min_length=1)]
