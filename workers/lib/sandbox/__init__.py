"""Runs code that nobody vouches for: graders, model-written programs, unit tests. See docs/sandbox.md."""

from __future__ import annotations

from workers.lib.sandbox.pool import Pool, shared
from workers.lib.sandbox.types import DEFAULT, Budget, CodeError, Limits, Ran, SandboxError
from workers.lib.sandbox.visits import RETRY_AFTER_S, Busy, visiting

__all__ = [
    "RETRY_AFTER_S", "Budget", "Busy", "CodeError", "Limits", "Pool", "Ran", "SandboxError", "guards", "run", "shared", "visiting",
]  # fmt: skip


def run(program: str, *, stdin: str = "", files: dict[str, str] | None = None, limits: Limits = DEFAULT) -> Ran:
    """Runs a Python program in this process's pool. SandboxError where the sandbox itself does not work."""
    return shared().run(program, stdin=stdin, files=files, limits=limits)


def guards() -> dict[str, bool]:
    """Which guards are in force on this machine, by name; measured, not assumed."""
    return shared().guards()
