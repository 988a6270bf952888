from __future__ import annotations

from typing import Any

from django import template

from apps.trajectories.pages import columns, transcript
from apps.trajectories.steps import KINDS, STATUSES

register = template.Library()
register.filter("duration", columns.duration)
register.filter("money", columns.money)
register.filter("cost", columns.cost)
register.filter("tokens", columns.tokens)
register.filter("kind_of_step", lambda kind: KINDS.get(kind, kind))
register.filter("status_of_step", lambda status: STATUSES.get(status, status))


@register.simple_tag
def turns(
    messages: Any, tools: Any = None, blamed: Any = None, first: Any = 0
) -> list[transcript.Turn]:
    """The turns of a conversation: each call with its reply and what is wrong with its
    arguments.
    """
    blamed = blamed if isinstance(blamed, int) else None
    found = transcript.turns_of(messages or [], tools or None, blamed=blamed, first=first or 0)
    return transcript.fit(found)


@register.filter
def head_of(found: list[transcript.Turn], shown_from: int) -> list[transcript.Turn]:
    return [turn for turn in found if turn.index < shown_from]


@register.filter
def rest_of(found: list[transcript.Turn], shown_from: int) -> list[transcript.Turn]:
    return [turn for turn in found if turn.index >= shown_from]
