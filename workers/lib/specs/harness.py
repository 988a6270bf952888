"""How an agent that is not ours is run in a rollout (docs/agents.md)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.engines import AgentEndpoint
from workers.lib.typed import AtLeastOne, Count, Form, Text


class AgentCommand(Form, kw_only=True):
    """A program that is started once per rollout, in a folder of its own that is a copy of
    `folder` ("": an empty one). `variables` are added to its environment.
    """

    argv: Annotated[list[Text], Meta(min_length=1, max_length=100)]
    folder: str = ""
    variables: dict[str, str] = {}


class AgentPull(Form, kw_only=True):
    """Workers elsewhere ask for the agent's rollouts, with `token`. One that has not reported for
    `lease_s` seconds loses its rollout. The job says that none asks after `noted_after_s`, and ends
    after `most_silent_s`.
    """

    token: Text
    lease_s: AtLeastOne = 30
    noted_after_s: AtLeastOne = 120
    most_silent_s: AtLeastOne = 3600


class AgentHarness(Form, kw_only=True):
    """An agent that plays training's episodes in its own harness: started by a command, called at
    an endpoint, or run by workers that ask for its rollouts.

    `model` is the model's name for the agent. `calls` is how many calls to the model a rollout may
    make; `own_code`: whether the agent's own code, too, may call tools and write the answer.
    `host` and `port` are where the rollouts' addresses listen (0: any free port), `url` what agents
    elsewhere call instead.
    """

    name: Text
    version: Text
    command: AgentCommand | None = None
    endpoint: AgentEndpoint | None = None
    pull: AgentPull | None = None
    model: Text = "flywheel"
    calls: AtLeastOne = 200
    own_code: bool = False
    at_once: AtLeastOne = 16
    host: str = "127.0.0.1"
    port: Count = 0
    url: str = ""

    def __post_init__(self) -> None:
        if [self.command, self.endpoint, self.pull].count(None) != 2:
            raise ValueError("give a command, an endpoint or pull")
