"""The spec of `workers.evaluate`."""

from __future__ import annotations

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Text


class Evaluate(Job, kw_only=True, tag="evaluate"):
    """`tasks` is the list, or the name of a file with one task per line
    (workers.lib.task_files).
    """

    model: Model
    engine: Engine
    environment: Environment
    tasks: Tasks | Text
    samples_per_task: AtLeastOne
