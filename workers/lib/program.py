"""Reads a job's spec, runs the program, and reports in one event how it ended. Light: no torch."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from workers.lib import processes
from workers.lib.errors import SpecError, cause_of, sentence
from workers.lib.events import Emitter
from workers.lib.garbage import is_imported
from workers.lib.memory import is_out_of_memory
from workers.lib.specs.job import J, checked

STOPPED = 128 + signal.SIGTERM
UNUSABLE = 2  # exit status for an invalid spec, as for commands with invalid arguments
CONNECTIONS = ("gloo", "NCCL", "DistBackendError", "DistNetworkError")


class Stop(Exception):
    """A request to stop rather than an error: raised by `StopFlag.check` after SIGTERM. The text,
    if any, says why.
    """


class PeerEnded(Exception):
    """Another process of the same job has ended and has reported why."""


class StopFlag:
    """Set by SIGTERM; programs check it where they can stop cleanly. Within `at_once` no check is
    needed.
    """

    def __init__(self) -> None:
        self.is_set = self.raises = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: Any) -> None:
        again, self.is_set = self.is_set, True
        if self.raises and not again:
            raise Stop

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """SIGTERM ends the block immediately: for work such as loading a model, which takes long
        and leaves nothing behind.
        """
        self.raises = True
        try:
            yield
        finally:
            self.raises = False

    def check(self) -> None:
        if self.is_set:
            raise Stop


def read_spec(path: Path, form: type[J]) -> J:
    """The typed spec. Raises SpecError with the field in its message."""
    try:
        spec = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"The spec {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SpecError(f"The spec {path} is not JSON: {error}.") from error
    return checked(spec, form)


def run_main(form: type[J], program: Callable[[J, Emitter, StopFlag], None]) -> None:
    """`python -m workers.<program> spec.json`. Exit status: 0 done, 1 error (reported in an event),
    2 an invalid spec (reported without a traceback, since it is not an error of the program), 143
    asked to stop, 76 ended with another process of the job. If the spec asks for several processes,
    this one starts them (workers.lib.processes).
    """
    is_imported()
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m workers.{form.program()} spec.json")
    events, stop = Emitter(mute=processes.number() > 0), StopFlag()
    stop.install()
    try:
        spec = read_spec(Path(sys.argv[1]), form)
        if spec.processes > 1 and not processes.are_started():
            processes.start_them(f"workers.{form.program()}", spec.processes, sys.argv[1])
        program(spec, events, stop)
    except PeerEnded:
        sys.exit(processes.LOST)
    except Stop as stopped:
        events.log("warning", str(stopped) or "Stopped on request.")
        sys.exit(STOPPED)
    except SpecError as error:
        if is_out_of_memory(error):  # memory ran out, which was mistaken for an invalid spec
            fail(events, error)
        with contextlib.suppress(OSError):
            print(error, file=sys.stderr)
        events.error(str(error))
        sys.exit(UNUSABLE)
    except Exception as error:  # the program's boundary: every end is reported in one event
        fail(events, error)


def fail(events: Emitter, error: Exception) -> NoReturn:
    """Call it while handling the error."""
    with contextlib.suppress(OSError):  # on a full disk it cannot be written; the event can be sent
        traceback.print_exc()
    if processes.count() > 1 and lost_connection(error):
        sys.exit(processes.LOST)
    events.error(sentence(error), traceback.format_exc(), cause_of(error))
    sys.exit(1)


def lost_connection(error: BaseException) -> bool:
    """Whether it is the libraries' error for a process of the job that has ended (torch raises a
    RuntimeError).
    """
    return isinstance(error, RuntimeError) and any(
        name in f"{type(error).__name__} {error}" for name in CONNECTIONS
    )
