"""What is known of the families of base models (`model_profiles.yaml`): template, tool format, LoRA targets, traps, kernels."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from apps.registry.models import ModelKind, ModelVersion

MAX_READ = 4 * 2**20  # of a config or a template
TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One family. `lora_exclude` are patterns of layers that must not be adapted; `tool_parser` is vLLM's name for it, `renderer` that of the
    package renderers, which verifiers and prime-rl use."""

    name: str
    match: dict[str, list[str | int]]
    template: str
    tools: str
    tool_parser: str
    renderer: str = ""
    lora_targets: list[str]
    lora_exclude: list[str] = []
    attention: str
    traps: list[str]
    sources: list[str]

    def fits(self, config: dict[str, Any]) -> bool:
        return all(config.get(field) in values for field, values in self.match.items())


@cache
def profiles() -> tuple[Profile, ...]:
    text = Path(__file__).with_name("model_profiles.yaml").read_bytes()
    return tuple(msgspec.yaml.decode(text, type=list[Profile]))


def profile_of(config: dict[str, Any]) -> Profile | None:
    """Of a config.json; None for a family that is not known."""
    return next((profile for profile in profiles() if profile.fits(config)), None)


def profile_of_version(version: ModelVersion) -> Profile | None:
    """Of the base model that a version stands on; None where that is not in a folder here, or its family is not known."""
    folder = base_folder(version)
    return profile_of(_read_json(folder / "config.json")) if folder else None


def has_native_tools(version: ModelVersion) -> bool:
    """Whether the chat template of the base takes tools. Without it they are written into the messages as text."""
    folder = base_folder(version)
    return bool(folder) and any("tools" in _template(folder / name) for name in TEMPLATES)


def takes_text_arguments(version: ModelVersion) -> bool:
    """Whether the chat template of the base writes the arguments of a call that come as JSON text as they are. Others quote them again."""
    folder = base_folder(version)
    return bool(folder) and any("is string" in _template(folder / name) for name in TEMPLATES)


def base_folder(version: ModelVersion) -> Path | None:
    base = version.base_version()
    return Path(base.base) if base.kind == ModelKind.BASE and Path(base.base).is_dir() else None


def _template(path: Path) -> str:
    if path.suffix == ".json":
        return json.dumps(_read_json(path).get("chat_template", ""))
    return _read(path).decode("utf-8", "replace")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_READ)
    except OSError:
        return b""
