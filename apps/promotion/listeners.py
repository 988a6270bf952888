"""Who routes to a channel's versions is woken by the database."""

from __future__ import annotations

from django.db import connection

from apps.promotion.models import Channel

MOVED = "flywheel_routes"  # what the endpoint listens to


def notify_listeners(channel: Channel) -> None:
    """Whoever routes to this channel's versions looks again once this is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [MOVED, str(channel.pk)])
