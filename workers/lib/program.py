"""Reads a job's spec, runs the program, and says in one event how it ended. Light: no torch."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workers.lib.errors import SpecError, sentence
from workers.lib.events import Emitter
from workers.lib.memory import is_out_of_memory
from workers.lib.specs import checked

STOPPED = 128 + signal.SIGTERM


class Stop(Exception):
    """The wish to stop, no error: raised by `StopFlag.check` after SIGTERM. Its text, if any, says why."""


class StopFlag:
    """Set by SIGTERM; programs check it where they can stop cleanly. While nothing is at stake (`at_once`) it needs no check."""

    def __init__(self) -> None:
        self.is_set = self.raises = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: Any) -> None:
        self.is_set = True
        if self.raises:
            raise Stop

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Loading a model takes long and leaves nothing behind: SIGTERM ends it where it is."""
        self.raises = True
        try:
            yield
        finally:
            self.raises = False

    def check(self) -> None:
        if self.is_set:
            raise Stop


def read_spec(path: Path, kind: str) -> Any:
    """The typed spec (workers.lib.specs). Raises SpecError with the field in its message."""
    try:
        spec = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"The spec {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SpecError(f"The spec {path} is not JSON: {error}.") from error
    return checked(spec, kind)


def run_main(kind: str, program: Callable[[Any, Emitter, StopFlag], None]) -> None:
    """`python -m workers.<kind> spec.json`. Exit status: 0 done, 1 error (reported in an event), 143 asked to stop."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m workers.{kind} spec.json")
    events, stop = Emitter(), StopFlag()
    stop.install()
    try:
        program(read_spec(Path(sys.argv[1]), kind), events, stop)
    except Stop as stopped:
        events.log("warning", str(stopped) or "Stopped on request.")
        sys.exit(STOPPED)
    except Exception as error:  # the program's boundary: every end is reported in one event
        traceback.print_exc()
        cause = "memory" if is_out_of_memory(error) else ""
        events.error(sentence(error), traceback.format_exc(), cause)
        sys.exit(1)
