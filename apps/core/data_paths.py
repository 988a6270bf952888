"""Paths in rows: of files in the data folder, which may lie elsewhere after a restore or a move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models


class DataPathField(models.CharField):
    """The whole path of a file in the data folder. The row has what follows that folder."""

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        return value and str(Path(settings.FLYWHEEL_DATA_DIR) / value)

    def get_prep_value(self, value: Any) -> Any:
        given = super().get_prep_value(value)
        if given and Path(given).is_relative_to(settings.FLYWHEEL_DATA_DIR):
            return str(Path(given).relative_to(settings.FLYWHEEL_DATA_DIR))
        return given
