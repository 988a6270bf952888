"""Reward model versions in verifier specs: which weights a name refers to, and where a job finds
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from apps.core.bus import on
from apps.core.intervals import wilson
from apps.core.managed.objects import WhyNotDelete, WhyNotRename
from apps.core.models import Project
from apps.environments.models import Verifier
from apps.registry.artifacts import ArtifactError, local_path
from apps.registry.bases import ModelError, base_digest, base_folder
from apps.registry.models import ModelKind, ModelVersion
from workers.lib.calibration import Calibration
from workers.lib.errors import SpecError
from workers.lib.specs.environment import RewardModelFolder
from workers.lib.typed import unknown

KIND = "trained_reward"
NAMED = re.compile(r"([-a-zA-Z0-9_]{1,80})-v(\d{1,9})")
DIGITS = 4  # of a threshold: scores have as many (workers.score_rewards)


def versions_of(project: Project) -> QuerySet[ModelVersion]:
    return ModelVersion.objects.filter(project=project, kind=ModelKind.REWARD)


def resolved(project: Project, spec: Any, path: str = "verifier") -> Any:
    """The spec with the digest, the scale and the threshold of each reward model that it names, at
    any depth. Raises SpecError.
    """
    if isinstance(spec, list):
        return [resolved(project, one, f"{path}[{at}]") for at, one in enumerate(spec)]
    if not isinstance(spec, dict):
        return spec
    if spec.get("kind") != KIND:
        return {name: resolved(project, value, f"{path}.{name}") for name, value in spec.items()}
    version = _named(project, spec.get("version"), path)
    calibration = calibration_of(version)
    if calibration.slope <= 0:
        raise SpecError(
            f"“{path}.version”: {version} ranks the pairs that were kept aside no better than"
            " chance, so it cannot score."
        )
    if (given := spec.get("digest")) not in (None, version.artifact_id):
        raise SpecError(
            f"“{path}.digest” is {str(given)[:12]}, but {version} is {version.artifact_id[:12]}."
            " Leave it out."
        )
    scale = spec.get("scale", "calibrated")
    cut = calibration.threshold
    usual = round(cut if scale == "raw" else calibration.probability(cut), DIGITS)
    threshold = usual if spec.get("threshold") is None else spec["threshold"]
    return spec | {"digest": version.artifact_id, "scale": scale, "threshold": threshold}


def _named(project: Project, given: Any, path: str) -> ModelVersion:
    named = NAMED.fullmatch(given) if isinstance(given, str) else None
    found = (
        versions_of(project).filter(name=named[1], version=int(named[2])).first() if named else None
    )
    if found is None:
        names = [str(version) for version in versions_of(project)[:50]]
        said = (
            unknown(str(given)[:80], names)
            if names
            else "names no reward model: the project has none. Train one first"
        )
        raise SpecError(f"“{path}.version” {said}.")
    return found


def calibration_of(version: ModelVersion) -> Calibration:
    measured = version.lineage["measured"]
    return Calibration(
        slope=measured["slope"], intercept=measured["intercept"], threshold=measured["threshold"]
    )


def measured_of(version: ModelVersion) -> dict[str, Any]:
    """What a reward model showed on the pairs that were kept aside, with 95% intervals (Wilson)."""
    found = version.lineage["measured"]
    n, counts = (
        found["aside"],
        {"accuracy": "aside_right", "passed": "chosen_passed", "false": "rejected_passed"},
    )
    shares = {name: (found[key] / n, *wilson(found[key], n)) for name, key in counts.items()}
    chance = wilson(found["aside_right"], n)[0] <= 0.5
    return (
        found
        | shares
        | {
            "chance": chance,
            "at": calibration_of(version).probability(found["threshold"]),
        }
    )


def used_in(spec: Any) -> Iterator[dict]:
    """The parts of a spec that are reward models."""
    if isinstance(spec, dict):
        if spec.get("kind") == KIND:
            yield spec
        for value in spec.values():
            yield from used_in(value)
    elif isinstance(spec, list):
        for one in spec:
            yield from used_in(one)


def folders(project: Project, spec: dict) -> list[RewardModelFolder]:
    """The folders of each reward model in a spec. Raises ArtifactError if weights are missing or
    were altered."""
    found: dict[str, RewardModelFolder] = {}
    for part in used_in(spec):
        version = versions_of(project).filter(artifact=part.get("digest")).first()
        if version is None or version.artifact_id in found:
            continue
        base = version.base_version()
        try:
            adapter = local_path(version.artifact)
            folder = base_folder(base)
            changed = base_digest(folder) != base.digest
        except (ArtifactError, ModelError) as error:
            raise ArtifactError(f"{version} scores nothing. {error}") from error
        if changed:
            raise ArtifactError(
                f"{version} scores nothing: the weights of {base} in {folder} are not those it"
                " was trained on."
            )
        dtype = settings.FLYWHEEL_DTYPE
        found[version.artifact_id] = RewardModelFolder(
            name=str(version),
            base=str(folder),
            adapter=str(adapter),
            digest=version.artifact_id,
            dtype="float32" if dtype == "float16" else dtype,
        )
    return list(found.values())


def verifiers_with(version: ModelVersion) -> list[Verifier]:
    """Verifiers of its project that score with it, the newest first."""
    rows = Verifier.objects.filter(project=version.project).order_by("-created_at")
    return [
        row
        for row in rows
        if any(part.get("digest") == version.artifact_id for part in used_in(row.spec))
    ]


@on(WhyNotDelete[ModelVersion])
def scores_with(question: WhyNotDelete[ModelVersion]) -> str | None:
    names = ", ".join(map(str, _scoring(question.row)))
    if not names:
        return None
    return f"It is used by {names}; without it, existing scores could not be reproduced."


@on(WhyNotRename[ModelVersion])
def named_by_verifiers(question: WhyNotRename[ModelVersion]) -> str | None:
    if not _scoring(question.row):
        return None
    return "Verifiers refer to it by name and are immutable, so it cannot be renamed."


def _scoring(version: ModelVersion) -> list[Verifier]:
    return verifiers_with(version) if version.kind == ModelKind.REWARD else []


def models_in(verifier: Verifier) -> list[ModelVersion]:
    """The reward models that a verifier scores with."""
    digests = [part.get("digest") for part in used_in(verifier.spec)]
    return (
        list(versions_of(verifier.project).filter(artifact__in=digests).select_related("parent"))
        if digests
        else []
    )
