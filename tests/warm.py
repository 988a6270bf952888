"""Programs that are started with their imports done (workers.lib.warm), from one process for the
whole suite, which imports when a test first asks for it.

    child = warm.Program(["workers.grpo", spec], stdout=PIPE, env=…)

Within `jobs()`, so are the programs of jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from workers.lib.warm import Program as WarmProgram
from workers.lib.warm import Warm

WHOLE_SUITE_S = 24 * 3600
_warm: list[Warm] = []


def begin() -> None:
    """When all tests are collected, and none has run."""
    _warm[:] = [Warm(os.environ, WHOLE_SUITE_S)]
    _warm[0].prepare(imports=False)


@contextmanager
def jobs() -> Iterator[None]:
    from apps.core import child

    with patch.object(child, "_popen", lambda python, spec: popen):
        yield


def Program(arguments: list[str], **options: Any) -> subprocess.Popen:
    """`arguments` are those of `python -m`."""
    return WarmProgram(_warm[0], [sys.executable, "-m", *arguments], **options)


def popen(command: list[str], **options: Any) -> subprocess.Popen:
    """In place of `subprocess.Popen` where the product starts programs of ours."""
    return _warm[0].popen(command, **options)
