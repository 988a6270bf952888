"""What happens before a caller's task is opened or an answer to it is scored."""

from __future__ import annotations

from enum import Enum

from apps.core.bus import Event
from apps.core.models import ApiKey


class Use(Enum):
    OPEN = "opened"
    SCORE = "scored"


class UsingTask(Event):
    """Listeners raise Refusal if the caller may not. A task is {messages, expected, …}, or any row
    that a grader is given.
    """

    key: ApiKey
    task: dict
    use: Use
