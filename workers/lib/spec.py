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

from workers.lib.events import Emitter
from workers.lib.typed import SpecError

STOPPED = 128 + signal.SIGTERM
# What each kind needs, by path, and of which type; what programs read with a default is not listed.
SCORING = {"environment.kind": str, "environment.harness": dict, "environment.verifier": dict}
COMMON = {"model.base": str} | SCORING
TRAINING = {"out_dir": str, "config.steps": int, "config.learning_rate": float}
FIELDS: dict[str, dict[str, type]] = {
    "evaluate": COMMON | {"engine": dict, "tasks": list, "samples_per_task": int},
    "sft": TRAINING | {"model.base": str, "rows": list, "config.batch_size": int},
    "grpo": COMMON | TRAINING | {"engine": dict, "tasks": list},
    "rescore": SCORING | {"samples": list},
    "probe": SCORING | {"tasks": list},
    "write_variants": {
        "out_dir": str,
        "server.base_url": str,
        "server.model": str,
        "seeds": list,
        "kinds": list,
        "each": int,
    },
    "demo_agent": COMMON | {"engine": dict, "requests": list, "api.url": str, "api.key": str, "seed": int},
}
TASK = {"id": str, "messages": list, "expected": dict}
ROW = {"messages": list, "completion": str}
SAMPLE = {"id": str, "task": dict, "messages": list}
NAMES = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number"}


class JobError(Exception):
    """An end with a sentence for the screen: a missing model folder, a full disk."""


class Stop(Exception):
    """The wish to stop, no error: raised by `StopFlag.check` after SIGTERM."""


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
    check_spec(spec, kind)
    return spec


def check_spec(spec: Any, kind: str) -> None:
    """Raises SpecError for the first field that is missing or of the wrong type."""
    if not isinstance(spec, dict):
        raise SpecError("The spec must be a JSON object.")
    for path, wanted in FIELDS[kind].items():
        check_field(spec, path, wanted)
    for name, fields in (("tasks", TASK), ("rows", ROW), ("samples", SAMPLE)):
        if name in FIELDS[kind]:
            check_list(spec[name], name, fields)
    if kind == "evaluate" and spec["samples_per_task"] < 1:
        raise SpecError("The spec's “samples_per_task” must be at least 1.")


def check_list(items: list, name: str, fields: dict[str, type]) -> None:
    if not items:
        raise SpecError(f"The spec's “{name}” is empty.")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise SpecError(f"The spec's “{name}.{index}” must be an object.")
        for field, wanted in fields.items():
            check_field(item, field, wanted, f"{name}.{index}.")


def check_field(holder: dict, path: str, wanted: type, prefix: str = "") -> None:
    value: Any = holder
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            raise SpecError(f"The spec lacks “{prefix}{path}”.")
        value = value[part]
    fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
    if not fits or (isinstance(value, bool) and wanted in (int, float)):
        raise SpecError(f"The spec's “{prefix}{path}” must be {NAMES[wanted]}.")


def run_main(kind: str, program: Callable[[dict, Emitter, StopFlag], None]) -> None:
    """`python -m workers.<kind> spec.json`. Exit status: 0 done, 1 error (told in an event), 143 asked to stop."""
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


def is_disk_full(error: BaseException) -> bool:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "No space left on device" in str(error)  # safetensors says it in a text of its own


def sentence(error: BaseException) -> str:
    """What the screen says of an error."""
    if isinstance(error, JobError | SpecError):
        return str(error)
    chain: BaseException | None = error
    while chain is not None:
        if is_disk_full(chain):
            return "The disk is full. Free some space and start the job again; its last checkpoint is kept."
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, MemoryError):
        return "There was not enough memory. Make the batch smaller."
    return f"{type(error).__name__}: {error}"
