"""The files of a package: read from a folder, identified by their digest, and written to a folder.
Only text and small data; standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path, PurePosixPath

MAX_FILES, MAX_BYTES = 500, 2 * 2**20
SKIPPED = {"__pycache__", "node_modules"}
Files = dict[str, str]
"""{path: content in base64}, below the package's own folder."""


class PackageProblem(Exception):
    """Why something is not a usable package: what is wrong, how to fix it, and where in its
    files.
    """

    def __init__(self, text: str, do: str = "", where: str = "") -> None:
        super().__init__(text)
        self.text, self.do, self.where = text, do, where


def is_skipped(path: PurePosixPath) -> bool:
    """Caches and hidden files are not part of a package."""
    return path.suffix in (".pyc", ".pyo") or any(
        part in SKIPPED or part.startswith(".") for part in path.parts
    )


def read_files(folder: Path) -> Files:
    """Raises PackageProblem for links, and for too many or too large files."""
    found: Files = {}
    size = 0
    for home, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_skipped(PurePosixPath(name)))
        for name in sorted(names):
            path = Path(home) / name
            inner = PurePosixPath(path.relative_to(folder).as_posix())
            if is_skipped(inner):
                continue
            if path.is_symlink() or not path.is_file():
                raise PackageProblem(
                    f"{inner} is a link or no plain file.", "Replace it by the file itself."
                )
            size += path.stat().st_size
            if size > MAX_BYTES or len(found) >= MAX_FILES:
                raise PackageProblem(
                    f"The package has more than {MAX_FILES} files or {MAX_BYTES // 2**20} MB.",
                    "Keep what it needs to run; large data belongs on a server that a tool asks.",
                )
            found[str(inner)] = base64.b64encode(path.read_bytes()).decode()
    return found


def digest_of(files: Files) -> str:
    """SHA-256 of the files' names and contents."""
    named = sorted(
        (path, hashlib.sha256(base64.b64decode(content)).hexdigest())
        for path, content in files.items()
    )
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def write_files(files: Files, folder: Path) -> None:
    """Raises PackageProblem for a path outside of the folder."""
    for path, content in files.items():
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise PackageProblem(f"The file “{path[:200]}” would not lie in the package.")
        target = folder / pure
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(content))


def text_of(content: str) -> str:
    """A file's content for people."""
    try:
        return base64.b64decode(content).decode()
    except UnicodeDecodeError:
        return f"({len(content) * 3 // 4:,} bytes that are not text)"
