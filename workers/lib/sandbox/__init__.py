"""Runs untrusted code: graders, model-written programs, unit tests. See docs/sandbox.md."""

from __future__ import annotations

from workers.lib.sandbox.pool import Pool, shared
from workers.lib.sandbox.types import DEFAULT, Budget, CodeError, Limits, Ran, SandboxError
from workers.lib.sandbox.visits import RETRY_AFTER_S, Busy, visiting

__all__ = [
    "RETRY_AFTER_S",
    "Budget",
    "Busy",
    "CodeError",
    "Limits",
    "Pool",
    "Ran",
    "SandboxError",
    "guards",
    "run",
    "shared",
    "visiting",
]


def run(
    program: str, *, stdin: str = "", files: dict[str, str] | None = None, limits: Limits = DEFAULT
) -> Ran:
    """Run a Python program in this process's pool. Raises SandboxError if the sandbox itself does
    not work.
    """
    return shared().run(program, stdin=stdin, files=files, limits=limits)


def guards() -> dict[str, bool]:
    """{guard: whether it is in force on this machine}, measured rather than assumed."""
    return shared().guards()
