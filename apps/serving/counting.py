"""What the endpoint counts of a request (`flywheel.counters`), after its answer was sent.

Counts are added up here and written now and then (`flush`): each write goes to a file that the
processes share, which took longer than all else that is done here. All of it is done by the event
loop. A process that is killed takes the counts of its last half second with it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from apps.serving.asgi import Send
from apps.serving.usage import reported_usage
from flywheel.counters import (
    ENDPOINT_FIRST_SECONDS,
    ENDPOINT_OPEN,
    ENDPOINT_RECORDED,
    ENDPOINT_REQUESTS,
    ENDPOINT_SECONDS,
    ENDPOINT_TOKENS,
)

LEFT = "499"  # the client, before there was an answer
# Looking a label up takes as long as counting.
open_of = lru_cache(ENDPOINT_OPEN.labels)
requests_of = lru_cache(ENDPOINT_REQUESTS.labels)
recorded_of = lru_cache(ENDPOINT_RECORDED.labels)
seconds_of = lru_cache(ENDPOINT_SECONDS.labels)
first_seconds_of = lru_cache(ENDPOINT_FIRST_SECONDS.labels)
tokens_of = lru_cache(ENDPOINT_TOKENS.labels)

_added: defaultdict[Any, float] = defaultdict(float)
_observed: defaultdict[Any, list[float]] = defaultdict(list)


def add(metric: Any, amount: float = 1.0) -> None:
    """To a counter or gauge, at the next `flush`."""
    _added[metric] += amount


def flush() -> None:
    """Writes what was counted since the last one to the files that /metrics reads."""
    added, observed = dict(_added), dict(_observed)
    _added.clear()
    _observed.clear()
    for metric, amount in added.items():
        metric.inc(amount)
    for histogram, values in observed.items():
        observe_all(histogram, values)


def observe_all(histogram: Any, values: Collection[float]) -> None:
    """As `observe` of each, with one write for each bucket."""
    histogram._sum.inc(sum(values))
    places = Counter(bisect_left(histogram._upper_bounds, value) for value in values)
    for place, n in places.items():
        histogram._buckets[place].inc(n)


class Counted:
    """One request. `send` passes on what is sent. `channel` is "" until it is known to exist."""

    def __init__(self, send: Send) -> None:
        self._send, self._began = send, time.perf_counter()
        self._first_s = 0.0
        self.code, self.channel, self.is_open = LEFT, "", False

    @property
    def has_begun(self) -> bool:
        return self.code != LEFT

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.code = str(message["status"])
            self._first_s = time.perf_counter() - self._began
        await self._send(message)

    def open(self, channel: str) -> None:
        self.channel, self.is_open = channel, True
        add(open_of(channel))

    def close(self, parts: list[bytes]) -> None:
        """`parts`: of the answer."""
        if self.is_open:
            add(open_of(self.channel), -1)
        if used := reported_usage(parts):
            add(tokens_of(self.channel, "input"), used.input_tokens or 0)
            add(tokens_of(self.channel, "output"), used.output_tokens or 0)

    def end(self) -> None:
        add(requests_of(self.channel, self.code))
        _observed[seconds_of(self.channel)].append(time.perf_counter() - self._began)
        if self.has_begun:
            _observed[first_seconds_of(self.channel)].append(self._first_s)
