"""The program of a job in the process of the test. Where the boundary between the two is not what a
test asks about, that spares the 5 CPU seconds in which a process loads torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.core.child import Child
from tests.forms import form_of
from workers.lib import program
from workers.lib.typed import plain


class Ran(Child):
    """A child that has ended; its events wait to be read."""

    def signal(self, number: int) -> None:
        pass

    def close(self) -> int:
        os.close(self.events_fd)
        return self.process.returncode


def start(command: Sequence[str], spec_path: Path, spec: Any, stderr_path: Path) -> Child:
    """As `apps.core.child.start`: use `monkeypatch.setattr(child, "start", here.start)`."""
    spec_path.write_text(json.dumps(plain(spec)))
    name, events = command[-1], stderr_path.with_suffix(".events")
    status: Any = 0
    with events.open("wb", buffering=0) as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLYWHEEL_EVENTS_FD", str(file.fileno()))
        patch.setattr(sys, "argv", [name, str(spec_path)])
        patch.setattr(program, "is_imported", lambda: None)
        before = signal.getsignal(signal.SIGTERM)
        try:
            program.run_main(form_of(name.rpartition(".")[2]), import_module(name).main)
        except SystemExit as end:
            status = end.code
        finally:
            signal.signal(signal.SIGTERM, before)
    process: Any = SimpleNamespace(returncode=status)
    return Ran(process, os.open(events, os.O_RDONLY), stderr_path)
