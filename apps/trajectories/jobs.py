"""The jobs of trajectories: file imports, exports as Parquet, and deletions."""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.trajectories import parquet_files, uploads
from apps.trajectories.erasure import job as erasure
from apps.trajectories.models import DataDeletion, ParquetExport, Upload

register(Upload, InProcess(queue="default", steps=uploads.steps, ended=uploads.ended))
register(ParquetExport, InProcess(queue="default", steps=parquet_files.steps))
register(
    DataDeletion,
    InProcess(
        queue="default",
        steps=erasure.steps,
        if_lost="What was deleted is gone. Resume it to delete the rest.",
    ),
)
