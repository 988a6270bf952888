"""An event loop in a thread, for callers without asyncio. Light: no torch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

T = TypeVar("T")
CHECKED_EVERY_S = 0.5


class LoopThread:
    """Started by the first `run`; close it at the end. May be used from any thread except its
    own.
    """

    def __init__(self, name: str) -> None:
        self.name, self.lock = name, threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T], check: Callable[[], None] | None = None) -> T:
        """The result of `work`. It is cancelled if the caller is interrupted, or if `check`, which
        is called twice a second, raises.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            while check is not None and not wait([future], timeout=CHECKED_EVERY_S).done:
                check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.thread = threading.Thread(
                    target=self.loop.run_forever, name=self.name, daemon=True
                )
                self.thread.start()
            return self.loop

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop the thread; if it was ever started, after running `last`."""
        with self.lock:
            loop, thread, self.loop, self.thread = self.loop, self.thread, None, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(last(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
