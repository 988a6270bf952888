"""The base that an adapter says it was trained on, compared with the one that it is registered on.

The shapes of two bases of one architecture are equal, so only their names or digests tell them
apart: an adapter of the instruction-tuned model loads on the base model without an error, and
answers badly. A digest decides where it is known: the adapter was trained here, or returned to an
exported run. Otherwise the names are compared, and a person has to confirm another one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from apps.registry.actions import ModelError
from apps.registry.models import Artifact, ModelKind, ModelVersion

HUB_FOLDER = re.compile(
    r"(?:^|/)models--[^/]+?--(?P<name>[^/]+)/snapshots/"
)  # of a Hugging Face cache
SHOWN = 200


def check_declared(
    config: Path, artifact: Artifact, parent: ModelVersion, *, confirmed: bool
) -> dict[str, str]:
    """What the lineage records: {} or the `declared_base` where it has another name ("": it names
    none). Raises ModelError if the adapter is known to be of another base, or if its name differs
    and nobody `confirmed` it.
    """
    base = parent.base_version()
    for other in trained_here(artifact, parent):
        if (known := other.base_version()).digest != base.digest:
            raise ModelError(
                f"This adapter is {other}, which was trained here on {known}, not on {base}."
            )
    declared = str(
        json.loads(config.read_text("utf-8")).get("base_model_name_or_path") or ""
    ).strip()
    if declared and plain(declared) in names_of(base):
        return {}
    if declared and not confirmed:
        error = ModelError(
            f"adapter_config.json says that it was trained on “{declared[:SHOWN]}”, and {base} has"
            " another name. Their shapes are equal, which does not make them the same model. If"
            " they are, confirm the base “Trained on this base” (in the API: confirm_base);"
            " otherwise register it on the base that it names."
        )
        error.field = "confirm_base"
        raise error
    return {"declared_base": declared[:SHOWN]}


def trained_here(artifact: Artifact, parent: ModelVersion) -> list[ModelVersion]:
    """The project's versions of these files that a training run made, so that their base is
    certain.
    """
    rows = ModelVersion.objects.filter(
        project=parent.project_id, artifact=artifact, kind=ModelKind.ADAPTER
    )
    return [version for version in rows if version.lineage.get("run")]


def names_of(base: ModelVersion) -> set[str]:
    """The names that an adapter may know the base by."""
    folder = Path(base.base)
    try:
        saved: Any = json.loads((folder / "config.json").read_bytes()).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        saved = None
    return {plain(name) for name in (base.name, str(folder), saved) if isinstance(name, str)} - {""}


def plain(name: str) -> str:
    """The last part of a name or path, without case and punctuation."""
    found = HUB_FOLDER.search(f"{name}/")
    last = found["name"] if found else name.rstrip("/").rpartition("/")[2]
    return re.sub(r"[\W_]", "", last.casefold())
