"""Imports the results of an exported run: its adapter becomes a model version, its metrics the
curves of a finished run.

Only four files are read, by their names; nothing is unpacked from an archive to a path that it
names.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from django.core import signing
from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.registry.actions import ModelError, register_adapter
from apps.registry.artifacts import ArtifactError, store_folder
from apps.registry.models import Artifact, ModelVersion
from apps.registry.trained_elsewhere import (
    CONFIG,
    MAX_ADAPTER,
    MAX_CONFIG,
    WEIGHTS,
    bounded,
    check_adapter,
    copy_bounded,
    unchanged,
)
from apps.training.actions import TrainingError
from apps.training.engines.exporting import SALT
from apps.training.engines.folder import ENGINES, MANIFEST
from apps.training.models import Dataset, Method, TrainingRun
from apps.training.results import store_metrics, version_name
from workers.lib.storable import storable

METRICS = "metrics.jsonl"
NAMES = {MANIFEST: "manifest", CONFIG: "config", WEIGHTS: "weights", METRICS: "metrics"}
MAX_MANIFEST, MAX_METRICS = 4 * 2**20, 64 * 2**20
MAX_MEMBERS, MAX_POINTS, MAX_STEP = 10_000, 500_000, 10_000_000
NAME_LENGTH = 60
AT_ONCE = 5000


class ResultError(TrainingError):
    """A result that cannot be registered; a sentence for the page. The API answers 400."""

    field = ""


@dataclass
class Returned:
    """The files of a result; `metrics` may be missing."""

    manifest: BinaryIO | None = None
    config: BinaryIO | None = None
    weights: BinaryIO | None = None
    metrics: BinaryIO | None = None
    opened: list[Any] = field(default_factory=list)

    def add(self, name: str, source: BinaryIO) -> None:
        """Raises ResultError for a second file of the same name; files with other names are
        ignored.
        """
        if (which := NAMES.get(PurePosixPath(name.replace("\\", "/")).name)) is None:
            return
        if getattr(self, which) is not None:
            raise ResultError(
                f"There are two files {PurePosixPath(name).name}. Send the folder of one adapter."
            )
        setattr(self, which, source)

    def close(self) -> None:
        for one in self.opened:
            one.close()


def from_files(files: list[tuple[str, BinaryIO]]) -> Returned:
    """From uploads, by their names; a zip archive counts as its contents. Raises ResultError."""
    found = Returned()
    for name, source in files:
        if name.casefold().endswith(".zip"):
            _add_archive(found, source)
        else:
            found.add(name, source)
    return found


def from_folder(folder: Path) -> Returned:
    """From a folder on the server, recursively. Links are not followed. Raises ResultError."""
    found = Returned()
    paths = [
        path
        for name in NAMES
        for path in sorted(folder.rglob(name))
        if path.is_file() and not path.is_symlink()
    ]
    for path in paths:
        source = path.open("rb")
        found.opened.append(source)
        try:
            found.add(path.name, source)
        except ResultError:
            found.close()
            raise
    return found


def _add_archive(found: Returned, source: BinaryIO) -> None:
    try:
        archive = zipfile.ZipFile(source)
        members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise ResultError(
            "The zip archive cannot be read. Send it again, or send the files themselves."
        ) from error
    found.opened.append(archive)
    if len(members) > MAX_MEMBERS:
        raise ResultError(
            f"The archive holds {len(members)} files; {MAX_MEMBERS} is the most. Send only the"
            " adapter's files."
        )
    for member in members:
        if PurePosixPath(member.filename).name in NAMES and not member.is_dir():
            try:
                found.add(member.filename, archive.open(member))
            except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
                raise ResultError(
                    f"{member.filename[:80]} in the archive cannot be read (encrypted or broken)."
                ) from error


def import_result(*, project: Project, returned: Returned, by: Any) -> TrainingRun:
    """The finished run for the result. Importing the same adapter of the same export twice gives
    one run. Raises ResultError.
    """
    try:
        return _import(project, returned, by)
    except (ModelError, ArtifactError) as error:
        raise ResultError(str(error)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise ResultError(
            "The zip archive is broken. Send it again, or send the files themselves."
        ) from error
    finally:
        returned.close()


def _import(project: Project, returned: Returned, by: Any) -> TrainingRun:
    missing = [
        name
        for name, which in NAMES.items()
        if getattr(returned, which) is None and name != METRICS
    ]
    if missing:
        raise ResultError(
            f"Missing: {', '.join(missing)}. {MANIFEST} is in the exported folder, the other two"
            " are what the engine saved."
        )
    facts, signature = facts_of(project, returned.manifest)
    run = unsaved(project, facts, signature, by)
    artifact, found = store_adapter(run.parent, facts, returned)
    events = list(metrics_in(returned.metrics)) if returned.metrics else []
    return record(run, artifact, found, events, facts, by)


def facts_of(project: Project, source: BinaryIO) -> tuple[dict[str, Any], str]:
    """The manifest's facts, if this installation wrote it for this project, and its digest. Raises
    ResultError.
    """
    text = bounded(source, MANIFEST, MAX_MANIFEST).read()
    try:
        signature = json.loads(text)["signature"]
        facts = signing.Signer(salt=SALT).unsign_object(signature)
    except (ValueError, KeyError, TypeError, RecursionError, signing.BadSignature) as error:
        raise ResultError(
            f"This {MANIFEST} was not written by this Flywheel server, or has been modified. Send"
            " the exported one."
        ) from error
    if facts["project"] != str(project.pk):
        raise ResultError("This folder was exported from another project. Import it there.")
    return facts, hashlib.sha256(signature.encode()).hexdigest()


def unsaved(project: Project, facts: dict[str, Any], signature: str, by: Any) -> TrainingRun:
    """The run that the facts describe. Raises ResultError if anything it refers to is gone."""
    parent = ModelVersion.objects.filter(project=project, pk=facts["parent_id"]).first()
    dataset = Dataset.objects.filter(project=project, pk=facts["dataset"]).first()
    environment = Environment.objects.filter(project=project, pk=facts["environment_id"]).first()
    gone = [
        name
        for name, row in (
            ("base model", parent),
            ("dataset", dataset),
            ("environment", environment),
        )
        if row is None
    ]
    if gone:
        raise ResultError(
            f"Deleted here since the export: {', '.join(gone)}. Without it the result would have no"
            " lineage."
        )
    spec = {
        name: value
        for name, value in facts.items()
        if name not in ("project", "parent_id", "environment_id", "name", "run")
    }
    engine = ENGINES[facts["engine"]]
    return TrainingRun(
        project=project,
        method=facts["method"],
        name=f"{facts['name'][:150]} in {engine.label}",
        parent=parent,
        dataset=dataset,
        environment=environment,
        created_by=by,
        spec=spec | {"export": signature, "exported_from": facts.get("run", "")},
    )


def store_adapter(
    parent: ModelVersion, facts: dict[str, Any], returned: Returned
) -> tuple[Artifact, dict[str, Any]]:
    """Stores the files; returns what was found in them (`check_adapter`). Raises ModelError,
    ResultError, ArtifactError.
    """
    if parent.base_version().digest != facts["base_digest"]:
        raise ResultError(f"The base of {parent} is not the one that was exported.")
    with tempfile.TemporaryDirectory(prefix="result-") as made:
        home = Path(made)
        copy_bounded(returned.config, home / CONFIG, MAX_CONFIG)
        copy_bounded(returned.weights, home / WEIGHTS, MAX_ADAPTER)
        found = check_adapter(home, parent)
        check_lora(json.loads((home / CONFIG).read_bytes()), found["rank"], facts["lora"])
        return store_folder(home), found


def check_lora(config: dict[str, Any], rank: int, planned: dict[str, Any]) -> None:
    """Raises ResultError for an adapter that does not match the plan: its lineage would be
    wrong.
    """
    if rank != planned["rank"]:
        raise ResultError(
            f"The adapter has rank {rank}, the exported plan rank {planned['rank']}. If it belongs"
            " to another run, register it under Models → Register → LoRA adapter."
        )
    if (alpha := config.get("lora_alpha")) != planned["alpha"]:
        raise ResultError(
            f"The adapter has lora_alpha {alpha}, the exported plan {planned['alpha']}. Check which"
            " run it belongs to."
        )


def metrics_in(source: BinaryIO) -> Iterator[dict[str, Any]]:
    """Events of a file with {"step", "values": {name: number}} per line, or the numbers next to the
    step. Raises ResultError.
    """
    text, points = bounded(source, METRICS, MAX_METRICS).read(), 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            step = row["step"]
            values = row.get(
                "values",
                {name: value for name, value in row.items() if name not in ("step", "total")},
            )
            kept = {
                storable(name, "")[:NAME_LENGTH]: value
                for name, value in values.items()
                if _is_number(value)
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResultError(
                f'{METRICS}, line {number}: give {{"step": 1, "values": {{"train/loss": 0.5}}}}.'
            ) from error
        if type(step) is not int or not 0 <= step <= MAX_STEP:
            raise ResultError(
                f"{METRICS}, line {number}: “step” must be a whole number from 0 to {MAX_STEP}."
            )
        points += len(kept)
        if points > MAX_POINTS:
            raise ResultError(
                f"{METRICS} has more than {MAX_POINTS:,} values. Log fewer steps or fewer metrics."
            )
        yield {"type": "metric", "step": step, "values": kept}


def _is_number(value: Any) -> bool:
    """Not NaN, not infinite, and no integer that is too large to be a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@transaction.atomic
