"""The limits of a run, and its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class SandboxError(RuntimeError):
    """The sandbox itself does not work, or may not be used here. This says nothing about the
    code.
    """


class CodeError(RuntimeError):
    """The code failed: `reason` is exception, time, memory, output, killed, forged or value;
    `details` is text.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(
            f"{reason}: {details.strip().splitlines()[-1][:300]}" if details.strip() else reason
        )
        self.reason, self.details = reason, details


@dataclass(frozen=True)
class Limits:
    """Limits of one run: seconds of wall-clock time; bytes of address space per process, of stdout
    and stderr together, and per file; `processes` includes the program itself, so 1 means that it
    may start none.
    """

    seconds: float = 5.0
    memory: int = 512 << 20
    output: int = 1 << 20
    file: int = 16 << 20
    processes: int = 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


DEFAULT = Limits()


@dataclass
class Budget:
    """Seconds that several runs may use together; each run's time is subtracted. Waiting for a slot
    does not count.
    """

    seconds: float


@dataclass(frozen=True)
class Ran:
    """The result of a program. `reason` is ok, time, memory, output, processes, killed or error (of
    the sandbox).
    """

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    reason: str

    @property
    def ok(self) -> bool:
        return self.reason == "ok" and self.exit_code == 0
