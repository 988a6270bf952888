"""The jobs of trajectories: file imports, and exports as Parquet."""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.trajectories import parquet_files, uploads
from apps.trajectories.models import ParquetExport, Upload

register(Upload, InProcess(queue="default", steps=uploads.steps, ended=uploads.ended))
register(ParquetExport, InProcess(queue="default", steps=parquet_files.steps))
