"""Reads a job's spec, runs the program, and says in one event how it ended. Light: no torch."""

from __future__ import annotations

import errno
import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.events import Emitter

STOPPED = 128 + signal.SIGTERM
NEEDED = {
    "evaluate": ("model", "engine", "environment", "tasks", "samples_per_task"),
    "sft": ("model", "environment", "rows", "config", "out_dir"),
    "grpo": ("model", "engine", "environment", "tasks", "config", "out_dir"),
}


class SpecError(Exception):
    """A spec that cannot be run; the message names the field."""


class JobError(Exception):
    """An end with a sentence for the screen: a missing model folder, a full disk."""


class Stop(Exception):
    """Raised by `StopFlag.check` after SIGTERM."""


class StopFlag:
    """Set by SIGTERM; programs check it where they can stop cleanly."""

    def __init__(self) -> None:
        self.is_set = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: Any) -> None:
        self.is_set = True

    def check(self) -> None:
        if self.is_set:
            raise Stop


def read_spec(path: Path, kind: str) -> dict:
    """Raises SpecError with the field in its message."""
    try:
        spec = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"The spec {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SpecError(f"The spec {path} is not JSON: {error}.") from error
    if not isinstance(spec, dict):
        raise SpecError(f"The spec {path} must be a JSON object.")
    for field in NEEDED[kind]:
        if field not in spec:
            raise SpecError(f"The spec lacks “{field}”, which {kind} needs.")
    if not isinstance(spec["model"], dict) or "base" not in spec["model"]:
        raise SpecError("The spec lacks “model.base”, the folder of the base model.")
    return spec


def run_main(kind: str, program: Callable[[dict, Emitter, StopFlag], None]) -> None:
    """`python -m workers.<kind> spec.json`. Exit status: 0 done, 1 error (said in an event), 143 asked to stop."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m workers.{kind} spec.json")
    events, stop = Emitter(), StopFlag()
    stop.install()
    try:
        program(read_spec(Path(sys.argv[1]), kind), events, stop)
    except Stop:
        events.log("warning", "Stopped on request.")
        sys.exit(STOPPED)
    except Exception as error:  # the program's boundary: every end is told in one event
        traceback.print_exc()
        events.error(sentence(error), traceback.format_exc())
        sys.exit(1)


def sentence(error: BaseException) -> str:
    if isinstance(error, JobError | SpecError):
        return str(error)
    chain: BaseException | None = error
    while chain is not None:
        if (isinstance(chain, OSError) and chain.errno == errno.ENOSPC) or "No space left on device" in str(chain):
            return "The disk is full. Free some space and start the job again; its last checkpoint is kept."
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, MemoryError):
        return "There was not enough memory. Make the batch smaller."
    return f"{type(error).__name__}: {error}"
