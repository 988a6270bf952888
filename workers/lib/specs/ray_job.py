"""The spec of `workers.ray_job`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from workers.lib.alarms import AlarmSettings
from workers.lib.specs.engines import ServerAddress
from workers.lib.specs.job import Job
from workers.lib.typed import Count, Text


class RayJob(Job, kw_only=True, tag="ray_job"):
    """A run's folder as a job on a Ray cluster. `package` and `secrets` are files: the zipped
    folder, and {submission, env}, which only the process's owner can read. `alarms` and `method` as
    in the run's settings.
    """

    server: ServerAddress
    package: Text
    secrets: Text
    name: str
    method: str
    total: Count
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    alarms: AlarmSettings = field(default_factory=AlarmSettings)
