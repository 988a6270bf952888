"""Landlock: which paths may be read or written, whatever the file modes say. See landlock(7)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from kernel import checked, syscall

CREATE, ADD, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# Remove; make directory, file or symlink; refer.
MADE_IN_SCRATCH = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


def abi() -> int:
    """The version of the kernel's Landlock ABI; 0 if it has none."""
    try:
        return syscall(CREATE, None, 0, 1, what="landlock")
    except OSError:
        return 0


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, handle), 12)
        syscall(ADD, ruleset, 1, rule, 0, what=f"landlock rule for {path}")
    finally:
        os.close(handle)


def restrict(readable: Sequence[str], devices: Sequence[str], scratch: str) -> None:
    """From now on this process can only read `readable` and `devices`, and only write to `devices`
    and in `scratch`.

    Also denies TCP (ABI version 4), and signals and abstract sockets to processes outside (6).
    Needs no_new_privs.
    """
    version = abi()
    handled = RIGHTS[min(version, max(RIGHTS))]
    attributes = struct.pack("=QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall(
        CREATE, ctypes.create_string_buffer(attributes, 24), size, 0, what="landlock ruleset"
    )
    try:
        for path in readable:
            _allow(ruleset, path, handled & (EXECUTE | READ_FILE | READ_DIR))
        for path in devices:
            _allow(ruleset, path, handled & (READ_FILE | WRITE_FILE))
        inside = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | MADE_IN_SCRATCH
        _allow(ruleset, str(Path(scratch)), handled & inside)
        checked(syscall(RESTRICT, ruleset, 0, what="landlock"), "landlock")
    finally:
        os.close(ruleset)
