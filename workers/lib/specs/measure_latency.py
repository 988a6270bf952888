"""The spec of `workers.measure_latency`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import AtLeastOne, Count, Form, Positive, Text


class Timed(Form, kw_only=True):
    """One version whose latency is measured; events refer to it by `id`."""

    id: Text
    model: Model
    engine: Engine
    environment: Environment


class MeasureLatency(Job, kw_only=True, tag="measure_latency"):
    """`adapters` are merged into their base, or hot: applied next to it; the same for all
    versions.
    """

    versions: Annotated[list[Timed], Meta(min_length=2)]
    tasks: Tasks
    rounds: AtLeastOne = 4
    warm_up: Count = 2  # answers per version that do not count, in all processes together
    # half the width of each ratio's interval, relative to the ratio, at which measuring ends
    precision: Positive = 0.1
    adapters: Literal["merged", "hot"] = "merged"
