"""What a start is doing, for whoever watches the terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flywheel import logs

QUICK_S = 1.5  # what is done sooner is not mentioned
AGAIN_S = 15.0


@contextmanager
def doing(what: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """Prints `what` once it has taken a moment and, while it goes on, how long it has taken.
    `detail` says then what is missing.
    """
    done, began = threading.Event(), time.monotonic()

    def report() -> None:
        if done.wait(QUICK_S):
            return
        say(f"{what} …")
        while not done.wait(AGAIN_S):
            missing = detail()
            say(f"{what} … {time.monotonic() - began:.0f} s{missing and f', {missing}'}")

    # Never joined: a terminal that is stopped (Ctrl-S) must not stop the start.
    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def say(sentence: str) -> None:
    """On the terminal of `up`, as its log lines are."""
    with contextlib.suppress(OSError):
        print(logs.as_line(sentence.encode(), "up", process="up").decode().rstrip(), flush=True)
