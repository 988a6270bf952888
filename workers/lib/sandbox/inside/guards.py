"""The guards around the code. Each is tried here, so that the report lists exactly those in
force.
"""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import kernel
import landlock
import namespaces
import seccomp

NOBODY = 65534
THREADS = 32
OWN_USERS = (1 << 30, 1 << 29)  # first number, and how many: users that own nothing on any machine


def works(attempt: Callable[[], object]) -> bool:
    """Whether an operation is possible here; tried in a child, which then exits."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            attempt()
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


class Guards:
    """The guards of one server, from `prepare` (once, with all privileges) to `hold` (in every
    child).
    """

    def __init__(self, folder: str, packages: str) -> None:
        self.folder, self.packages = folder, packages
        self.readable = namespaces.libraries(packages)
        self.scratch = str(Path(folder) / "scratch")
        self.kinds: tuple[str, ...] = ()
        self.own_user = False
        self.in_force: dict[str, bool] = {}

    def prepare(self) -> None:
        """Enter the namespaces that are available. A pid namespace only applies to children, so
        fork afterwards.
        """
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        self.kinds = next(
            kinds for kinds in self._choices() if not kinds or works(partial(self._isolate, kinds))
        )
        self._isolate(self.kinds)
        if "mount" in self.kinds:
            self.scratch = namespaces.SCRATCH
        else:
            Path(self.scratch).mkdir(mode=0o700, exist_ok=True)

    @staticmethod
    def _choices() -> list[tuple[str, ...]]:
        user = () if os.geteuid() == 0 else ("user",)
        rest = ("network", "ipc", "uts")
        choices = [
            (*user, "mount", "pid", *rest),
            (*user, "mount", *rest),
            (*user, "pid", *rest),
            (*user, *rest),
        ]
        if not user:  # the root user of a container may not be allowed to create these directly
            choices += [("user", *kinds) for kinds in choices]
        return [*choices, ()]

    def _isolate(self, kinds: tuple[str, ...]) -> None:
        if kinds:
            namespaces.enter(kinds)
        if "mount" in kinds:
            namespaces.new_root(self.folder, self.readable)

    def become_nobody(self) -> None:
        """Become a user that owns nothing, without capabilities or any way to gain more. Children
        die with this process.
        """
        if os.geteuid() == 0 and "user" not in self.kinds:
            own = OWN_USERS[0] + secrets.randbelow(OWN_USERS[1])
            chosen = next(
                (user for user in (own, NOBODY) if works(partial(self._become, user))), None
            )
            if chosen is not None:
                os.chown(self.scratch, chosen, chosen)
                if "mount" not in self.kinds:
                    Path(self.folder).chmod(0o711)
                self._become(chosen)
            self.own_user = chosen == own
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)

    def _become(self, user: int) -> None:
        """Become the user. Raises OSError if that is not allowed, or if the user could not read
        Python's own files.
        """
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        next(Path(os.__file__).parent.iterdir())

    def report(self) -> dict[str, bool]:
        """{guard: whether it is in force}. The last three are tried in a child, because they would
        restrict the server itself.
        """
        self.in_force = {
            f"{kind}_namespace": kind in self.kinds for kind in kernel.NEW_NAMESPACES
        } | {
            "no_capabilities": True,
            "no_new_privileges": True,
            "not_root": os.geteuid() != 0,
            "process_limit": self.own_user or ("user" in self.kinds and os.geteuid() != 0),
            "scratch_limit": "mount" in self.kinds,
            "limits": True,
            "empty_environment": not set(os.environ) - {"LC_CTYPE"},
            "seccomp": works(lambda: seccomp.install(os.getpid(), False)),
            "landlock": landlock.abi() > 0 and works(self._landlock),
        }
        force = self.in_force
        force["network"] = force["network_namespace"] or force["seccomp"]
        force["files"] = force["mount_namespace"] or force["landlock"]
        return force

    def _landlock(self) -> None:
        landlock.restrict(self.readable, namespaces.DEVICES, self.scratch)

    def hold(self, limits: dict) -> None:
        """Called in the child right before its code: limits, Landlock, seccomp. Raises if a guard
        that was available at the start fails.
        """
        _limit(limits, self.in_force["process_limit"])
        if self.in_force["landlock"]:
            self._landlock()
        if self.in_force["seccomp"]:
            seccomp.install(os.getpid(), limits["processes"] > 1)


def _limit(limits: dict, processes: bool) -> None:
    """Set the kernel's own limits (setrlimit(2)), hard limits included."""
    values = {
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_CPU: int(limits["seconds"]) + 2,
        resource.RLIMIT_FSIZE: limits["file"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: 8 << 20,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if processes:  # two are the server and this child
        values[resource.RLIMIT_NPROC] = 2 + THREADS + limits["processes"]
    for name, value in values.items():
        most = resource.getrlimit(name)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(name, (value, value))
