"""The artifact store: folders of files, addressed by the SHA-256 of their manifest, never changed.

Model files are safetensors; anything that could be a pickle is refused on registration.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from apps.registry.models import Artifact, ModelVersion
from workers.lib.folder_digest import entry as entry_of
from workers.lib.folder_digest import folder_digest, manifest_digest

SAFE_SUFFIXES = frozenset({".safetensors", ".json", ".jsonl", ".txt", ".md", ".model", ".jinja"})
MAX_FILES = 1000


class ArtifactError(Exception):
    """A folder that cannot be stored or read; the message is a sentence for the screen."""


def manifest(folder: Path) -> list[dict]:
    """[{path, size, sha256}] of the folder's files, sorted by path. Raises ArtifactError for what is not safe."""
    if not folder.is_dir():
        raise ArtifactError(f"The folder {folder} is missing.")
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    if not files:
        raise ArtifactError(f"The folder {folder} is empty.")
    if len(files) > MAX_FILES:
        raise ArtifactError(f"The folder {folder} holds {len(files)} files; {MAX_FILES} is the most.")
    return [_entry(folder, path) for path in files]


def _entry(folder: Path, path: Path) -> dict:
    name = path.relative_to(folder).as_posix()
    if path.is_symlink() or not path.is_file():
        raise ArtifactError(f"{name} is not a plain file; links are not stored.")
    if path.suffix not in SAFE_SUFFIXES:
        raise ArtifactError(f"{name} is not safetensors, JSON or text; files that can hold code are not stored.")
    return entry_of(folder, path)


def store_folder(folder: Path) -> Artifact:
    """Copies the folder into the store. The same content twice is one artifact. Raises ArtifactError."""
    files = manifest(folder)
    digest = manifest_digest(files)
    if not _home(digest).is_dir():
        _copy(folder, files, _home(digest))
    artifact, _ = Artifact.objects.get_or_create(
        digest=digest, defaults={"files": files, "size": sum(entry["size"] for entry in files)}
    )
    return artifact


def local_path(artifact: Artifact) -> Path:
    """The artifact as a folder on this machine. Raises ArtifactError where it is missing or incomplete."""
    home = _home(artifact.digest)
    for entry in artifact.files:
        path = home / entry["path"]
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise ArtifactError(f"Artifact {artifact} lacks {entry['path']} under {home}. Restore the data folder.")
    return home


def unchanged_path(artifact: Artifact) -> Path:
    """`local_path`, after all of its files were hashed again. Raises ArtifactError also where one was altered."""
    home = local_path(artifact)
    if folder_digest(home) != artifact.digest:
        raise ArtifactError(f"The files of artifact {artifact} under {home} were altered. Restore the data folder.")
    return home


def free_with(versions: QuerySet[ModelVersion]) -> Callable[[], None]:
    """For model versions that are about to go: frees, once they are gone, the artifacts that no other version has."""
    digests = [pk for pk in versions.values_list("artifact", flat=True) if pk]

    def free() -> None:
        gone = list(
            Artifact.objects.filter(pk__in=digests, model_versions=None)
            .select_for_update(of=("self",))
            .values_list("pk", flat=True)
        )
        Artifact.objects.filter(pk__in=gone).delete()
        transaction.on_commit(lambda: [shutil.rmtree(_home(digest), ignore_errors=True) for digest in gone])

    return free


def _home(digest: str) -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "artifacts" / digest


def _copy(folder: Path, files: list[dict], home: Path) -> None:
    """Complete or absent: written beside, synced, renamed."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="incoming-", dir=home.parent))
    try:
        for entry in files:
            target = beside / entry["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / entry["path"], target)
            _sync(target)
        beside.rename(home)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not home.is_dir():
            raise ArtifactError(f"The artifact could not be stored: {error.strerror}.") from error


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
