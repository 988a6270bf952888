"""What Flywheel writes is for the user that it runs as. Started by root, PostgreSQL runs as another
user (flywheel.embedded), who may pass through the data folder and see nothing else in it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = 0o077
# Folders that Flywheel makes in the data folder, which may be one that holds other things, too.
OURS = (
    "artifacts",
    "demo",
    "endpoint",
    "environments",
    "fetched",
    "jobs",
    "kept",
    "logs",
    "models",
    "receiving",
    "valkey",
)


def restrict_umask() -> None:
    """For this process and those that it starts."""
    os.umask(os.umask(OTHERS) | OTHERS)


def opener(path: str, flags: int) -> int:
    """For `open`, in a process whose umask is not ours to change."""
    return os.open(path, flags, 0o600)


def make_data_folder(folder: Path) -> None:
    """Makes it, or closes one that was made open to all. What its owner allows a group stays, and
    so does whether others may pass through: where root's PostgreSQL keeps its files depends on
    that. Raises OSError.
    """
    if not folder.exists():
        _make_parents(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711 if os.getuid() == 0 else 0o700)
        return
    _take_away(folder, 0o006 if os.getuid() == 0 else 0o007)
    for name in OURS:
        _take_away(folder / name, 0o007)


def _make_parents(folder: Path) -> None:
    """As `mkdir -p` does, whatever the umask."""
    if not folder.exists():
        _make_parents(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def _take_away(path: Path, bits: int) -> None:
    with suppress(OSError):  # it may be gone, or a volume's folder belong to another user
        found = path.lstat()
        is_ours = found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode)
        is_shared = found.st_mode & stat.S_ISVTX  # as /tmp is
        if is_ours and not is_shared and found.st_mode & bits:
            path.chmod(stat.S_IMODE(found.st_mode) & ~bits)
