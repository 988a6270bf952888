"""Moves artifacts from one store to another, when an installation starts or stops using a
bucket.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.registry.artifacts import verified
from apps.registry.models import Artifact


@dataclass
class Moved:
    """Numbers of artifacts by result; `failed` are sentences."""

    copied: int = 0
    there: int = 0
    failed: list[str] = field(default_factory=list)


def move_all(source: Any, target: Any, *, remove: bool, said: Callable[[str], None]) -> Moved:
    """Move every artifact in the database. Artifacts that are intact in `target` are not sent
    again, so an interrupted move can be continued. Each file is verified when it is read and again
    in `target`; only then, if `remove` is set, it is removed from `source`.
    """
    found = Moved()
    artifacts = Artifact.objects.order_by("created_at", "digest")
    count = artifacts.count()
    for number, artifact in enumerate(artifacts.iterator(), start=1):
        try:
            sent = sum(_copy(artifact, entry, source, target) for entry in artifact.files)
            if remove:
                source.remove_folder(artifact.digest, [entry["path"] for entry in artifact.files])
        except OSError as error:
            found.failed.append(f"{artifact}: {error.strerror or error}")
            said(f"{number} of {count}: {found.failed[-1]}")
            continue
        found.copied += bool(sent)
        found.there += not sent
        said(f"{number} of {count}: {artifact} {f'copied ({sent} files)' if sent else 'is there'}")
    return found


def _copy(artifact: Artifact, entry: dict, source: Any, target: Any) -> bool:
    """Returns False if it already exists. Raises OSError."""
    name = f"{artifact.digest}/{entry['path']}"
    if target.has(name, entry["size"]) and _is_whole(entry, target, name):
        return False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with path.open("wb") as file:
            for data in verified(entry, source.chunks(name)):
                file.write(data)
        target.put(name, path)
    for _ in verified(entry, target.chunks(name)):
        pass
    return True


def _is_whole(entry: dict, target: Any, name: str) -> bool:
    try:
        for _ in verified(entry, target.chunks(name)):
            pass
    except OSError:
        return False
    return True
