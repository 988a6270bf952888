"""The identity of this process's data folder: machines share a disk if they see the same one."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from django.conf import settings

FILE = "folder_id"


def identity() -> str:
    """Created once and kept in the data folder. It includes the file's inode, so that a copy of the
    folder has another identity.
    """
    path = Path(settings.FLYWHEEL_DATA_DIR) / FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{FILE}.{uuid4().hex}")
        beside.write_text(uuid4().hex)
        try:
            os.link(beside, path)  # complete or absent; the first process wins
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    return f"{path.read_text().strip()}-{path.stat().st_ino}"
