"""The spec of `workers.evaluate`."""

from __future__ import annotations

from workers.lib.specs.engines import AgentEndpoint, Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.harness import AgentHarness
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Form, Text


class RolloutDoor(Form, kw_only=True):
    """How the program opens and ends the addresses at which a called agent uses the environment's
    tools: it asks the runner at the Unix socket. `url` is what they begin with.
    """

    socket: Text
    url: Text


class Evaluate(Job, kw_only=True, tag="evaluate"):
    """`tasks` is the list, or the name of a file with one task per line
    (workers.lib.task_files). `rollouts`: of a called agent, where the environment has tools.
    `harness`: an agent in whose own loop the model answers.
    """

    model: Model
    engine: Engine
    environment: Environment
    tasks: Tasks | Text
    samples_per_task: AtLeastOne
    rollouts: RolloutDoor | None = None
    harness: AgentHarness | None = None

    def __post_init__(self) -> None:
        if self.harness and isinstance(self.engine, AgentEndpoint):
            raise ValueError("a called agent plays itself: leave harness out")
