"""The spec of `workers.demo_agent`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job
from workers.lib.typed import Form, Text


class Api(Form, kw_only=True):
    url: Text
    key: Text


class AgentName(Form, kw_only=True):
    name: str
    version: str = ""


class Request(Form, kw_only=True):
    """A request of the demo's user, what they want, and the group of its variants."""

    request: str
    expected: dict
    group: str
    template: str = ""


class DemoAgent(Job, kw_only=True, tag="demo_agent"):
    """With `endpoint`, the agent calls it (`model_name` is the channel), and the endpoint logs each
    answer itself.
    """

    model: Model
    engine: Engine
    environment: Environment
    requests: Annotated[list[Request], Meta(min_length=1)]
    api: Api
    endpoint: Api | None = None
    agent: AgentName
    model_name: str
    id_prefix: str
