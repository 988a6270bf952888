"""Known families of base models (`model_profiles.yaml`): template, tool format, LoRA targets,
pitfalls, kernels.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from apps.registry.bases import find_base
from apps.registry.models import ModelVersion

MAX_READ = 4 * 2**20  # bytes read of a config or a template
TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One family. `lora_exclude` are patterns of layers that must not be adapted. `tool_parser` is
    vLLM's name of its parser, `renderer` the name in the package renderers, which verifiers and
    prime-rl use.
    """

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
    """The profile for a config.json; None for an unknown family."""
    return next((profile for profile in profiles() if profile.fits(config)), None)


def profile_of_version(version: ModelVersion) -> Profile | None:
    """The profile of the base model that a version is based on; None if it is not in a local folder
    or its family is unknown.
    """
    folder = find_base(version)
    return profile_of(_read_json(folder / "config.json")) if folder else None


def has_native_tools(version: ModelVersion) -> bool:
    """Whether the base's chat template supports tools. Otherwise, tools are written into the
    messages as text.
    """
    return "tools" in template_of(version)


def takes_text_arguments(version: ModelVersion) -> bool:
    """Whether the base's chat template inserts a call's arguments unchanged if they are JSON text.
    Other templates quote them again.
    """
    return "is string" in template_of(version)


def template_of(version: ModelVersion) -> str:
    """The base's chat template, or several one after another; "" if it is not in a local folder."""
    folder = find_base(version)
    return "\n".join(_template(folder / name) for name in TEMPLATES) if folder else ""


def _template(path: Path) -> str:
    if path.suffix != ".json":
        return _read(path).decode("utf-8", "replace")
    template = _read_json(path).get("chat_template") or ""
    named = template if isinstance(template, list) else [{"template": template}]
    return "\n".join(str(each.get("template", "")) for each in named if isinstance(each, dict))


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
