"""The settings of each training method."""

from __future__ import annotations

from workers.lib.specs.best_of_n import BestOfNConfig
from workers.lib.specs.dpo import DpoConfig
from workers.lib.specs.grpo import GrpoConfig
from workers.lib.specs.kto import KtoConfig
from workers.lib.specs.on_policy import OnPolicyConfig
from workers.lib.specs.reward_model import RewardModelConfig
from workers.lib.specs.sft import SftConfig
from workers.lib.specs.training import Training

CONFIGS: dict[str, type[Training]] = {
    "sft": SftConfig,
    "rejection": SftConfig,
    "distill": SftConfig,
    "dpo": DpoConfig,
    "kto": KtoConfig,
    "reward_model": RewardModelConfig,
    "best_of_n": BestOfNConfig,
    "on_policy": OnPolicyConfig,
    "grpo": GrpoConfig,
}
