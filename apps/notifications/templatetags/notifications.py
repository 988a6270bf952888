from __future__ import annotations

from typing import Any

from django import template

from apps.notifications.views import unread_of

register = template.Library()


@register.inclusion_tag("notifications/_bell.html", takes_context=True)
def bell(context: Any) -> dict[str, Any]:
    """How many notifications are unread, in the frame of every page (fragments do not ask)."""
    request = context["request"]
    broken = context.get("status") == 500  # the database may be what is
    return {"unread": "" if broken else unread_of(request.user), "request": request}
