"""Hooks for higher layers before a caller's task is opened or an answer to it is scored."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from apps.core.models import ApiKey


class Use(Enum):
    OPEN = "opened"
    SCORE = "scored"


# Raises Refusal if the caller may not. A task is {messages, expected, …}, or any row that a grader
# is given.
Guard = Callable[[ApiKey, dict, Use], None]
GUARDS: list[Guard] = []


def check(key: ApiKey, task: dict, use: Use) -> None:
    """Raises Refusal."""
    for guard in GUARDS:
        guard(key, task, use)
