"""Where the folder of a base model is on this machine: found by the digest of its weights.

The row of a base has the folder that it was registered from, which another machine, or this one
after a move, need not have. So that is only the first place to look; FLYWHEEL_MODEL_FOLDERS are the
others. What was found is kept in the data folder, so that weights are hashed once.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from django.conf import settings

from apps.core.backups.parts import write_file
from apps.core.backups.restoring import Lacks
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.placing import Has
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.folder_digest import sha256_of
from workers.lib.lora_files import AdapterError, check_base_is_plain

log = logging.getLogger(__name__)
MOST_OFFERED = 50
FILE = "bases.json"  # {folder: [digest, of which files]}


class ModelError(Rejected):
    """A model's folder or server that cannot be used. The message is a sentence for the page."""

    field = ""


def base_folder(version: ModelVersion) -> Path:
    """The folder with the weights of a version's base. Raises ModelError."""
    base = version.base_version()
    if found := find_base(version):
        return found
    recorded = Path(base.base)
    if recorded.is_dir():
        check_base_folder(recorded)
        raise ModelError(
            f"The folder {recorded} has other weights than {base}, which was registered from it."
        )
    raise ModelError(
        f"The model folder {recorded} is missing, and no folder under {in_words(folders())} has the"
        f" weights of {base}. Copy it there, or run manage.py register_model with the folder."
    )


def find_base(version: ModelVersion) -> Path | None:
    """None where this machine does not have it, or the version has none."""
    base = version.base_version()
    if base.kind != ModelKind.BASE:
        return None
    known = _known()
    noted = (Path(folder) for folder, (digest, _) in known.items() if digest == base.digest)
    for folder in dict.fromkeys([Path(base.base), *noted]):
        if _digest(folder, known) == base.digest:
            return folder
    return next((folder for folder in _likely(base) if _digest(folder, known) == base.digest), None)


def remember_folder(folder: Path, digest: str) -> None:
    """That this machine has these weights there."""
    known = {**_known(), str(folder): [digest, _stamp(folder)]}
    write_file(
        Path(settings.FLYWHEEL_DATA_DIR) / FILE, iter([json.dumps(known, indent=1).encode()])
    )


def _known() -> Mapping[str, list[str]]:
    path = Path(settings.FLYWHEEL_DATA_DIR) / FILE
    try:
        found = path.stat()
        return _read(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=1)
def _read(path: Path, *version: int) -> Mapping[str, list[str]]:
    """Read again once the file is another. Raises OSError and ValueError."""
    return MappingProxyType(json.loads(path.read_bytes()))


def _likely(base: ModelVersion) -> Iterator[Path]:
    """Those of the same name first: each is hashed."""
    name = Path(base.base).name
    yield from sorted(base_folders(), key=lambda folder: folder.name != name)


def _digest(folder: Path, known: Mapping[str, list[str]]) -> str:
    """ "" if this is no base."""
    if not (folder / "config.json").is_file():
        return ""
    digest, noted = known.get(str(folder), ("", ""))
    try:
        if digest and noted == _stamp(folder):
            return digest
        digest = base_digest(folder)
    except (ModelError, OSError):
        return ""
    try:
        remember_folder(folder, digest)
    except OSError as error:
        log.warning("%s will be hashed again, since %s cannot be written: %s", folder, FILE, error)
    return digest


@on(Has)
def bases_here(question: Has) -> set[str]:
    bases = ModelVersion.objects.filter(kind=ModelKind.BASE).order_by("pk")
    return {base.digest for base in bases if find_base(base)}


def needed_base(version: ModelVersion) -> frozenset[str]:
    """What a machine must have that loads the version (`Needs.things`)."""
    base = version.base_version()
    return frozenset([base.digest] if base.kind == ModelKind.BASE else [])


@on(Lacks)
def missing_bases(question: Lacks) -> list[str]:
    bases = ModelVersion.objects.filter(kind=ModelKind.BASE).order_by("pk")
    return [
        f"The base model {base} is not on this machine. Copy its folder ({base.base} where it came"
        f" from) under {in_words(folders())}, or run manage.py register_model with the folder."
        for base in {base.digest: base for base in bases}.values()
        if find_base(base) is None
    ]


def in_words(paths: list[Path]) -> str:
    return " or ".join(map(str, paths))


def folders() -> list[Path]:
    """Parent folders that a page or the API may name a folder in."""
    return [Path(folder).resolve() for folder in settings.FLYWHEEL_MODEL_FOLDERS]


def base_folders() -> list[Path]:
    """The transformers folders that lie in one of these parents, at most one level deeper."""
    configs = (
        path
        for parent in folders()
        for depth in ("*", "*/*")
        for path in sorted(parent.glob(f"{depth}/config.json"))
    )
    return [path.parent for path in islice(configs, MOST_OFFERED)]


def check_base_folder(folder: Path) -> list[Path]:
    """The weight files of a base model's folder. Raises ModelError."""
    if not folder.is_dir():
        raise ModelError(f"The model folder {folder} is missing.")
    if not (folder / "config.json").is_file():
        raise ModelError(f"The model folder {folder} has no config.json.")
    try:
        check_base_is_plain(folder)
    except AdapterError as error:
        raise ModelError(str(error)) from error
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelError(
            f"The model folder {folder} holds no safetensors; other weight files are not loaded."
        )
    return weights


def base_digest(folder: Path) -> str:
    return _digest_of_files(_files(folder))


def _files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """(path, bytes, modification time) of a base's files. Raises ModelError."""
    paths = [folder / "config.json", *check_base_folder(folder)]
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)


def _stamp(folder: Path) -> str:
    """Another one once a file of the folder has changed."""
    return hashlib.sha256(json.dumps(_files(folder)).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _digest_of_files(files: tuple[tuple[str, int, int], ...]) -> str:
    """Cached by path, size and modification time, so that an unchanged gigabyte is not hashed
    again.
    """
    parts = [(Path(path).name, sha256_of(Path(path))) for path, _, _ in files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
