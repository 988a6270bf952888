"""Base models and LoRA adapters that were trained elsewhere: where their folders may be, and
whether an adapter fits its base.

Nothing is unpickled or executed: only the safetensors headers of the weights are read here.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from django.db import transaction

from apps.core.models import Project
from apps.registry.actions import register_adapter, register_base
from apps.registry.artifacts import ArtifactError, local_path, store_folder
from apps.registry.bases import ModelError, base_folder, check_base_folder, folders
from apps.registry.declared_base import check_declared
from apps.registry.lora_numbers import changes_something, same_weights
from apps.registry.models import ModelKind, ModelVersion
from workers.lib import lora_files
from workers.lib.lora_files import CONFIG, WEIGHTS, AdapterError, Shapes, check_files, layers_of

MAX_CONFIG = 64 * 1024
MAX_ADAPTER = 2**30
# bytes; weights are hashed while the user waits, so larger models have to be registered by the
# command
MAX_BASE = 8 * 2**30


def allowed_folder(given: str) -> Path:
    """Raises ModelError, with the same message whether a folder is missing or not allowed. A
    relative one is looked up in these parents.
    """
    folder = Path(given.strip())
    if folder.parts and not folder.is_absolute():
        folder = next((path for parent in folders() if (path := parent / folder).is_dir()), folder)
    where = " or ".join(map(str, folders()))
    try:
        found = folder.resolve(strict=True)
        inside = folder.is_absolute() and any(found.is_relative_to(base) for base in folders())
    except (OSError, ValueError, RuntimeError):
        inside = False
    if not inside or not found.is_dir():
        raise ModelError(
            f"This must be an existing folder under {where} on the server (FLYWHEEL_MODEL_FOLDERS)."
        )
    return found


def register_base_folder(*, project: Project, name: str, folder: str, by: Any) -> ModelVersion:
    """Raises ModelError."""
    found = allowed_folder(folder)
    files = check_base_folder(found)
    if any(path.is_symlink() for path in [*files, found / "config.json"]):
        raise ModelError("The folder holds links; copy the files into it.")
    if (size := sum(path.stat().st_size for path in files)) > MAX_BASE:
        raise ModelError(
            f"The weights are {size / 2**30:.1f} GiB, and {MAX_BASE / 2**30:.0f} GiB is the most by"
            f" page and API. On the server: python manage.py register_model {found} --project"
            f" {project.slug}"
        )
    shapes_of(files)
    return register_base(project=project, name=name, folder=found, by=by)


def register_trained_adapter(
    *,
    project: Project,
    name: str,
    parent: ModelVersion,
    by: Any,
    folder: str = "",
    config: BinaryIO | None = None,
    weights: BinaryIO | None = None,
    confirm_base: bool = False,
) -> ModelVersion:
    """An adapter from a PEFT folder on the server, or from its two files. Raises ModelError."""
    if bool(folder) == bool(config and weights):
        raise ModelError(f"Give a folder, or both files: {CONFIG} and {WEIGHTS}.")
    with tempfile.TemporaryDirectory(prefix="adapter-") as made:
        given = (
            _from_folder(allowed_folder(folder)) if folder else {CONFIG: config, WEIGHTS: weights}
        )
        try:
            for file, source in given.items():
                copy_bounded(
                    source, Path(made) / file, MAX_CONFIG if file == CONFIG else MAX_ADAPTER
                )
        finally:
            for source in given.values() if folder else ():
                source.close()
        return register_checked(
            project=project,
            name=name,
            parent=parent,
            folder=Path(made),
            by=by,
            confirm_base=confirm_base,
        )


def register_checked(
    *,
    project: Project,
    name: str,
    parent: ModelVersion,
    folder: Path,
    by: Any,
    confirm_base: bool = False,
) -> ModelVersion:
    """`confirm_base`: whoever registers it says that it was trained on this base, although its
    configuration names another. Raises ModelError unless the folder is an adapter for the base of
    `parent`.
    """
    lineage = {"trained": "elsewhere"} | check_adapter(folder, parent)
    try:
        with transaction.atomic():
            artifact = store_folder(folder)
            lineage |= check_declared(folder / CONFIG, artifact, parent, confirmed=confirm_base)
            given = {"artifact": artifact, "lineage": lineage, "by": by}
            return register_adapter(project=project, name=name, parent=parent, **given)
    except ArtifactError as error:
        raise ModelError(str(error)) from error


def numbers_of(folder: Path, parent: ModelVersion) -> dict[str, Any]:
    """What a version's lineage records about its weights: {}, or that it `changes_nothing` and
    which version it `answers_like`: the adapter that it started from, or the base if it has no
    effect at all. Raises ModelError for NaN.
    """
    like = None
    if not changes_something(folder / WEIGHTS):
        like = parent.base_version()
    elif parent.artifact and same_weights(folder / WEIGHTS, _weights_of(parent)):
        like = parent
    return {"changes_nothing": True, "answers_like": str(like)} if like else {}


def unchanged(lineage: dict[str, Any]) -> str:
    """Why a run whose adapter has this lineage has no result; "" if it has one."""
    if not lineage.get("changes_nothing"):
        return ""
    return (
        f"The adapter answers exactly like {lineage['answers_like']}, so there is no new version."
        " Check that the training took steps, that its learning rate was not 0, and that the last"
        " checkpoint was sent, not the adapter that it started from."
    )


def _weights_of(version: ModelVersion) -> Path:
    try:
        return local_path(version.artifact) / WEIGHTS
    except ArtifactError as error:
        raise ModelError(str(error)) from error


def _from_folder(folder: Path) -> dict[str, BinaryIO]:
    """Open the two files that make an adapter; other files are ignored."""
    paths = [folder / name for name in (CONFIG, WEIGHTS)]
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise ModelError(
                f"The folder holds no file {path.name}, so it is not a PEFT adapter with"
                " safetensors."
            )
    return {path.name: path.open("rb") for path in paths}


def copy_bounded(source: Any, target: Path, most: int) -> None:
    """Raises ModelError beyond `most` bytes."""
    with target.open("wb") as file:
        shutil.copyfileobj(bounded(source, target.name, most), file)


class bounded:
    """A reader that raises ModelError after more than `most` bytes."""

    def __init__(self, source: BinaryIO, name: str, most: int) -> None:
        self.source, self.name, self.left, self.most = source, name, most, most

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(size if 0 <= size <= self.left else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ModelError(f"{self.name} is larger than {self.most / 2**20:g} MiB.")
        return data


def check_adapter(folder: Path, parent: ModelVersion) -> dict[str, Any]:
    """What an adapter's lineage records if it fits the base of `parent`: its `rank`, and
    `numbers_of`. Raises ModelError.
    """
    base = parent.base_version()
    if base.kind != ModelKind.BASE:
        raise ModelError(
            f"{parent} is not a base model in a folder of this installation, so nothing can be"
            " loaded on it."
        )
    with as_model_errors():
        config, shapes = check_files(folder)
        layers = layers_of(shapes, bool(config.get("use_dora")))
    _fits(layers, shapes_of(check_base_folder(base_folder(base))), base)
    return {"rank": config["r"]} | numbers_of(folder, parent)


@contextmanager
def as_model_errors() -> Iterator[None]:
    try:
        yield
    except AdapterError as error:
        raise ModelError(str(error)) from error


def check_target_modules(names: list[str], version: ModelVersion) -> None:
    """Raises ModelError if the base has no linear layer with one of these names."""
    base = version.base_version()
    layers = _linear_layers(base)
    unknown = [
        name for name in names if not any(f".{layer}".endswith(f".{name}") for layer in layers)
    ]
    if unknown:
        known = sorted({layer.rpartition(".")[2] for layer in layers})
        raise ModelError(
            f"{base} has no layer {', '.join(unknown[:5])}. Target modules may be all-linear, or"
            f" any of: {', '.join(known[:20])}."
        )


def has_every_linear_layer(names: list[str], version: ModelVersion) -> bool:
    """Whether these names are all linear layers of the base but its output layer. True also where
    the base's files cannot be read.
    """
    try:
        layers = _linear_layers(version.base_version())
    except ModelError:
        return True
    return all(
        any(f".{layer}".endswith(f".{name}") for name in names)
        for layer in layers
        if not layer.endswith("lm_head")
    )


def _linear_layers(base: ModelVersion) -> set[str]:
    """Raises ModelError."""
    return {
        name.removesuffix(".weight")
        for name, shape in shapes_of(check_base_folder(base_folder(base))).items()
        if name.endswith(".weight") and len(shape) == 2 and "embed" not in name
    }


def check_answer_length(tokens: int, version: ModelVersion) -> None:
    """Raises ModelError if answers of this length would leave no room for a prompt."""
    base = version.base_version()
    try:
        context = json.loads((base_folder(base) / "config.json").read_bytes()).get(
            "max_position_embeddings"
        )
    except (OSError, ValueError, AttributeError, ModelError):  # loading will report the problem
        return
    if isinstance(context, int) and tokens >= context:
        raise ModelError(
            f"{base} reads at most {context:,} tokens, prompt and answer together: max_new_tokens"
            f" must be less, and is {tokens:,}."
        )


def rank_of(path: Path) -> int:
    """Raises ModelError."""
    with as_model_errors():
        return lora_files.config_of(path)["r"]


def shapes_of(paths: list[Path]) -> Shapes:
    """{tensor: shape}, from the headers alone. Raises ModelError."""
    with as_model_errors():
        return lora_files.shapes_of(paths)


def _fits(layers: dict[str, tuple[int, int, int]], base: Shapes, version: ModelVersion) -> None:
    missing = [name for name in layers if f"{name}.weight" not in base and name != "lm_head"]
    if missing:
        raise ModelError(
            f"{len(missing)} of its {len(layers)} layers are not in {version}, for instance"
            f" {missing[0]}."
        )
    for name, (outputs, _, inputs) in layers.items():
        there = base.get(f"{name}.weight")
        if there is not None and there != (outputs, inputs):
            raise ModelError(
                f"It was trained on another base: {name} is {(outputs, inputs)} there and {there}"
                f" in {version}."
            )
