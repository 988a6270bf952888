"""System calls that Python does not provide, through ctypes, and their constants."""

from __future__ import annotations

import ctypes
import os
import platform

MACHINE = platform.machine()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

NEW_NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = (
    1,
    4,
    24,
    38,
    22,
)
CAPSET = {"x86_64": 126, "aarch64": 91}.get(MACHINE)
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE)


def checked(result: int, what: str) -> int:
    """The result of a C call; raises OSError with its errno and its purpose."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int | None, *arguments: object, what: str = "syscall") -> int:
    """A system call by number. Raises OSError if it fails or its number on this machine is
    unknown.
    """
    if number is None:
        raise OSError(f"{what}: not known on {MACHINE}")
    values = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return checked(_libc.syscall(ctypes.c_long(number), *values), what)


def prctl(option: int, *arguments: object) -> int:
    values = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in arguments]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    return checked(_libc.prctl(option, *values), f"prctl {option}")


def unshare(flags: int) -> None:
    checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [item.encode() if item else None for item in (source, target, kind)]
    checked(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def unmount(target: str) -> None:
    checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def drop_capabilities() -> None:
    """Drop all capabilities for good. See capabilities(7)."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except (
            OSError
        ):  # beyond the last capability, or not permitted: then only the sets below matter
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    syscall(CAPSET, header, (ctypes.c_uint32 * 6)(), what="capset")
