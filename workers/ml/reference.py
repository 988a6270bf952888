"""The initial policy of a run, from which the KL is measured. Heavy: imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from workers.lib.lora_files import check_files
from workers.lib.token_rows import TokenRow
from workers.ml.models import using
from workers.ml.tree import logprobs_of


class Reference:
    """A second, frozen adapter of the model being trained; the bare base model if the run starts
    without an adapter.
    """

    def __init__(self, model: Any, start: str | None) -> None:
        self.model, self.frozen = model, bool(start)
        if start:
            check_files(start)
            model.load_adapter(start, "reference", is_trainable=False)

    def logprobs(
        self, rows: Sequence[TokenRow], temperature: float, check: Callable[[], None]
    ) -> Tensor:
        """[R, U]: log-probabilities of the rows' learned tokens. `check` is called after each part,
        and may raise.
        """
        with using(self.model, "reference" if self.frozen else None):
            return logprobs_of(self.model, rows, temperature, check)
