"""All workers and beat are alive, for the tests of one process: those of others have the same
broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings

from flywheel import alive

NAMES = (*settings.QUEUES, alive.BEAT)


@contextmanager
def all_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(alive, "KEY", f"flywheel:alive:{os.getpid()}:{{}}")
    keys = [alive.KEY.format(name) for name in NAMES]
    broker = alive.client()  # a test may take it away
    for name in NAMES:
        alive.say(name)
    yield
    broker.delete(*keys)
