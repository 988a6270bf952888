"""Writes of floor 2: model versions. A version is made once and never changed."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.core.outgoing_keys import key_of
from apps.registry.artifacts import local_path, sha256_of
from apps.registry.models import Artifact, Engine, ModelKind, ModelVersion
from workers.lib.keys import RefusedKey
from workers.lib.outgoing import RefusedAddress, check_url


class ModelError(Exception):
    """A model's folder or server that cannot be used; the message is a sentence for the screen."""


def check_base_folder(folder: Path) -> list[Path]:
    """The weight files of a base model's folder. Raises ModelError."""
    if not folder.is_dir():
        raise ModelError(f"The model folder {folder} is missing.")
    if not (folder / "config.json").is_file():
        raise ModelError(f"The model folder {folder} has no config.json.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"The model folder {folder} holds no safetensors; other weight files are not loaded.")
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
    """A base model in a local folder. The same weights twice are one version. Raises ModelError."""
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


def register_endpoint(
    *, project: Project, name: str, base_url: str, served_as: str, key_variable: str = "", by: Any
) -> ModelVersion:
    """A model that an OpenAI-compatible server has. The same address and name twice are one version. Raises ModelError."""
    base_url = base_url.rstrip("/")
    _check_server(base_url, key_variable)
    return _register(
        project=project,
        name=name,
        kind=ModelKind.ENDPOINT,
        digest=hashlib.sha256(json.dumps([base_url, served_as]).encode()).hexdigest(),
        by=by,
        base=served_as,
        engine=Engine.OPENAI,
        base_url=base_url,
        served_as=served_as,
        key_variable=key_variable,
    )


def _check_server(base_url: str, key_variable: str) -> None:
    """Whether this installation may call the address, and send it the key. Raises ModelError."""
    try:
        host = check_url(base_url, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS).host
        key_of(key_variable, host)
    except (RefusedAddress, RefusedKey) as error:
        raise ModelError(str(error)) from error


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
    """The `model` part of a job's spec. Raises ModelError or ArtifactError with a sentence."""
    if version.engine == Engine.OPENAI:
        return {"base": version.base, "adapter": None}
    check_base_folder(Path(version.base))
    adapter = str(local_path(version.artifact)) if version.artifact else None
    return {"base": version.base, "adapter": adapter}


def engine_spec(version: ModelVersion, batch_size: int) -> dict[str, Any]:
    """The `engine` part of a job's spec: what generates for this version. Raises ModelError where it may not be asked."""
    if version.engine == Engine.TRANSFORMERS:
        return {"kind": "transformers", "dtype": settings.FLYWHEEL_DTYPE, "threads": 0, "batch_size": batch_size}
    _check_server(version.base_url, version.key_variable)  # what is allowed may have changed since it was registered
    return {
        "kind": "openai",
        "base_url": version.base_url,
        "model": version.served_as,
        "api_key_env": version.key_variable,
        "allow_private": settings.FLYWHEEL_ALLOW_PRIVATE_URLS,
    }
