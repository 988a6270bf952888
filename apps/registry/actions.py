"""Writes of floor 2: model versions. A version is made once and never changed."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.registry.artifacts import local_path, sha256_of
from apps.registry.models import Artifact, ModelKind, ModelVersion


class ModelFolderError(Exception):
    """A base model folder that cannot be used; the message is a sentence for the screen."""


def check_base_folder(folder: Path) -> list[Path]:
    """The weight files of a base model's folder. Raises ModelFolderError."""
    if not folder.is_dir():
        raise ModelFolderError(f"The model folder {folder} is missing.")
    if not (folder / "config.json").is_file():
        raise ModelFolderError(f"The model folder {folder} has no config.json.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelFolderError(f"The model folder {folder} holds no safetensors; other weight files are not loaded.")
    return weights


def base_digest(folder: Path) -> str:
    files = [folder / "config.json", *check_base_folder(folder)]
    return _digest_of_files(tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=64)
def _digest_of_files(files: tuple[tuple[str, int, int], ...]) -> str:
    """Size and time are only the cache's key: an unchanged gigabyte is not hashed again."""
    parts = [(Path(path).name, sha256_of(Path(path))) for path, _, _ in files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def register_base(*, project: Project, name: str, folder: Path, by: Any) -> ModelVersion:
    """A base model in a local folder. The same weights twice are one version. Raises ModelFolderError."""
    return _register(
        project=project,
        name=name,
        kind=ModelKind.BASE,
        digest=base_digest(folder),
        by=by,
        base=str(folder.resolve()),
    )


def register_adapter(
    *, project: Project, name: str, parent: ModelVersion, artifact: Artifact, lineage: dict, by: Any
) -> ModelVersion:
    """An adapter on its parent's base. The same content twice is one version."""
    digest = hashlib.sha256(f"{_base_of(parent).digest}:{artifact.digest}".encode()).hexdigest()
    return _register(
        project=project,
        name=name,
        kind=ModelKind.ADAPTER,
        digest=digest,
        by=by,
        base=parent.base,
        parent=parent,
        artifact=artifact,
        lineage=lineage,
        prompt=parent.prompt,
    )


def _base_of(version: ModelVersion) -> ModelVersion:
    return next((node for node in [version, *version.ancestors()] if node.kind == ModelKind.BASE), version)


@transaction.atomic
def _register(*, project: Project, name: str, kind: ModelKind, digest: str, by: Any, **fields: Any) -> ModelVersion:
    # The project's row is the lock under which version numbers are given out.
    Project.objects.select_for_update().get(pk=project.pk)
    existing = ModelVersion.objects.filter(project=project, digest=digest).first()
    if existing:
        return existing
    last = ModelVersion.objects.filter(project=project, name=name).order_by("-version").first()
    version = ModelVersion.objects.create(
        project=project,
        name=name,
        version=last.version + 1 if last else 1,
        kind=kind,
        digest=digest,
        created_by=by,
        **fields,
    )
    audit("model_version.created", project=project, by=by, target=version, name=str(version), digest=digest)
    return version


def model_spec(version: ModelVersion) -> dict[str, str | None]:
    """The `model` part of a job's spec. Raises ModelFolderError or ArtifactError with a sentence."""
    check_base_folder(Path(version.base))
    adapter = str(local_path(version.artifact)) if version.artifact else None
    return {"base": version.base, "adapter": adapter}
