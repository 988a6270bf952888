"""The LoRA settings of a run that continues an adapter: the adapter has them already, so that a run
takes them over and refuses others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from apps.registry.artifacts import ArtifactError, read_file
from apps.registry.models import ModelKind, ModelVersion
from apps.registry.trained_elsewhere import has_every_linear_layer
from workers.lib.lora_files import CONFIG
from workers.lib.specs.methods import CONFIGS
from workers.lib.specs.training import Lora, Training
from workers.lib.typed import FormError, convert, plain

# Our names and PEFT's, with PEFT's default. Dropout is not part of an adapter's shape: a run that
# continues one sets its own.
SHAPE: dict[str, tuple[str, Any]] = {
    "lora_rank": ("r", 8),
    "lora_alpha": ("lora_alpha", 8),
    "target_modules": ("target_modules", None),
    "use_rslora": ("use_rslora", False),
    "use_dora": ("use_dora", False),
}


def whole_settings(method: str, config: Mapping[str, Any], parent: ModelVersion) -> dict[str, Any]:
    """The settings with every default, and those of the adapter that the run continues. Raises
    FormError.
    """
    return plain(continued(convert(dict(config), CONFIGS[method]), config, parent))


def continued(
    settings: Training, config: Mapping[str, Any], parent: ModelVersion, path: str = ""
) -> Training:
    """The settings with the shape of the parent's adapter, if it is one. `config`: what was set
    explicitly, `path`: where. Raises FormError for a value other than the adapter's.
    """
    own = own_settings(parent)
    for name, value in own.items():
        if config.get(name) is not None and not _same(name, getattr(settings, name), value, parent):
            shown = ", ".join(value) if isinstance(value, list) else json.dumps(value)
            raise FormError(
                f"{path}.{name}".lstrip("."),
                f"must be {shown}, as in {parent}: the run continues that adapter. Leave it out, or"
                " start from a model without an adapter",
            )
    try:
        return structs.replace(settings, **{name: own[name] for name in own if _fits(name, own)})
    except ValueError as error:  # such as a sharded base, which a DoRA adapter excludes
        name, _, problem = str(error).partition(": ")
        raise FormError(f"{path}.{name}".lstrip("."), problem) from error


def own_settings(parent: ModelVersion) -> dict[str, Any]:
    """The shape that an adapter's files record, by our names; {} for a model without an adapter,
    and for files that cannot be read, which are refused when they are loaded.
    """
    if parent.kind != ModelKind.ADAPTER:
        return {}
    try:
        config = json.loads(read_file(parent.artifact, CONFIG))
    except (ArtifactError, ValueError):
        return {}
    if not isinstance(config, dict) or "r" not in config:
        return {}
    own = {name: config.get(field, default) for name, (field, default) in SHAPE.items()}
    if isinstance(own["lora_alpha"], float) and own["lora_alpha"].is_integer():
        own["lora_alpha"] = int(own["lora_alpha"])
    if isinstance(own["target_modules"], list):
        own["target_modules"] = sorted(map(str, own["target_modules"]))
    return {name: value for name, value in own.items() if value is not None}


def _same(name: str, given: Any, own: Any, parent: ModelVersion) -> bool:
    if name == "target_modules" and isinstance(own, list):
        if given == "all-linear":  # PEFT records the names instead
            return has_every_linear_layer(own, parent)
        return set(given) == set(own)
    return given == own


def _fits(name: str, own: Mapping[str, Any]) -> bool:
    """Whether our settings can express it: PEFT also knows patterns, and an alpha of 12.5."""
    try:
        convert({name: own[name]}, Lora)
    except FormError:
        return False
    return True
