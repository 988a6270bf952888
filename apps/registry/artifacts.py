"""The artifact store: immutable folders of files, addressed by the SHA-256 of their manifest.

They are stored in `stores.store()`. Jobs read a folder on this machine: the store itself if that is
the data folder, otherwise a copy that is fetched once and verified. Model files are safetensors;
anything that could be a pickle is refused.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from apps.core.bus import Question, ask, on
from apps.core.locks import NameLock, acquire_named
from apps.core.projects.deletion import Deleting
from apps.core.stores import StoreError, store
from apps.core.whole_folders import (
    alone,
    beside,
    differs,
    fetch_file,
    problem_of,
    read,
    require_space,
    sync,
    verified,
)
from apps.registry.models import Artifact, MergedModel, ModelVersion
from workers.lib.folder_digest import entry as entry_of
from workers.lib.folder_digest import manifest_digest

log = logging.getLogger(__name__)
SAFE_SUFFIXES = frozenset({".safetensors", ".json", ".jsonl", ".txt", ".md", ".model", ".jinja"})
MAX_FILES = 1000


class NeededArtifacts(Question[set[str]]):
    """Those of these artifacts that are needed although no model version has them."""

    digests: Collection[str]


class ArtifactError(Exception):
    """A folder that cannot be stored or read. The message is a sentence for the page."""


def manifest(folder: Path) -> list[dict]:
    """[{path, size, sha256}] of the folder's files, sorted by path. Raises ArtifactError for unsafe
    files.
    """
    if not folder.is_dir():
        raise ArtifactError(f"The folder {folder} is missing.")
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    if not files:
        raise ArtifactError(f"The folder {folder} is empty.")
    if len(files) > MAX_FILES:
        raise ArtifactError(
            f"The folder {folder} holds {len(files)} files; at most {MAX_FILES} are allowed."
        )
    return [_entry(folder, path) for path in files]


def _entry(folder: Path, path: Path) -> dict:
    name = path.relative_to(folder).as_posix()
    if path.is_symlink() or not path.is_file():
        raise ArtifactError(f"{name} is not a plain file; links are not stored.")
    if path.suffix not in SAFE_SUFFIXES:
        raise ArtifactError(
            f"{name} is not safetensors, JSON or text; files that can hold code are not stored."
        )
    return entry_of(folder, path)


def store_folder(folder: Path) -> Artifact:
    """Copy the folder into the store. The same content again gives the same artifact; files it has
    lost are replaced. Raises ArtifactError.

    Within a transaction it is safe from garbage collection until the transaction ends: create its
    model version there.
    """
    files = manifest(folder)
    digest = manifest_digest(files)
    try:
        _keep_here(folder, digest, files)
        _upload(digest, files)  # slow work comes before the lock
        with transaction.atomic():
            acquire_named(NameLock.ARTIFACT, digest)
            _keep_here(folder, digest, files)
            _upload(digest, files)
            size = sum(entry["size"] for entry in files)
            return Artifact.objects.get_or_create(
                digest=digest, defaults={"files": files, "size": size}
            )[0]
    except OSError as error:
        raise ArtifactError(f"The artifact could not be stored: {_why(error)}.") from error


def local_path(artifact: Artifact) -> Path:
    """The artifact as a folder on this machine, fetched if it is not here; every file's hash is
    verified. Raises ArtifactError.
    """
    home = _home(artifact.digest)
    if not (problem := problem_of(home, artifact.files)):
        return home
    if store().is_here:
        raise ArtifactError(f"Artifact {artifact} {problem} under {home}. Restore the data folder.")
    with alone(home):
        if problem_of(home, artifact.files):
            fetch(artifact, home)
    return home


def require_there(artifact: Artifact) -> None:
    """Check that all files exist. If the store is this machine, they are verified; a bucket is only
    asked whether it has them, and one that does not answer proves nothing. Raises ArtifactError if
    files are missing or altered.
    """
    home, far = _home(artifact.digest), store()
    problem = problem_of(home, artifact.files)
    if problem and not far.is_here:
        try:
            lost = (
                one["path"]
                for one in artifact.files
                if not far.has(f"{artifact.digest}/{one['path']}", one["size"])
            )
            problem = next((f"lacks {path}" for path in lost), "")
        except StoreError as error:
            log.warning("Whether the artifact %s is there is not known: %s", artifact, error)
            return
    if problem:
        raise ArtifactError(f"Artifact {artifact} {problem}.")


def read_file(artifact: Artifact, name: str) -> bytes:
    """One file, verified, without downloading the others. Raises ArtifactError."""
    return b"".join(chunks_of(artifact, name))


def chunks_of(artifact: Artifact, name: str) -> Iterator[bytes]:
    """A file in chunks, from this machine or the store. Raises ArtifactError, before the last chunk
    at the latest, if it differs from what was stored.
    """
    entry = next((entry for entry in artifact.files if entry["path"] == name), None)
    if entry is None:
        raise ArtifactError(f"Artifact {artifact} has no file {name}.")
    try:
        home, held = _home(artifact.digest), b""
        path, here = home / name, store().is_here or not differs(home, entry)
        for data in verified(
            entry, read(path) if here else store().chunks(f"{artifact.digest}/{name}")
        ):
            if held:
                yield held
            held = data
        yield held
    except OSError as error:
        raise ArtifactError(
            f"{name} of artifact {artifact} cannot be read: {_why(error)}."
        ) from error


@on(Deleting[MergedModel])
def free_merged_files(event: Deleting[MergedModel]) -> Callable[[], None]:
    return free_with(ModelVersion.objects.filter(merged__in=event.rows))


@on(Deleting[ModelVersion])
def free_files(event: Deleting[ModelVersion]) -> Callable[[], None]:
    return free_with(event.rows)


def free_with(versions: QuerySet[ModelVersion]) -> Callable[[], None]:
    """The returned function frees, after the deletion, the artifacts that nothing else needs."""
    made = versions.values_list("artifact", "merged__artifact")
    digests = {pk for both in made for pk in both if pk}

    def free() -> None:
        for digest in sorted(digests):
            acquire_named(NameLock.ARTIFACT, digest)
        unused = Artifact.objects.filter(pk__in=digests, model_versions=None, merged_models=None)
        gone = dict(unused.select_for_update(of=("self",)).values_list("pk", "files"))
        needed = set().union(*ask(NeededArtifacts(gone.keys())))
        gone = {digest: gone[digest] for digest in gone.keys() - needed}
        Artifact.objects.filter(pk__in=gone).delete()
        transaction.on_commit(lambda: [_remove(digest, files) for digest, files in gone.items()])

    return free


def _remove(digest: str, files: list[dict]) -> None:
    """Remove the files, unless the same content was stored again. Files that cannot be removed
    waste space, but do not fail the deletion.
    """
    with transaction.atomic():
        acquire_named(NameLock.ARTIFACT, digest)
        if Artifact.objects.filter(pk=digest).exists():
            return
        shutil.rmtree(_home(digest), ignore_errors=True)
        try:
            store().remove_folder(digest, [entry["path"] for entry in files])
        except OSError as error:
            log.warning(
                "The artifact %s could not be removed from the store: %s", digest[:12], error
            )


def _home(digest: str) -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "artifacts" / digest


def _keep_here(folder: Path, digest: str, files: list[dict]) -> None:
    """Copy a folder so that it is either complete or absent: written next to the target, synced,
    then renamed.
    """
    home = _home(digest)
    if not problem_of(home, files):
        return
    with alone(home):
        if not problem_of(home, files):  # somebody else has stored it meanwhile
            return
        with beside(home) as made:
            for entry in files:
                target = made / entry["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / entry["path"], target)
                sync(target)


def _upload(digest: str, files: list[dict]) -> None:
    """Existing files stay: an interrupted upload continues with the file at which it stopped."""
    far = store()
    for entry in () if far.is_here else files:
        name = f"{digest}/{entry['path']}"
        if not far.has(name, entry["size"]):
            far.put(name, _home(digest) / entry["path"])


def fetch(artifact: Artifact, home: Path) -> None:
    """Fetch an artifact into a folder. An incomplete one is never visible under the artifact's
    name. Raises ArtifactError.
    """
    try:
        require_space(home, artifact.size)
        with beside(home) as folder:
            for entry in artifact.files:
                fetch_file(f"{artifact.digest}/{entry['path']}", entry, folder)
    except OSError as error:
        raise ArtifactError(f"Artifact {artifact} could not be fetched: {_why(error)}.") from error


def _why(error: OSError) -> str:
    return error.strerror or str(error)
