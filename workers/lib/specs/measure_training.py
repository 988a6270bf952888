"""The spec of `workers.measure_training`."""

from __future__ import annotations

from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.specs.rollouts import Rollouts
from workers.lib.specs.training import Lora
from workers.lib.typed import AnswerTokens, Positive


class MeasureTraining(Job, kw_only=True, tag="measure_training"):
    """Measures how fast a model samples and trains: on some of a run's tasks, with its adapter's
    shape, where it would sample.
    """

    model: Model
    engine: InProcess
    environment: Environment
    tasks: Tasks
    lora: Lora
    max_new_tokens: AnswerTokens = 64
    rollouts: Rollouts | None = None
    seconds: Positive = 25.0  # without loading; each kind of work gets a share
