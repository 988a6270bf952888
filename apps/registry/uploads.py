"""Uploads of adapters in parts. A part is in the store once it is acknowledged, so an interrupted
upload can continue from any machine.

Parts have a fixed size and may arrive in any order, concurrently, and repeatedly. Whole files are
verified and checked before a model version is created.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from msgspec import Meta, Struct

from apps.core.backups.parts import File, Part, Parts
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.models import Project
from apps.core.projects.deletion import Deleting
from apps.core.stores import store
from apps.registry.actions import ModelError, digest_on
from apps.registry.models import AdapterPart, AdapterUpload, ModelVersion
from apps.registry.moving import put_chunks
from apps.registry.trained_elsewhere import (
    CONFIG,
    MAX_ADAPTER,
    MAX_CONFIG,
    WEIGHTS,
    register_checked,
)
from workers.lib.folder_digest import manifest_digest, sha256_of

log = logging.getLogger(__name__)
PART = 8 * 2**20
LASTS = timedelta(days=2)
MOST = 20  # concurrent uploads per project
LARGEST = {CONFIG: MAX_CONFIG, WEIGHTS: MAX_ADAPTER}


class UploadError(Rejected):
    """An upload that cannot continue; the API answers 409."""


class Announced(Struct, forbid_unknown_fields=True, kw_only=True):
    path: Annotated[str, Meta(max_length=80)]
    size: Annotated[int, Meta(ge=1)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


def begin(
    *,
    project: Project,
    name: str,
    parent: ModelVersion,
    files: list[dict],
    by: Any,
    confirm_base: bool = False,
) -> AdapterUpload:
    """Begin an upload of these files, or return the unfinished one. `confirm_base`: as in
    `register_checked`. Raises ModelError, UploadError.
    """
    files = sorted(files, key=lambda file: file["path"])
    if [file["path"] for file in files] != [CONFIG, WEIGHTS]:
        raise ModelError(
            f"Announce the two files of a PEFT adapter: {CONFIG} and {WEIGHTS}. Pickles (.bin, .pt)"
            " are not loaded."
        )
    for file in files:
        if file["size"] > LARGEST[file["path"]]:
            raise ModelError(
                f"{file['path']} is larger than {LARGEST[file['path']] / 2**20:g} MiB."
            )
    with transaction.atomic():
        Project.objects.select_for_update().get(pk=project.pk)
        same = {"project": project, "name": name, "parent": parent, "files": files}
        if found := AdapterUpload.objects.filter(**same).first():
            if confirm_base and not found.confirm_base:
                found.confirm_base = True
                found.save(update_fields=["confirm_base"])
            return found
        if project.adapter_uploads.count() >= MOST:
            raise UploadError(
                f"{MOST} uploads are under way in this project. Finish or delete one."
            )
        made = AdapterUpload.objects.create(**same, confirm_base=confirm_base, created_by=by)
        made.is_new = True
        return made


@on(Parts)
def unfinished_uploads(question: Parts) -> Part:
    return Part("adapter_uploads", _part_files, partial(put_chunks, store()), is_referred=True)


def _part_files() -> Iterator[File]:
    for part in AdapterPart.objects.select_related("upload").order_by("pk").iterator():
        name = _name(part.upload, part.path, part.number)
        yield File(name, str(part.pk), partial(store().chunks, name))


def already(*, project: Project, parent: ModelVersion, files: list[dict]) -> ModelVersion | None:
    """The project's version with exactly these files on this base: if the response was lost, the
    client need not upload again.
    """
    artifact = manifest_digest(sorted(files, key=lambda file: file["path"]))
    return ModelVersion.objects.filter(project=project, digest=digest_on(parent, artifact)).first()


def parts_of(file: dict) -> int:
    return -(-file["size"] // PART)


def size_of(file: dict, number: int) -> int:
    return min(PART, file["size"] - number * PART)


def missing(upload: AdapterUpload) -> dict[str, list[int]]:
    """{path: numbers of the missing parts}."""
    came: dict[str, set[int]] = {}
    for path, number in upload.parts.values_list("path", "number"):
        came.setdefault(path, set()).add(number)
    return {
        file["path"]: [
            number for number in range(parts_of(file)) if number not in came.get(file["path"], ())
        ]
        for file in upload.files
    }


def add_part(*, upload: AdapterUpload, path: str, number: int, data: bytes) -> None:
    """Store a part; it is durable when this returns. Raises UploadError, ModelError."""
    file = next((file for file in upload.files if file["path"] == path), None)
    if file is None or not 0 <= number < parts_of(file):
        raise ModelError(f"This upload has no part {number} of “{path[:80]}”.")
    if len(data) != size_of(file, number):
        raise ModelError(
            f"Part {number} of {path} has {size_of(file, number):,} bytes, but {len(data):,} were"
            " received. Send the whole part again."
        )
    with tempfile.NamedTemporaryFile(prefix="part-") as beside:
        beside.write(data)
        beside.flush()
        try:
            store().put(_name(upload, path, number), Path(beside.name))
        except OSError as error:
            raise UploadError(
                f"The part could not be stored: {error.strerror or error}. Send it again."
            ) from error
    try:
        with transaction.atomic():
            AdapterPart.objects.get_or_create(upload=upload, path=path, number=number)
    except IntegrityError as error:
        _forget([(f"uploads/{upload.pk}", [f"{path}.{number}"])])
        raise UploadError("This upload has been finished or cancelled.") from error


def finish(*, upload: AdapterUpload, by: Any) -> ModelVersion:
    """Create the model version. Raises UploadError if parts are missing or differ from what was
    announced, and have to be sent again; raises ModelError and discards the upload if the adapter
    does not fit its base.
    """
    if lacking := sum(map(len, missing(upload).values())):
        raise UploadError(
            f"{lacking} part{'s are' if lacking > 1 else ' is'} missing. GET the upload: it lists"
            " them."
        )
    with tempfile.TemporaryDirectory(prefix="upload-") as made:
        for file in upload.files:
            _assemble(upload, file, Path(made) / file["path"])
        try:
            version = register_checked(
                project=upload.project,
                name=upload.name,
                parent=upload.parent,
                folder=Path(made),
                by=by,
                confirm_base=upload.confirm_base,
            )
        except ModelError as error:
            if error.field != "confirm_base":  # then only an answer is missing, not another file
                remove(upload)
            raise
    remove(upload)
    return version


def _assemble(upload: AdapterUpload, file: dict, target: Path) -> None:
    try:
        with target.open("wb") as whole:
            for data in _chunks(upload, file):
                whole.write(data)
    except OSError as error:
        raise UploadError(
            f"The parts cannot be read: {error.strerror or error}. Try again."
        ) from error
    if target.stat().st_size != file["size"] or sha256_of(target) != file["sha256"]:
        upload.parts.filter(path=file["path"]).delete()
        raise UploadError(
            f"{file['path']} does not have the SHA-256 that was announced. Send its parts again."
        )


def _chunks(upload: AdapterUpload, file: dict) -> Iterator[bytes]:
    for number in range(parts_of(file)):
        left = size_of(file, number)
        for data in store().chunks(_name(upload, file["path"], number)):
            left -= len(data)
            if left < 0:
                return
            yield data


def remove(upload: AdapterUpload) -> None:
    files = _files(upload)
    upload.delete()
    transaction.on_commit(lambda: _forget(files))


def forget_old() -> int:
    """Discard abandoned uploads; return how many."""
    old = list(AdapterUpload.objects.filter(created_at__lt=timezone.now() - LASTS))
    for upload in old:
        remove(upload)
    return len(old)


@on(Deleting[AdapterUpload])
def remove_parts(event: Deleting[AdapterUpload]) -> Callable[[], None]:
    files = [found for upload in event.rows for found in _files(upload)]
    return lambda: transaction.on_commit(lambda: _forget(files))


def _files(upload: AdapterUpload) -> list[tuple[str, list[str]]]:
    """Every part that may be in the store, including one whose worker was killed before it recorded
    the part.
    """
    return [
        (
            f"uploads/{upload.pk}",
            [
                f"{file['path']}.{number}"
                for file in upload.files
                for number in range(parts_of(file))
            ],
        )
    ]


def _forget(folders: list[tuple[str, list[str]]]) -> None:
    for folder, files in folders:
        try:
            store().remove_folder(folder, files)
        except OSError as error:
            log.warning("The parts under %s could not be removed from the store: %s", folder, error)


def _name(upload: AdapterUpload, path: str, number: int) -> str:
    return f"uploads/{upload.pk}/{path}.{number}"
