"""Runs on the machine of a managed server with its own data folder: fetches adapters into a bounded
cache, and verifies them.

From the store, if that is a bucket; otherwise by this installation's signed download.
"""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Self

import httpx2
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from apps.core import whole_folders
from apps.core.bus import Question, ask
from apps.core.companion import Companion
from apps.core.data_folder import identity
from apps.core.stores import store
from apps.registry import artifacts
from apps.registry.artifacts import ArtifactError
from apps.registry.models import AdapterCopy, Artifact, ModelVersion, ServerRun
from apps.registry.servers import address_of
from workers.lib.outgoing import Bounds, client
from workers.lib.serving import adapter_folders

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
ANSWERS_S = 60.0  # maximum time without receiving a byte
LOADS = timedelta(
    minutes=10
)  # time within which a server loads an adapter after it was told where it is
SPARE = 64 * 2**20  # extra bytes of a download: the model card and the archive's own overhead
UNREAD = (OSError, ValueError, httpx2.HTTPError, tarfile.TarError)


class DownloadAddress(Question[str]):
    """An address from which a version's files can be downloaded once."""

    version: ModelVersion


class Fetcher(Companion):
    """Runs next to a managed server: reports the data folder of its machine, and fetches what is
    requested (`copies.ask`).
    """

    def __init__(self, run: ServerRun) -> None:
        # A download may be waiting for its next byte.
        super().__init__(f"fetcher of {run.pk}", LOOK_EVERY_S, leave_after_s=5)
        self.run = run

    def __enter__(self) -> Self:
        self.run.copies.all().delete()  # copies on a machine that ran the server earlier
        here = {"data_folder": identity(), "data_path": str(settings.FLYWHEEL_DATA_DIR)}
        ServerRun.objects.held_by(self.run).update(**here)
        return super().__enter__()

    def step(self) -> None:
        try:
            self._fetch_wanted()
        except (DatabaseError, InterfaceError) as error:
            log.warning("What the server of run %s needs is not known: %s", self.run.pk, error)
            connection.close()

    def _fetch_wanted(self) -> None:
        wanted = self.run.copies.filter(path="", problem="").select_related(
            "version__artifact", "version__project"
        )
        for copy in wanted.order_by("asked_at"):
            try:
                changes = {"path": str(fetched(copy.version, self.over.is_set))}
            except ArtifactError as error:
                changes = {"problem": str(error)[:1000]}
            except (DatabaseError, InterfaceError):
                raise
            except (
                Exception
            ) as error:  # thread boundary: the error is reported to whoever requested the copy
                log.exception("%s was not downloaded", copy.version)
                changes = {"problem": f"{type(error).__name__}: {error}"[:1000]}
            if self.over.is_set():
                return
            held = ServerRun.objects.held_by(self.run)
            AdapterCopy.objects.filter(pk=copy.pk, run__in=held).update(**changes)


def cache() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "fetched"


def fetched(version: ModelVersion, stopped: Callable[[], bool] = lambda: False) -> Path:
    """The adapter's complete folder on this machine. One download at a time. Raises
    ArtifactError.
    """
    artifact = version.artifact
    home = cache() / artifact.digest
    with whole_folders.alone(cache() / "all"):
        if whole_folders.problem_of(home, artifact.files):
            make_room(home, artifact.size)
            if store().is_here:
                _download(version, home, stopped)
            else:
                artifacts.fetch(artifact, home)
        os.utime(home)
    return home


# Downloading


def _download(version: ModelVersion, home: Path, stopped: Callable[[], bool]) -> None:
    artifact = version.artifact
    try:
        whole_folders.require_space(home, artifact.size)
        with (
            whole_folders.beside(home) as folder,
            _opened(ask(DownloadAddress(version))[0], artifact.size + SPARE) as answer,
        ):
            _unpack(answer, artifact, folder, stopped)
    except UNREAD as error:
        raise ArtifactError(f"the download failed: {_why(error)}.") from error


@contextmanager
def _opened(url: str, most: int) -> Iterator[_Answer]:
    """Open an address of this installation, as configured in its own settings. Raises OSError with
    advice, httpx2.HTTPError.
    """
    at = settings.FLYWHEEL_URL
    with client(allow_private=True, bounds=Bounds(most), timeout=ANSWERS_S) as http:
        try:
            answer = http.send(http.build_request("GET", url), stream=True)
        except (httpx2.HTTPError, OSError) as error:
            raise OSError(
                f"{at} does not answer from this machine ({error}). Set FLYWHEEL_URL for its worker"
                " to an address of Flywheel that it reaches"
            ) from error
        try:
            if answer.status_code != 200:
                hint = (
                    ", so SECRET_KEY is another one on this machine"
                    if answer.status_code == 403
                    else ""
                )
                raise OSError(f"{at} refused it (HTTP {answer.status_code}{hint})")
            yield _Answer(answer.iter_raw())
        finally:
            answer.close()


class _Answer:
    """A stream for `tarfile`, which accepts reads that return less than it asked for."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.parts = parts

    def read(self, size: int) -> bytes:
        return next(self.parts, b"")


def _unpack(answer: Any, artifact: Artifact, folder: Path, stopped: Callable[[], bool]) -> None:
    """Unpack only the announced files and verify their hashes; nothing else is written. Raises
    UNREAD.
    """
    missing = {entry["path"]: entry for entry in artifact.files}
    with tarfile.open(fileobj=answer, mode="r|") as archive:
        for member in archive:
            entry = missing.pop(member.name, None) if member.isfile() else None
            if entry:
                whole_folders.write(folder, entry, _chunks(archive.extractfile(member), stopped))
    if missing:
        raise OSError(f"{min(missing)} was not in it")


def _chunks(file: IO[bytes] | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
    assert file is not None
    while data := file.read(2**20):
        if stopped():
            raise OSError("the server was stopped")
        yield data


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# Bounding the cache


def make_room(home: Path, size: int) -> None:
    """Evict the least recently used folders, but none that a server has loaded or is about to load.
    Call it under the cache's lock. Raises ArtifactError.
    """
    most = settings.FLYWHEEL_FETCHED_GIB * 2**30
    there = [path for path in cache().iterdir() if path.is_dir() and path != home]
    for path in [
        path for path in there if path.name.startswith("incoming-")
    ]:  # left over from a process that died: nobody else fetches now
        shutil.rmtree(path, ignore_errors=True)
        there.remove(path)
    used, total = in_use(), sum(map(_size, there))
    for path in sorted(there, key=lambda path: path.stat().st_mtime):
        if total + size <= most:
            return
        if str(path) not in used:
            total -= _size(path)
            shutil.rmtree(path, ignore_errors=True)
    if total + size > most:
        raise ArtifactError(
            f"its cache of adapters has room for {most / 2**30:g} GiB, of which servers use"
            f" {total / 2**30:.3g}. Unload some there, or raise FLYWHEEL_FETCHED_GIB for its"
            " worker."
        )


def in_use() -> set[str]:
    """Folders in this machine's cache that its servers have loaded, or have just been told to
    load.
    """
    used: set[str] = set()
    for run in ServerRun.objects.active().filter(data_folder=identity()).select_related("server"):
        copies = run.copies.exclude(path="")
        loaded = adapter_folders(address_of(run.server)) if run.server.base_url else set()
        lately = copies if loaded is None else copies.filter(asked_at__gt=timezone.now() - LOADS)
        used |= {*(loaded or ()), *lately.values_list("path", flat=True)}
    return used


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
