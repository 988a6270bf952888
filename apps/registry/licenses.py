"""Under which license a base model's folder says that it may be used. Read for people; nothing is
decided by it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from apps.registry.bases import find_base
from apps.registry.models import ModelVersion

MOST = 64 * 1024  # bytes that are read of a file
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)
NAMED = re.compile(r"^license(?:_name)?: *[\"']?([\w .+-]{1,60}?)[\"']? *$", re.MULTILINE)
FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
LONGEST = 60


def license_of(version: ModelVersion) -> str | None:
    """As its model card names it, else the first line of its license; "" where it says nothing,
    None where this machine does not have the folder.
    """
    folder = find_base(version)
    if folder is None:
        return None
    if card := FRONT_MATTER.match(_read(folder / "README.md")):
        names = [name for name in NAMED.findall(card[1]) if name != "other"]
        if names:
            return names[-1]
    lines = (line.strip() for name in FILES for line in _read(folder / name).splitlines())
    return next((line[:LONGEST] for line in lines if line), "")


def _read(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MOST).decode(errors="replace").replace("\r\n", "\n")
    return ""
