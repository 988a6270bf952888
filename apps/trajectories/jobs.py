"""The jobs of trajectories: file imports."""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.trajectories import uploads
from apps.trajectories.models import Upload

register(Upload, InProcess(queue="default", steps=uploads.steps, ended=uploads.ended))
