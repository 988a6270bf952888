"""Of which commit this code is. A checkout says it by its .git, which is read without git: that may
be missing, or refuse a folder of another user. An image has these files, too (.dockerignore), and a
wheel a file that its build made (hatch_build.py).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from flywheel.places import CARRIED, CODE, is_installed

SHOWN = 9
HASH = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")


@cache
def commit() -> str:
    """ "" where nobody knows."""
    found = _text(CARRIED / "commit") if is_installed() else of_checkout(CODE)
    return found if HASH.fullmatch(found) else ""


def described(version: str) -> str:
    return f"{version} ({commit()[:SHOWN] or 'commit unknown'})"


def of_checkout(code: Path) -> str:
    folder = _git_folder(code / ".git")
    head = _text(folder / "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    shared = folder / (_text(folder / "commondir") or ".")  # of a worktree
    return _text(folder / name) or _text(shared / name) or _packed(shared, name)


def _git_folder(path: Path) -> Path:
    """Of a worktree or a submodule, `.git` is a file that names it."""
    return path.parent / _text(path).removeprefix("gitdir: ") if path.is_file() else path


def _packed(folder: Path, name: str) -> str:
    for line in _text(folder / "packed-refs").splitlines():
        found, _, ref = line.partition(" ")
        if ref == name:
            return found
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
