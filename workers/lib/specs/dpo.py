"""The spec of `workers.dpo`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from workers.lib.specs.rows import FromRows, Pair, PreferenceConfig
from workers.lib.specs.training import Needs
from workers.lib.typed import Count


class DpoConfig(PreferenceConfig, kw_only=True):
    """`loss_type` as named by TRL: sigmoid is DPO's own, ipo does not diverge on easy pairs, robust
    assumes that a share `label_smoothing` of the pairs is the wrong way round, hinge is SLiC's,
    apo_zero also raises the probability of chosen answers.
    """

    needs: ClassVar[dict[str, Needs]] = {
        "label_smoothing": Needs(
            "loss_type",
            lambda loss: loss == "robust",
            "robust assumes that a share of the pairs is the wrong way round",
        )
    }
    loss_type: Literal["sigmoid", "ipo", "hinge", "robust", "apo_zero"] = "sigmoid"
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    micro_batch: Count = (
        0  # pairs per forward and backward pass, a divisor of a process's pairs; 0: all
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.batch_size // self.processes
        if self.micro_batch and own % self.micro_batch:
            which = (
                f"batch_size, which is {own}"
                if self.processes == 1
                else f"batch_size ÷ processes, which is {own}"
            )
            raise ValueError(f"micro_batch: must divide {which}")


class Dpo(FromRows, kw_only=True, tag="dpo"):
    rows: Annotated[list[Pair], Meta(min_length=1)]
    validation_rows: list[Pair] = []
    config: DpoConfig
