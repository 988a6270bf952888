"""The digest of a folder of files: SHA-256 of its manifest, [{path, size, sha256}] sorted by path.
Only the standard library.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry(folder: Path, path: Path) -> dict:
    return {
        "path": path.relative_to(folder).as_posix(),
        "size": path.stat().st_size,
        "sha256": sha256_of(path),
    }


def manifest_digest(files: list[dict]) -> str:
    return hashlib.sha256(
        json.dumps(files, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def folder_digest(folder: Path) -> str:
    """Raises OSError."""
    return manifest_digest(
        [entry(folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
    )
