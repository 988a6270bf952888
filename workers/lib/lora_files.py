"""Validates the two files of a LoRA adapter, as PEFT and vLLM read them. The only rule on what an
adapter may hold: the apps apply it when one is registered, the programs before they load one.

The weights hold nothing but the low-rank matrices of the layers that the configuration names. PEFT
would copy any other tensor over the base's own, and every model that shares the base would answer
with it, even after the adapter is removed. A field that would make two servers compute different
results from the same files is refused, by name. Nothing is unpickled or executed: of the weights,
only the header is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import re2
from safetensors import SafetensorError, safe_open

from workers.lib.errors import JobError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LORA_A, LORA_B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"
FLOATS = frozenset({"F32", "F16", "BF16"})
MAX_RANK = 512
ALPHAS = (1e-6, 1e6)  # below, an adapter has no effect; above, it only adds noise

# Fields that make the adapter more than low-rank matrices next to the base's linear layers. Servers
# do not load these, or handle them differently.
MORE_THAN_LORA = (
    "auto_mapping",
    "megatron_config",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "use_bdlora",
    "use_qalora",
    "lora_bias",
)
PLAIN_INITS = frozenset(
    {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}
)  # PEFT changes the base itself for the others


Shapes = Mapping[str, tuple[int, ...]]


class AdapterError(JobError):
    """Files that are not a LoRA adapter that can be served as it was trained; a sentence for the
    page.
    """


def check_files(folder: str | Path, head: str = "") -> tuple[dict[str, Any], Shapes]:
    """(configuration, {tensor: shape}) of an adapter. `head`: the layer of a reward model that is
    saved whole besides. Raises AdapterError.
    """
    home = Path(folder)
    if missing := next((name for name in (CONFIG, WEIGHTS) if not (home / name).is_file()), None):
        raise AdapterError(f"The adapter folder {home} is missing or holds no {missing}.")
    config = config_of(home / CONFIG, head)
    shapes = shapes_of([home / WEIGHTS], FLOATS)
    own = {f"{PREFIX}{head}.weight"} if head else set()
    check_layers({name: shape for name, shape in shapes.items() if name not in own}, config)
    return config, shapes


def check_base_is_plain(folder: Path) -> None:
    """Transformers applies an adapter that lies in a base's folder without a word, to the base that
    the adapter names: another model than the registered weights, from anywhere on the disk.
    Raises AdapterError.
    """
    if os.path.lexists(folder / CONFIG):
        raise AdapterError(
            f"The model folder {folder} holds {CONFIG}, so another base than its own weights could"
            " be loaded, with an adapter. Move the adapter's files to a folder of their own and"
            " register it as an adapter."
        )


def shapes_of(
    paths: Iterable[Path], types: frozenset[str] | None = None
) -> dict[str, tuple[int, ...]]:
    """{tensor: shape}, from the headers alone. `types`: allowed dtypes. Raises AdapterError."""
    found: dict[str, tuple[int, ...]] = {}
    for path in paths:
        try:
            with safe_open(path, framework="numpy") as tensors:
                slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
                found |= {name: tuple(part.get_shape()) for name, part in slices.items()}
                odd = (
                    sorted({part.get_dtype() for part in slices.values()} - types) if types else []
                )
        except (SafetensorError, OSError, ValueError) as error:
            raise AdapterError(
                f"{path.name} is not a whole safetensors file: it is damaged or was cut off."
            ) from error
        if odd:
            raise AdapterError(
                f"{path.name} holds numbers of the type {odd[0]}; LoRA weights are"
                f" {', '.join(sorted(types or ()))}."
            )
    return found


def layers_of(tensors: Shapes, dora: bool = False) -> dict[str, tuple[int, int, int]]:
    """{layer: (outputs, rank, inputs)} of weights that hold nothing else. Raises AdapterError."""
    parts = (LORA_A, LORA_B, MAGNITUDE) if dora else (LORA_A, LORA_B)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in tensors.items():
        part = next(
            (part for part in parts if name.startswith(PREFIX) and name.endswith(part)), None
        )
        if part is None:
            raise AdapterError(not_lora(name))
        found.setdefault(name.removeprefix(PREFIX).removesuffix(part), {})[part] = shape
    if not found:
        raise AdapterError(f"{WEIGHTS} has no LoRA weights (names like {PREFIX}….lora_A.weight).")
    for layer, shapes in found.items():
        first, second = shapes.get(LORA_A, ()), shapes.get(LORA_B, ())
        if len(first) != 2 or len(second) != 2 or second[1] != first[0]:
            raise AdapterError(
                f"{WEIGHTS}: {layer[:80]} needs a lora_A and a lora_B of the same rank."
            )
        if dora and shapes.get(MAGNITUDE) != (second[0],):
            raise AdapterError(
                f"{WEIGHTS}: {layer[:80]} has no lora_magnitude_vector of {second[0]} numbers"
                " (“use_dora”)."
            )
    return {layer: (parts[LORA_B][0], *parts[LORA_A]) for layer, parts in found.items()}


def not_lora(name: str) -> str:
    """Why a tensor is refused, and what to do about it."""
    if not name.startswith(PREFIX):
        return f"{WEIGHTS} holds “{name[:80]}”, which is not part of a PEFT adapter."
    layer = name.removeprefix(PREFIX)[:80]
    if layer.endswith(MAGNITUDE):
        return f"{CONFIG} and {WEIGHTS} disagree about DoRA (“use_dora”, lora_magnitude_vector)."
    if ".lora_embedding_" in layer:
        return (
            f"{WEIGHTS} holds {layer}: LoRA on embeddings is not served. Train linear layers only."
        )
    return (
        f"{WEIGHTS} holds {layer}, which is not LoRA: it would overwrite the base's own weights."
        " Save the adapter without it (PEFT: save_embedding_layers=False, no modules_to_save), or"
        " merge it and register a whole model."
    )


def config_of(path: Path, head: str = "") -> dict[str, Any]:
    """The config of a LoRA adapter that can be loaded and has an effect. Raises AdapterError."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{CONFIG} is not JSON (UTF-8, without a byte order mark).") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(
            f"{CONFIG} does not say “peft_type”: “LORA”; only LoRA adapters are loaded."
        )
    if not _is_rank(config.get("r")):
        raise AdapterError(f"{CONFIG} must say the rank “r”, from 1 to {MAX_RANK}.")
    _check_alpha(config.get("lora_alpha", 8))  # PEFT's default
    targets = config.get("target_modules")
    names = targets if isinstance(targets, list) else [targets]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise AdapterError(
            f"{CONFIG} must say its “target_modules”: the names of layers, or “all-linear”."
        )
    _check_plain(config, head)
    return config


