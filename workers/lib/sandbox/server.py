"""One sandboxed server process as seen from outside: started, asked, and killed if it does not
answer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workers.lib.framed import Framed, Lost
from workers.lib.sandbox.types import SandboxError

INSIDE = Path(__file__).parent / "inside"
START_SECONDS, GRACE_SECONDS = 30.0, 10.0
WEAK = (
    "The sandbox will not run: this machine does not allow it to shut off {lacking}. Allow user"
    " namespaces, seccomp and Landlock, wrap it with FLYWHEEL_SANDBOX_COMMAND, or accept the risk"
    " with FLYWHEEL_SANDBOX_WEAK=1 (see docs/sandbox.md)."
)
ONE_LAYER = (
    "The sandbox will not run: this machine does not allow namespaces, so only seccomp and Landlock"
    " would guard it. Allow user namespaces, wrap it with FLYWHEEL_SANDBOX_COMMAND, or accept one"
    " layer with FLYWHEEL_SANDBOX_WEAK=namespaces (see docs/sandbox.md)."
)
ACCEPTED = (
    "FLYWHEEL_SANDBOX_WEAK={accepted} accepts that the sandbox cannot shut off {lacking} here."
)
ACCEPTED_ONE_LAYER = (
    "FLYWHEEL_SANDBOX_WEAK={accepted} lets seccomp and Landlock alone guard the sandbox."
)


def command(folder: str) -> list[str]:
    """The command that starts the server, preceded by FLYWHEEL_SANDBOX_COMMAND, in which {folder}
    is the sandbox's own code.
    """
    prefix = os.environ.get("FLYWHEEL_SANDBOX_COMMAND", "")
    packages = os.environ.get("FLYWHEEL_SANDBOX_PACKAGES", "")
    if not prefix:
        return [sys.executable, "-I", "-S", str(INSIDE), folder, packages]
    words = [word.replace("{folder}", str(INSIDE)) for word in shlex.split(prefix)]
    return [*words, "python3", "-I", "-S", str(INSIDE), "", packages]


@dataclass(frozen=True)
class Strength:
    """`refuses`: why it will not run here; `accepted`: what an operator has accepted. "" if not."""

    refuses: str = ""
    accepted: str = ""


def strength(guards: dict[str, bool]) -> Strength:
    """Network and files must be blocked, and by namespaces besides seccomp and Landlock, unless a
    container does that or FLYWHEEL_SANDBOX_WEAK accepts less: `namespaces` that they lack, `1` all.
    """
    if os.environ.get("FLYWHEEL_SANDBOX_COMMAND"):
        return Strength()
    accepted = os.environ.get("FLYWHEEL_SANDBOX_WEAK", "")
    if lacking := " and ".join(name for name in ("network", "files") if not guards.get(name)):
        if accepted == "1":
            return Strength(accepted=ACCEPTED.format(accepted=accepted, lacking=lacking))
        return Strength(refuses=WEAK.format(lacking=lacking))
    if not (guards.get("mount_namespace") and guards.get("network_namespace")):
        if accepted in ("1", "namespaces"):
            return Strength(accepted=ACCEPTED_ONE_LAYER.format(accepted=accepted))
        return Strength(refuses=ONE_LAYER)
    return Strength()


def refuse_if_weak(guards: dict[str, bool]) -> None:
    """Raises SandboxError."""
    if refuses := strength(guards).refuses:
        raise SandboxError(refuses)


def strength_here() -> Strength:
    """Of this machine, by a try. May take seconds."""
    try:
        server = Server()
    except SandboxError as error:
        return Strength(refuses=str(error))
    server.close()
    return strength(server.guards)


class Server(Framed):
    """A warm process that answers requests one at a time. Raises SandboxError if it cannot start or
    would be too weak.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="flywheel-sandbox-")
        super().__init__(command(self.folder), env={})
        try:
            hello = self.receive(START_SECONDS)
            if "guards" not in hello:
                raise SandboxError(
                    f"The sandbox did not start: {hello.get('failed', 'no greeting')}"
                )
            refuse_if_weak(hello["guards"])
        except Lost as error:
            self.close()
            raise SandboxError(f"The sandbox did not start: {error}") from error
        except SandboxError:
            self.close()
            raise
        self.guards: dict[str, bool] = hello["guards"]

    def ask(self, request: dict) -> dict:
        """The answer to a request. Raises Lost if the server has ended; it cannot be used any more
        then.
        """
        return self.send(request, request["limits"]["seconds"] + GRACE_SECONDS)

    def close(self) -> None:
        """End the process and everything that it started (pid namespace, parent-death signal)."""
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)
