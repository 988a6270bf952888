"""The signals that end a program which runs servers: each raises KeyboardInterrupt in its main
thread, so that everything is stopped on the way out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, NoReturn


def heed(interrupt: Callable[[], Any]) -> None:
    """Calls `interrupt` for Ctrl-C, Ctrl-\\, `kill`, and the end of the terminal or connection.

    A shell has SIGINT ignored for what a script starts with `&`; whoever sends it to this process
    means it. An ignored SIGHUP is what `nohup` asks for.
    """

    def handle(number: int, _: object) -> None:
        if number == signal.SIGHUP:  # the terminal and its shell may both send it
            signal.signal(number, signal.SIG_IGN)
        interrupt()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)


def interrupt_now() -> NoReturn:
    raise KeyboardInterrupt
