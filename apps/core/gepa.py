"""GEPA, which searches for prompts and rubrics from an environment of its own (`make gepa`)."""

from __future__ import annotations

import shutil

from django.conf import settings

ABSENT = (
    "GEPA is not installed here. The operator of this installation can add it with “make gepa”."
)


def absent() -> str:
    """Why no search can run here; empty if it can."""
    return "" if shutil.which(settings.FLYWHEEL_GEPA_PYTHON) else ABSENT
