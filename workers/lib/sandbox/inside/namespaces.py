"""A separate root file system: a tmpfs with Python's libraries bound read-only, a scratch folder,
and nothing else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kernel

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
ROOT_BYTES = 1 << 20
SCRATCH_BYTES = 64 << 20
SCRATCH = "/scratch"


def libraries(packages: str) -> list[str]:
    """The paths that Python needs for imports: its own folder, the system's shared libraries, the
    operator's packages.
    """
    base = Path(sys.base_prefix)
    wanted = [
        str(base / "lib"),
        os.path.realpath(sys.executable),
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        packages,
    ]
    return [path for path in dict.fromkeys(wanted) if path and Path(path).exists()]


def enter(kinds: tuple[str, ...]) -> None:
    """Enter new namespaces of these kinds. In a new user namespace, this user keeps its id and has
    all privileges.
    """
    user, group = os.geteuid(), os.getegid()
    flags = 0
    for kind in kinds:
        flags |= kernel.NEW_NAMESPACES[kind]
    kernel.unshare(flags)
    if "user" in kinds:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _read_only(target: str, devices: bool) -> None:
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | (0 if devices else kernel.MS_NODEV)
    attributes = (kernel.ctypes.c_uint64 * 4)(
        flags, 0, 0, 0
    )  # struct mount_attr; these flags have the same values
    recursive, here, number = 0x8000, -100, 442
    kernel.syscall(
        number, here, target.encode(), recursive, attributes, 32, what=f"mount_setattr {target}"
    )


def _bind(source: str, root: str) -> None:
    """Provide the same path below `root`: a link stays a link, anything else is bound read-only."""
    target = Path(root + source)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if target.exists() or target.is_symlink():
        return
    if Path(source).is_symlink():
        target.symlink_to(Path(source).readlink())
        return
    if Path(source).is_dir():
        target.mkdir(mode=0o755)
    else:
        target.touch()
    kernel.mount(source, str(target), None, kernel.MS_BIND | kernel.MS_REC)
    if source not in DEVICES:
        _read_only(str(target), devices=False)


def new_root(root: str, readable: list[str]) -> None:
    """Make the folder `root` the root of this process's file system, with `readable` and SCRATCH in
    it.

    Needs its own mount namespace. Raises OSError if the kernel or the container does not allow it.
    """
    os.umask(0o022)
    kernel.mount("", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    guarded = kernel.MS_NOSUID
    kernel.mount("tmpfs", root, "tmpfs", guarded, f"size={ROOT_BYTES},nr_inodes=512,mode=0755")
    for source in (*readable, *DEVICES):
        _bind(source, root)
    Path(root + SCRATCH).mkdir()
    kernel.mount(
        "tmpfs",
        root + SCRATCH,
        "tmpfs",
        guarded | kernel.MS_NODEV,
        f"size={SCRATCH_BYTES},nr_inodes=4096,mode=0700",
    )
    os.chdir(root)
    kernel.syscall(kernel.PIVOT_ROOT, b".", b".", what="pivot_root")
    kernel.unmount(".")
    os.chdir("/")
    kernel.mount(
        "", "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    )
