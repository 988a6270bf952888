"""Who acts where no user does, as audit log and history name them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

FLYWHEEL, COMMAND_LINE = "Flywheel", "command line"
ACTOR: ContextVar[str] = ContextVar("actor", default=FLYWHEEL)


def actor_name(user: Any) -> str:
    return user.get_username() if user else ACTOR.get()
