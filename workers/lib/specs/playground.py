"""The spec of `workers.playground`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Form


class Side(Form, kw_only=True):
    """One version in a playground; its prompt is part of the environment."""

    model: Model
    engine: Engine
    environment: Environment


class Playground(Job, kw_only=True, tag="playground"):
    """A task's `unscored` says why its answers have no score."""

    sides: Annotated[list[Side], Meta(min_length=1, max_length=4)]
    tasks: Tasks
    samples_per_task: AtLeastOne = 1
