"""Types of what operations take and give, besides those of `workers.lib.typed`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from django.db.models import Choices
from msgspec import Meta

Name = Annotated[
    str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,80}\Z", description="Letters, digits, - and _")
]
Moment = Annotated[datetime, Meta(tz=True)]


def choice_of(choices: type[Choices], also: Iterable[str] = ()) -> Any:
    """One of the values; a form shows their labels. `also` are values without a label."""
    return Annotated[
        Literal[(*choices.values, *also)],  # type: ignore[valid-type]
        Meta(extra={"choices": choices.choices}),
    ]
