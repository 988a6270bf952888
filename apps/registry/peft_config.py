"""Validates the `adapter_config.json` of a LoRA adapter, as PEFT and vLLM read it: it must match the adapter's weights.

A field that would make two servers compute different results from the same files is refused, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import re2

from apps.registry.actions import ModelError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
ALPHAS = (1e-6, 1e6)  # below, an adapter has no effect; above, it only adds noise

# Fields that make the adapter more than low-rank matrices next to the base's linear layers. Servers do not load these, or handle them differently.
MORE_THAN_LORA = (
    "auto_mapping", "megatron_config", "modules_to_save", "trainable_token_indices", "target_parameters", "layer_replication",
    "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "velora_config", "use_bdlora", "use_qalora",
    "lora_bias",
)  # fmt: skip
PLAIN_INITS = frozenset(
    {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}
)  # PEFT changes the base itself for the others


def config_of(path: Path) -> dict[str, Any]:
    """The config of a LoRA adapter that can be loaded and has an effect. Raises ModelError."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{CONFIG} is not JSON (UTF-8, without a byte order mark).") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelError(f"{CONFIG} does not say “peft_type”: “LORA”; only LoRA adapters are loaded.")
    if not _is_rank(config.get("r")):
        raise ModelError(f"{CONFIG} must say the rank “r”, from 1 to {MAX_RANK}.")
    _check_alpha(config.get("lora_alpha", 8))  # PEFT's default
    targets = config.get("target_modules")
    names = targets if isinstance(targets, list) else [targets]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ModelError(f"{CONFIG} must say its “target_modules”: the names of layers, or “all-linear”.")
    _check_plain(config)
    return config


def check_layers(ranks: Mapping[str, int], tensors: Iterable[str], config: Mapping[str, Any]) -> None:
    """`ranks` are those of the weights, by layer. Raises ModelError if the configuration says otherwise: a server would
    load other layers, or fail.
    """
    rank_of, alpha_of = _pattern(config, "rank_pattern"), _pattern(config, "alpha_pattern")
    targeted, excluded = _names(config["target_modules"]), _names(config.get("exclude_modules") or [])
    for layer, rank in ranks.items():
        if not targeted(layer) or excluded(layer) or not _in_layers(layer, config.get("layers_to_transform")):
            raise ModelError(f"{WEIGHTS} has weights for {layer}, which is none of the “target_modules” of {CONFIG}.")
        if (said := rank_of(layer, config["r"])) != rank:
            raise ModelError(f"{CONFIG} says rank {said}, and {layer} has rank {rank}.")
        if not _is_rank(rank):
            raise ModelError(f"{layer} has rank {rank}; {MAX_RANK} is the most.")
        _check_alpha(alpha_of(layer, config.get("lora_alpha", 8)))
    if bool(config.get("use_dora")) != any(".lora_magnitude_vector" in name for name in tensors):
        raise ModelError(f"{CONFIG} and {WEIGHTS} disagree about DoRA (“use_dora”, lora_magnitude_vector).")


def _check_plain(config: Mapping[str, Any]) -> None:
    if found := next((name for name in MORE_THAN_LORA if config.get(name)), None):
        raise ModelError(
            f"{CONFIG} has “{found}”: that is more than plain LoRA, and servers would not serve what was trained."
        )
    init, task, bias = config.get("init_lora_weights", True), config.get("task_type"), config.get("bias", "none")
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        raise ModelError(
            f"{CONFIG} has “init_lora_weights”: “{init[:40]}”, which changes the base when it is loaded. Save it as plain LoRA first "
            "(PEFT: path_initial_model_for_weight_conversion)."
        )
    if task not in (None, "CAUSAL_LM"):
        raise ModelError(f"{CONFIG} has “task_type”: “{str(task)[:40]}”; models that answer are CAUSAL_LM.")
    if bias != "none":
        raise ModelError(f"{CONFIG} has “bias”: “{str(bias)[:40]}”; only “none” is served.")


def _is_rank(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANK


def _check_alpha(value: Any) -> None:
    if type(value) not in (int, float) or not ALPHAS[0] <= value <= ALPHAS[1]:
        raise ModelError(
            f"{CONFIG} has no lora_alpha above 0 (between {ALPHAS[0]:g} and {ALPHAS[1]:g}), so the adapter would change nothing (veRL writes "
            "0 where lora_train_meta.json is missing). Set the value that it was trained with."
        )


def _pattern(config: Mapping[str, Any], field: str) -> Any:
    """A function (layer, default) → value: the first key that matches the end of the layer's name counts, as in
    PEFT.
    """
    given = config.get(field) or {}
    if not isinstance(given, dict):
        raise ModelError(f"{CONFIG}: “{field}” must be an object.")
    keys = [(_compiled(rf"(?:.*\.)?(?:{key})"), value) for key, value in given.items()]
    return lambda layer, default: next((value for key, value in keys if key.fullmatch(layer)), default)


def _names(given: Any) -> Any:
    """A function that says whether a layer is selected: by a list of names, “all-linear”, or a pattern."""
    if isinstance(given, str) and given.lower() == "all-linear":
        return lambda layer: True
    if isinstance(given, str):
        pattern = _compiled(given)
        return lambda layer: pattern.fullmatch(layer) is not None
    if not isinstance(given, list):
        raise ModelError(f"{CONFIG}: the names of layers must be a list, or one text.")
    return lambda layer: any(layer == name or layer.endswith(f".{name}") for name in given)


def _compiled(pattern: str) -> Any:
    """Compiled with RE2, which runs in linear time: the pattern comes from whoever uploads the adapter."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ModelError(
            f"{CONFIG} has a pattern that cannot be checked: “{pattern[:80]}”. Write the names of layers."
        ) from error


def _in_layers(layer: str, given: Any) -> bool:
    """Whether `layers_to_transform` includes the layer."""
    if given is None or given == []:
        return True
    return any(
        int(number) in (given if isinstance(given, list) else [given]) for number in re.findall(r"\.(\d{1,6})\.", layer)
    )