def record(
    run: TrainingRun,
    artifact: Artifact,
    found: dict[str, Any],
    events: list[dict],
    facts: dict[str, Any],
    by: Any,
) -> TrainingRun:
    """The finished run with its curves and its model version. If the adapter changes nothing, the
    run has failed, and there is no version.
    """
    Project.objects.select_for_update().get(
        pk=run.project_id
    )  # serialises concurrent uploads of one result
    before = TrainingRun.objects.filter(
        project=run.project_id,
        spec__export=run.spec["export"],
        result__adapter_digest=artifact.digest,
    ).first()
    if before:
        return before
    last = max((event["step"] for event in events), default=run.spec["config"]["steps"])
    run.finished_at, run.done, run.total = timezone.now(), last, last
    run.result = {"adapter_digest": artifact.digest}
    if reason := unchanged(found):
        run.state, run.error = JobState.FAILED, reason
    else:
        run.state = JobState.SUCCEEDED
        run.model_version = register_adapter(
            project=run.project,
            name=version_name(run),
            parent=run.parent,
            artifact=artifact,
            by=by,
            lineage=facts | {"run": str(run.pk), "trained": "elsewhere"} | found,
        )
        run.result["model_version"] = str(run.model_version)
    run.save(force_insert=True)
    run.is_new = True
    for start in range(0, len(events), AT_ONCE):
        store_metrics(run, events[start : start + AT_ONCE])
    audit(
        "training.imported",
        project=run.project,
        by=by,
        target=run,
        name=run.name,
        engine=ENGINES[facts["engine"]].label,
        model_version=str(run.model_version or ""),
        method=Method(run.method).label,
    )
    return run
