"""Training runs as jobs on a Ray cluster: the job's folder and keys, what it may download and
upload, and how it ends.

`workers.ray_job` submits and follows it. The job gets an API key of the project for the reward
(scope `evaluate`) and a token that is valid for this run's base model and for one adapter; both
expire with the run.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import create_api_key, revoke_api_key
from apps.core.bus import on
from apps.core.job_files import job_folder
from apps.core.kinds import Incomplete
from apps.core.models import ACTIVE_STATES
from apps.core.runner import job_fields
from apps.core.scopes import Scope
from apps.registry.actions import ModelError, register_adapter
from apps.registry.artifacts import ArtifactError, NeededArtifacts
from apps.registry.bases import find_base
from apps.registry.models import Artifact, RayCluster
from apps.registry.servers import address_spec, check_address
from apps.registry.trained_elsewhere import unchanged
from apps.training.actions import TrainingError, prepared_run
from apps.training.engines import exporting
from apps.training.engines.folder import CARRIED, packed
from apps.training.engines.returned import ResultError, Returned, store_adapter
from apps.training.models import Method, TrainingRun
from apps.training.results import lineage, version_name
from workers.lib.alarms import AlarmSettings
from workers.lib.specs.engines import ServerAddress
from workers.lib.specs.ray_job import RayJob
from workers.lib.typed import convert

SALT = "flywheel.ray-run"
LASTS = timedelta(days=30)  # lifetime of key and token, unless the run ends earlier
BASE_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja")
CARRIED_KEYS = (
    "picked_by",
    "picked",
    "picked_of",
    "sources",
    "samples_of",
    "sampled_from",
    "shape",
)


class TokenRefused(Exception):
    """The request has no token of this run, or an expired one."""


class AlreadyReturned(ResultError):
    """The run already has its adapter, or has ended."""


def submit(*, run: TrainingRun, engine: str, cluster: RayCluster, by: Any) -> TrainingRun:
    """Queues an unsaved run as a job on the cluster. Raises TrainingError."""
    chosen = exporting.engine_named(engine)
    if reason := exporting.reason_against(run, chosen):
        raise TrainingError(reason)
    if run.method in chosen.whole:
        raise TrainingError(
            f"{chosen.label} trains all weights with {run.get_method_display()}, so no adapter"
            " comes back. Download the folder."
        )
    if run.spec.get("rollouts"):
        raise TrainingError(
            "On a cluster the engine does its own sampling. Do not choose a server to sample on."
        )
    if by is None:
        raise TrainingError(
            "A cluster job acts with the permissions of the user who starts it. Start it as a user."
        )
    run.name = f"{run.name[:120]} on {cluster}"
    run.spec |= {
        "cluster": {"id": cluster.pk, "name": cluster.name},
        "engine": chosen.slug,
        "engine_version": chosen.version,
    }
    return jobs.submit(run, by=by)


def copy_of(run: TrainingRun, by: Any) -> TrainingRun:
    """A new, unsaved run with the inputs and settings of another one. Raises TrainingError,
    TrainingLocked.
    """
    made = prepared_run(
        project=run.project,
        method=Method(run.method),
        parent=run.parent,
        dataset=run.dataset,
        environment=run.environment,
        config=run.spec["config"],
        seed=run.spec.get("seed", 0),
        name=run.name,
        by=by,
    )
    made.spec |= {name: run.spec[name] for name in CARRIED_KEYS if name in run.spec}
    return made


# The worker's input


def ray_spec(run: TrainingRun) -> RayJob:
    """The spec of `workers.ray_job`. A later attempt follows the job that an earlier one submitted.
    Raises TrainingError.
    """
    cluster = RayCluster.objects.filter(
        project=run.project_id, pk=run.spec["cluster"]["id"]
    ).first()
    if cluster is None:
        raise TrainingError(
            f"The Ray cluster “{run.spec['cluster']['name']}” was removed. Start the run on another"
            " one."
        )
    check_address(cluster.base_url, cluster.key_variable)
    home = job_folder(run) / "ray"
    if not (home / "secrets.json").exists():
        # of an earlier attempt, on whatever machine: its job is followed, not submitted again
        submission = run.cursor.get("submission") or f"flywheel-{run.pk}-{run.attempt}"
        TrainingRun.objects.filter(pk=run.pk).update(cursor={"submission": submission})
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.zip").write_bytes(package(run, submission))
        write_secret(
            home / "secrets.json",
            {"submission": submission, "env": environment_of(run, cluster, submission)},
        )
    engine, config = exporting.engine_named(run.spec["engine"]), run.spec["config"]
    return RayJob(
        **job_fields(run),
        server=address_spec(ServerAddress, cluster.base_url, cluster.key_variable),
        package=str(home / "package.zip"),
        secrets=str(home / "secrets.json"),
        name=run.name,
        method=run.method,
        total=config["steps"],
        gpus=0.0 if engine.with_ray else cluster.gpus,
        alarms=convert(config.get("alarms") or {}, AlarmSettings, "alarms"),
    )


def package(run: TrainingRun, submission: str) -> bytes:
    """The exported folder plus the files that make it a job, zipped. It contains the submission id,
    so that two jobs never share a folder.
    """
    made = exporting.folder(
        run=run, engine=exporting.engine_named(run.spec["engine"]), by=run.created_by
    )
    base, home = run.parent.base_version(), find_base(run.parent)
    files = [
        {"path": path.relative_to(home).as_posix(), "size": path.stat().st_size}
        for path in files_of_base(home)
    ]
    facts = {
        "run": str(run.pk),
        "submission": submission,
        "digest": base.digest,
        "folder": home.name,
        "files": files,
    }
    runner = (Path(settings.BASE_DIR) / CARRIED.replace(".", "/") / "ray_runner.py").read_bytes()
    return packed(
        "", made | {"base.json": json.dumps(facts, indent=1).encode(), "ray_runner.py": runner}
    )


def files_of_base(home: Path | None) -> list[Path]:
    """What a job may download of a base model: weights, configuration, tokenizer and template.
    Raises TrainingError.
    """
    if home is None:
        raise TrainingError("The folder of the base model no longer exists on this installation.")
    return sorted(
        path
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink() and path.suffix in BASE_FILES
    )


def environment_of(run: TrainingRun, cluster: RayCluster, submission: str) -> dict[str, str]:
    """The variables of the job. Its key is created here, and revoked when the run ends."""
    env = {
        "FLYWHEEL_URL": cluster.flywheel_url or settings.FLYWHEEL_URL,
        "FLYWHEEL_RUN_TOKEN": token_for(run, submission),
        "PYTHONUNBUFFERED": "1",
    }
    if cluster.bases_at:
        env["FLYWHEEL_BASES"] = cluster.bases_at
    if run.method == Method.GRPO:
        _, env["FLYWHEEL_API_KEY"] = create_api_key(
            project=run.project,
            name=key_name(run),
            by=run.created_by,
            scopes=[Scope.EVALUATE],
            expires_at=timezone.now() + LASTS,
        )
    return env


def key_name(run: TrainingRun) -> str:
    return f"Ray job of the run {run.pk}"


def write_secret(path: Path, value: Any) -> None:
    """Readable only by the owner of this process."""
    beside = path.with_suffix(".part")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    beside.rename(path)


# The job's requests


def token_for(run: TrainingRun, submission: str) -> str:
    return signing.TimestampSigner(salt=SALT).sign_object(
        {"run": str(run.pk), "submission": submission}
    )


def run_of_token(pk: UUID, token: str) -> TrainingRun:
    """The run whose job has this token. Raises TokenRefused."""
    try:
        given = signing.TimestampSigner(salt=SALT).unsign_object(token, max_age=LASTS)
    except (signing.BadSignature, ValueError, TypeError, RecursionError) as error:
        raise TokenRefused("This token does not belong to this run, or has expired.") from error
    run = (
        TrainingRun.objects.filter(pk=pk)
        .select_related("project", "parent", "dataset", "environment")
        .first()
    )
    if run is None or given != {"run": str(pk), "submission": run.cursor.get("submission")}:
        raise TokenRefused("This token does not belong to this run, or has expired.")
    if not run.is_active or run.cancel_requested_at:
        raise TokenRefused("The run has ended.")
    return run


def base_file(run: TrainingRun, name: str) -> Path | None:
    """A file of the run's base model that its job may read; None for any other."""
    home = find_base(run.parent)
    return next(
        (path for path in files_of_base(home) if path.relative_to(home).as_posix() == name), None
    )


