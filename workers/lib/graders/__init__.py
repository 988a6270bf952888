"""Runs OpenAI's graders from their original JSON. See docs/graders.md."""

from __future__ import annotations

from workers.lib.graders.running import GraderResult, run, sample_of
from workers.lib.graders.validation import validate

__all__ = ["GraderResult", "run", "sample_of", "validate"]
