"""The wall clock of all processes of an installation, moved by a library that is loaded before
libc (clock.c). libfaketime does the same, but breaks Python's `time.sleep`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


def environment(folder: Path) -> dict[str, str] | None:
    """What processes need for it; None where there is no C compiler. `move` sets the clock."""
    folder.mkdir()
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    options = ["-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(["cc", *options], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    move(folder, 0)
    return {"LD_PRELOAD": str(library), "FLYWHEEL_CHAOS_CLOCK": str(folder / "ahead")}


def move(folder: Path, ahead_s: int) -> None:
    path = folder / "ahead"
    path.touch()
    with path.open("r+b") as file:
        file.write(ahead_s.to_bytes(8, "little", signed=True))
