"""Uploaded files that wait for a decision in the data folder, and that nobody came back for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT_S = 2 * 24 * 3600


def remove_leftovers(folder: Path, is_awaited: Callable[[Path], bool]) -> None:
    """Removes the files and folders in it that are older than KEPT_S. Other requests may be doing
    the same.
    """
    for old in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > KEPT_S and not is_awaited(old):
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
