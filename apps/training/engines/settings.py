"""Which settings of a run each engine supports, and which ones the download page warns about.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.lib.specs.training import Training

# Setting: its name for people, and whether a run uses it. All other settings are supported by every
# engine, or only affect memory.
USED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "use_rslora": ("rsLoRA scaling", bool),
    "use_dora": ("DoRA", bool),
    "load_in_4bit": ("the base in 4 bits (QLoRA)", bool),
    "curriculum": ("the curriculum", bool),
    "replay_share": ("replay of fresh failures", bool),
    "dynamic_sampling": ("dynamic sampling", bool),
    "overlong_buffer": ("overlong shaping", bool),
    "mask_truncated": ("leaving truncated completions out of the loss", bool),
    "correction": ("rollout correction as set", lambda value: value not in ("auto", "off")),
    "baseline": ("the leave-one-out baseline", lambda value: value == "leave_one_out"),
    "advantages": ("advantages per turn", lambda value: value == "turn"),
    "correction_level": (
        "rollout correction of whole sequences",
        lambda value: value == "sequence",
    ),
    "minibatches": ("several minibatches per pass", lambda value: value > 1),
    "final_lr_share": ("the decay of the learning rate", lambda value: value != 1),
    "label_smoothing": ("label smoothing", bool),
    "validation_share": ("examples held back for validation, which train there", bool),
}
PEFT = {"use_rslora", "use_dora"}
TRAVELS: dict[str, set[str]] = {
    "verl": {"overlong_buffer", "correction", "correction_level"},
    "prime-rl": set(),
    "openrlhf": {"overlong_buffer", "dynamic_sampling", "correction"},
    "nemo-rl": {"overlong_buffer", "dynamic_sampling", "baseline"},
    "unsloth": {
        "use_rslora",
        "load_in_4bit",
        "mask_truncated",
        "final_lr_share",
        "label_smoothing",
    },
    "nemo-automodel": {"use_dora", "final_lr_share"},
    "trl": {*PEFT, "mask_truncated", "final_lr_share", "label_smoothing"},
}


ONLY_IN = {
    ("openrlhf", "sft"): {"final_lr_share"},
    ("openrlhf", "dpo"): {"final_lr_share", "label_smoothing"},
}  # settings per method


def left_behind(engine: str, method: str, config: Training) -> list[str]:
    """The settings that a run uses but the engine does not support, by their names for people."""
    given = TRAVELS[engine] | ONLY_IN.get((engine, method), set())
    return [
        words
        for name, (words, used) in USED.items()
        if name not in given and hasattr(config, name) and used(getattr(config, name))
    ]