def receive(run: TrainingRun, given: Returned) -> None:
    """Stores the adapter of the run, once. Raises ResultError, AlreadyReturned."""
    if "returned" in run.result:
        raise AlreadyReturned("This run already has its adapter.")
    if given.config is None or given.weights is None:
        raise ResultError(
            "Send adapter_config.json as “config” and adapter_model.safetensors as “weights”."
        )
    facts = {"base_digest": run.parent.base_version().digest, "lora": exporting.lora_of(run)}
    try:
        artifact, found = store_adapter(run.parent, facts, given)
    except (ModelError, ArtifactError) as error:
        raise ResultError(str(error)) from error
    first = TrainingRun.objects.filter(
        ~Q(result__has_key="returned"), pk=run.pk, state__in=ACTIVE_STATES
    )
    if not first.update(result={"returned": {"artifact": artifact.digest, "lineage": found}}):
        raise AlreadyReturned("This run already has its adapter, or has ended.")


@on(NeededArtifacts)
def returned_artifacts(question: NeededArtifacts) -> set[str]:
    """Adapters that a cluster's job has sent and that have no model version yet."""
    rows = TrainingRun.objects.active().filter(
        result__returned__artifact__in=list(question.digests)
    )
    return set(rows.values_list("result__returned__artifact", flat=True))


# The end of a job


def complete(run: TrainingRun, result: dict[str, Any]) -> dict[str, Any]:
    """Creates a model version from the adapter that the job sent."""
    fresh = TrainingRun.objects.get(pk=run.pk)
    if (found := fresh.result.get("returned")) is None:
        raise Incomplete(
            "The job succeeded, but no adapter was received. Check that the cluster's nodes can"
            " reach this Flywheel server (at the address in the cluster settings), and read the"
            " last lines of the log.",
            {},
        )
    if reason := unchanged(found["lineage"]):
        kept = {"adapter_digest": found["artifact"], "metrics": result.get("metrics") or {}}
        raise Incomplete(reason, kept)
    with transaction.atomic():
        artifact = Artifact.objects.get(pk=found["artifact"])
        version = register_adapter(
            project=run.project,
            name=version_name(run),
            parent=run.parent,
            artifact=artifact,
            by=run.created_by,
            lineage=lineage(run) | {"trained": "elsewhere"} | found["lineage"],
        )
        TrainingRun.objects.filter(pk=run.pk).update(model_version=version)
    return {
        "model_version": str(version),
        "adapter_digest": artifact.digest,
        "metrics": result.get("metrics") or {},
    }


def ended(run: TrainingRun) -> None:
    """The job's key is revoked, and its secrets are removed."""
    for key in run.project.api_keys.live().filter(name=key_name(run)):
        revoke_api_key(key=key, by=None, actor_label="the end of the run")
    transaction.on_commit(lambda: shutil.rmtree(job_folder(run) / "ray", ignore_errors=True))
