"""When a question that the judge did not answer is asked again. A server that is down or refuses
the key costs no try: that is not the fault of the question.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db.models import Q
from django.utils import timezone

if TYPE_CHECKING:
    from apps.failures.judge.asking import Answered

MOST_TRIES = 3
RETRY_AFTER = timedelta(minutes=10)


def tries_of(answered: Answered) -> int:
    """How many tries an answer counts as."""
    return 0 if answered.is_servers or answered.final else 1


def ready(field: str) -> Q:
    """Rows never asked about, or asked long enough ago. `field`: when they were asked."""
    return Q((field, None)) | Q((f"{field}__lt", timezone.now() - RETRY_AFTER))


def asked_again_at(asked_at: datetime) -> datetime:
    return max(timezone.now(), asked_at + RETRY_AFTER)
