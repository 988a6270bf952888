"""The spec of `workers.find_step`."""

from __future__ import annotations

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job
from workers.lib.typed import AtLeastOne, Count, Form


class Attempts(Form, kw_only=True):
    """What earlier attempts of the job found out about a step."""

    step: Count
    successes: Count
    n: Count
    masked: Count


class FindStep(Job, kw_only=True, tag="find_step"):
    """`recorded`: the messages of the failed run after the task's; `steps`: the positions in it of
    the agent's messages to try; `each`: how many continuations of each; `every`: try all of them.
    `most_tokens`: no more continuations are begun after so many tokens, of which `used` are spent;
    0: no limit.
    """

    model: Model
    engine: Engine
    environment: Environment
    task: dict
    recorded: list[dict]
    steps: list[Count]
    each: AtLeastOne
    every: bool = False
    tried: list[Attempts] = []
    most_tokens: Count = 0
    used: Count = 0
