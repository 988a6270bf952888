"""Database notifications for processes that route to a channel's versions."""

from __future__ import annotations

from django.db import connection

from apps.promotion.models import Channel

MOVED = "flywheel_routes"  # what the endpoint listens to


def notify_listeners(channel: Channel) -> None:
    """Processes that route to this channel's versions reload once this is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [MOVED, str(channel.pk)])
