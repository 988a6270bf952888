"""The names of groups whose tasks were erased: they say nothing, and the same group is still known
by them. The key is SECRET_KEY, and SECRET_KEY_FALLBACKS are still recognised.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from functools import lru_cache

from django.conf import settings
from django.utils.crypto import salted_hmac

PREFIX = "erased:"


def stand_in(group: str) -> str:
    return group if group.startswith(PREFIX) else _made(settings.SECRET_KEY, group)


def stand_ins(groups: Iterable[str]) -> set[str]:
    """Under every key."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return {_made(key, name) for name in groups for key in keys if not name.startswith(PREFIX)}


def _made(secret: str, group: str) -> str:
    digest = hmac.digest(_key(secret), group.encode("utf-8", "replace"), "sha256")
    return PREFIX + digest.hex()[:32]


@lru_cache
def _key(secret: str) -> bytes:
    return salted_hmac("flywheel.erased", "", secret=secret, algorithm="sha256").digest()
