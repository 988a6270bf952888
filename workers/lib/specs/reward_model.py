"""The spec of `workers.reward_model`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from workers.lib.specs.rows import EvenConfig, FromRows, Pair


class RewardModelConfig(EvenConfig, kw_only=True):
    """`center_rewards` is the coefficient of (r₁ + r₂)², which keeps the rewards around 0
    (2312.09244). `show_tools`: whether the model also reads the tools' definitions.
    """

    validation_share: Annotated[float, Meta(gt=0, le=0.5)] = 0.2
    center_rewards: Annotated[float, Meta(ge=0, le=10)] = 0.0
    show_tools: bool = False
    not_in_4bit: ClassVar[str] = "a reward model is judged by its scores, which 4 bits would change"
    no_dropout: ClassVar[str] = "a reward model is trained without dropout"


class RewardModel(FromRows, kw_only=True, tag="reward_model"):
    rows: Annotated[list[Pair], Meta(min_length=1)]
    validation_rows: Annotated[list[Pair], Meta(min_length=1)]
    config: RewardModelConfig
