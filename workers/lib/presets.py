"""Presets of GRPO: the settings that make up each published variant, by name. Pure;
docs/training-methods.md has the formulas.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    label: str
    about: str
    fields: dict[str, Any]


PRESETS = {
    "dapo": Preset(
        "DAPO",
        "Token-level loss, wider clipping upwards, other tasks in place of groups without spread. A"
        " good default.",
        {
            "loss_type": "dapo",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "scale_rewards": "group",
            "dynamic_sampling": 2,
        },
    ),
    "gspo": Preset(
        "GSPO",
        "One ratio per sequence, in a clip range of its own. Steadier for long answers and mixtures"
        " of experts.",
        {"loss_type": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "scale_rewards": "group"},
    ),
    "dr_grpo": Preset(
        "Dr. GRPO",
        "No division by length or standard deviation, so neither long answers nor easy tasks weigh"
        " more.",
        {"loss_type": "dr_grpo", "clip_low": 0.2, "clip_high": 0.2, "scale_rewards": "none"},
    ),
    "rloo": Preset(
        "RLOO",
        "Each reward against the mean of the others in its group; an answer is one action.",
        {
            "loss_type": "rloo",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "scale_rewards": "none",
            "baseline": "leave_one_out",
        },
    ),
    "ppo": Preset(
        "PPO",
        "A critic learns what each token is worth, so one answer per prompt is enough. Usual for"
        " reward models (RLHF); needs twice the time per update.",
        {
            "advantages": "gae",
            "loss_type": "dapo",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "updates_per_batch": 4,
        },
    ),
    "grpo": Preset(
        "GRPO",
        "As first published: mean over tokens, then over answers, clipped alike on both sides.",
        {"loss_type": "grpo", "clip_low": 0.2, "clip_high": 0.2, "scale_rewards": "group"},
    ),
}


def preset_of(config: dict[str, Any]) -> str:
    """The preset whose fields a config has; if the config differs in other fields, the name of its
    loss.
    """
    exact = [name for name, preset in PRESETS.items() if preset.fields.items() <= config.items()]
    return exact[0] if exact else str(config.get("loss_type", "dapo"))