def check_layers(tensors: Shapes, config: Mapping[str, Any]) -> None:
    """Raises AdapterError if the weights hold anything else than the configuration says: a server
    would load other layers, or fail.
    """
    rank_of, alpha_of = _pattern(config, "rank_pattern"), _pattern(config, "alpha_pattern")
    targeted, excluded = (
        _names(config["target_modules"]),
        _names(config.get("exclude_modules") or []),
    )
    for layer, (_, rank, _) in layers_of(tensors, bool(config.get("use_dora"))).items():
        if (
            not targeted(layer)
            or excluded(layer)
            or not _in_layers(layer, config.get("layers_to_transform"))
        ):
            raise AdapterError(
                f"{WEIGHTS} has weights for {layer}, which is none of the “target_modules” of"
                f" {CONFIG}."
            )
        if (said := rank_of(layer, config["r"])) != rank:
            raise AdapterError(f"{CONFIG} says rank {said}, and {layer} has rank {rank}.")
        if not _is_rank(rank):
            raise AdapterError(f"{layer} has rank {rank}; {MAX_RANK} is the most.")
        _check_alpha(alpha_of(layer, config.get("lora_alpha", 8)))


def _check_plain(config: Mapping[str, Any], head: str) -> None:
    names = set(MORE_THAN_LORA) - (
        {"modules_to_save"} if head else set()
    )  # PEFT adds its own names for heads
    if found := next((name for name in sorted(names) if config.get(name)), None):
        raise AdapterError(
            f"{CONFIG} has “{found}”: that is more than plain LoRA, and servers would not serve"
            " what was trained."
        )
    init, task, bias = (
        config.get("init_lora_weights", True),
        config.get("task_type"),
        config.get("bias", "none"),
    )
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        raise AdapterError(
            f"{CONFIG} has “init_lora_weights”: “{init[:40]}”, which changes the base when it is"
            " loaded. Save it as plain LoRA first (PEFT:"
            " path_initial_model_for_weight_conversion)."
        )
    if task not in (("SEQ_CLS",) if head else (None, "CAUSAL_LM")):
        kind = "reward models are SEQ_CLS" if head else "models that answer are CAUSAL_LM"
        raise AdapterError(f"{CONFIG} has “task_type”: “{str(task)[:40]}”; {kind}.")
    if bias != "none":
        raise AdapterError(f"{CONFIG} has “bias”: “{str(bias)[:40]}”; only “none” is served.")


def _is_rank(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANK


def _check_alpha(value: Any) -> None:
    if type(value) not in (int, float) or not ALPHAS[0] <= value <= ALPHAS[1]:
        raise AdapterError(
            f"{CONFIG} has no lora_alpha above 0 (between {ALPHAS[0]:g} and {ALPHAS[1]:g}), so the"
            " adapter would change nothing (veRL writes 0 where lora_train_meta.json is missing)."
            " Set the value that it was trained with."
        )


def _pattern(config: Mapping[str, Any], field: str) -> Any:
    """A function (layer, default) → value: the first key that matches the end of the layer's name
    counts, as in PEFT.
    """
    given = config.get(field) or {}
    if not isinstance(given, dict):
        raise AdapterError(f"{CONFIG}: “{field}” must be an object.")
    keys = [(_compiled(rf"(?:.*\.)?(?:{key})"), value) for key, value in given.items()]
    return lambda layer, default: next(
        (value for key, value in keys if key.fullmatch(layer)), default
    )


def _names(given: Any) -> Any:
    """A function that says whether a layer is selected: by a list of names, “all-linear”, or a
    pattern.
    """
    if isinstance(given, str) and given.lower() == "all-linear":
        return lambda layer: True
    if isinstance(given, str):
        pattern = _compiled(given)
        return lambda layer: pattern.fullmatch(layer) is not None
    if not isinstance(given, list):
        raise AdapterError(f"{CONFIG}: the names of layers must be a list, or one text.")
    return lambda layer: any(layer == name or layer.endswith(f".{name}") for name in given)


def _compiled(pattern: str) -> Any:
    """Compiled with RE2, which runs in linear time: the pattern comes from whoever uploads the
    adapter.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise AdapterError(
            f"{CONFIG} has a pattern that cannot be checked: “{pattern[:80]}”. Write the names of"
            " layers."
        ) from error


def _in_layers(layer: str, given: Any) -> bool:
    """Whether `layers_to_transform` includes the layer."""
    if given is None or given == []:
        return True
    return any(
        int(number) in (given if isinstance(given, list) else [given])
        for number in re.findall(r"\.(\d{1,6})\.", layer)
    )
