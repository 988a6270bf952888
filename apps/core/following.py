"""A page that has had a worker do something shows what comes of it without being loaded again: its
address says when it asked (`asked`, seconds since 1970), and while that is recent and nothing has
come of it, `_following.html` fetches a part of the page again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

FOLLOWED_FOR = timedelta(minutes=3)
ASKED: dict[str, Any] = {"asked": float}  # of a page's query


def followed(url: str) -> str:
    """The address of a page that asks now."""
    address, mark, anchor = url.partition("#")
    joined = "&" if "?" in address else "?"
    return f"{address}{joined}asked={timezone.now().timestamp():.3f}{mark}{anchor}"


def asked_at(request: HttpRequest, within: timedelta = FOLLOWED_FOR) -> datetime | None:
    """When the page asked; None if it did not, or so long ago that it is followed no more."""
    try:
        asked = datetime.fromtimestamp(float(request.GET.get("asked", "")), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return asked if timedelta(0) <= timezone.now() - asked < within else None
