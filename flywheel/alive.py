"""Who is alive: workers and beat leave a key in the broker that expires; /healthz looks for it."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import redis
from django.conf import settings
from django.core.cache import cache
from redis.backoff import NoBackoff
from redis.retry import Retry

BEAT = "beat"
KEY = "flywheel:alive:{}"
# Beat is heard of by a task every ten seconds, which waits behind others on a busy machine.
EXPIRES_S = {BEAT: 180}
NOTED, NOTED_S = "alive", 45


@lru_cache
def client() -> redis.Redis:
    url = settings.CELERY_BROKER_URL
    if url.startswith("redis+socket://"):
        url = "unix://" + url.removeprefix("redis+socket://").split("?")[0]
    once = Retry(NoBackoff(), 0)  # redis-py would try for ten seconds
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1, retry=once)


def queue_of(worker: str) -> str:
    """A worker is named after its queue: default@host."""
    return worker.partition("@")[0]


def say(name: str) -> None:
    """Says that `name` is alive. A broker that is down does not stop the work."""
    try:
        client().set(KEY.format(name), "1", ex=EXPIRES_S.get(name, 20))
    except redis.RedisError:
        return


def missing(names: list[str]) -> list[str]:
    """Those of `names` that have not been heard of lately. Raises redis.RedisError if the broker is
    away.
    """
    values = client().mget([KEY.format(name) for name in names])
    return [name for name, value in zip(names, values, strict=True) if value is None]


def note(names: list[str]) -> None:
    """Keeps in the database who is alive, for pages, which do not wait for the broker."""
    with suppress(redis.RedisError):
        silent = missing(names)
        cache.set(NOTED, [name for name in names if name not in silent], NOTED_S)


def noted(name: str) -> bool:
    """Whether `name` was alive when it was last noted, some seconds ago."""
    return name in cache.get(NOTED, [])
