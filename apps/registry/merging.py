"""Merges an adapter into its base, for servers that can only load whole models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.core import jobs
from apps.core.errors import Rejected
from apps.core.job_files import job_folder
from apps.core.runner import job_fields
from apps.core.whole_folders import SPARE
from apps.registry.artifacts import store_folder
from apps.registry.bases import ModelError, base_folder, check_base_folder
from apps.registry.engines import model_spec
from apps.registry.models import Engine, MergedModel, MergeJob, ModelKind, ModelVersion
from workers.lib.specs.merge_adapter import MergeAdapter
from workers.lib.weights_proof import TEXT

COPIES = 2  # times the base's size: what the job writes, and what the store keeps of it


def can_be_merged(version: ModelVersion) -> bool:
    return version.kind == ModelKind.ADAPTER and version.engine == Engine.TRANSFORMERS


def merged_of(version: ModelVersion) -> MergedModel | None:
    return MergedModel.objects.filter(version=version).select_related("artifact").first()


def merge(*, version: ModelVersion, by: Any) -> MergeJob | None:
    """The job that merges a version, which may already be running; None if the merged model exists.
    Raises Rejected.
    """
    if not can_be_merged(version):
        raise Rejected(
            f"{version} cannot be merged: it is not a LoRA adapter whose files and base are here."
        )
    if merged_of(version):
        return None
    try:
        with transaction.atomic():
            return jobs.submit(
                MergeJob(project=version.project, name=f"Merge of {version}", version=version),
                by=by,
            )
    except IntegrityError:  # somebody else requested it at the same moment
        return latest_job(version)


def latest_job(version: ModelVersion) -> MergeJob | None:
    return version.merge_jobs.order_by("-created_at").first()


def job_spec(job: MergeJob) -> MergeAdapter:
    """Raises ModelError, ArtifactError."""
    base = job.version.base_version()
    folder = base_folder(base)
    weights = check_base_folder(folder)
    require_space(sum(path.stat().st_size for path in weights))
    return MergeAdapter(**job_fields(job), model=model_spec(job.version), text=TEXT)


def require_space(size: int) -> None:
    """Raises ModelError if there is no room for `size` bytes, before anything is written."""
    free = shutil.disk_usage(settings.FLYWHEEL_DATA_DIR).free
    if free < COPIES * size + SPARE:
        raise ModelError(
            "The merged model is as large as its base, and is on the disk twice while it is"
            f" stored: {(COPIES * size + SPARE) / 2**20:,.0f} MiB are needed and"
            f" {free / 2**20:,.0f} MiB are free."
        )


def complete(job: MergeJob, result: dict) -> dict:
    artifact = store_folder(Path(result["folder"]))
    given = {"artifact": artifact, "dtype": result["dtype"], "gap": result["gap"]}
    MergedModel.objects.get_or_create(version=job.version, defaults=given)
    return {
        "artifact": artifact.pk,
        "size": artifact.size,
        "dtype": result["dtype"],
        "gap": result["gap"],
        "lost": result["lost"],
    }


def ended(job: MergeJob) -> None:
    """Remove the job's output, which is either stored by now or was abandoned."""
    transaction.on_commit(lambda: shutil.rmtree(job_folder(job) / "out", ignore_errors=True))
