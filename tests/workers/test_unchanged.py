"""A run that has changed no weight fails with a sentence, whatever its method; it makes no adapter
to publish.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workers.lib.errors import JobError
from workers.lib.specs.training import Lora
from workers.ml.checkpoint import save_adapter, save_result
from workers.ml.models import load_base, lora

LORA = Lora(lora_rank=4, lora_alpha=8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_as_it_was_is_no_result(tiny_model: Path, tmp_path: Path, dtype: str) -> None:
    fresh = lora(load_base(tiny_model)[0], LORA, None)
    with pytest.raises(
        JobError, match="No weight has changed in 4 steps, so there is no new version"
    ):
        save_result(fresh, tmp_path / "a", None, 4)
    weights = [weight for name, weight in fresh.named_parameters() if "lora_B" in name]
    torch.nn.init.normal_(weights[0])
    first = save_result(fresh, tmp_path / "b", None, 4)
    start = first
    if dtype == "bfloat16":  # trained elsewhere in half precision
        start = save_adapter(
            lora(load_base(tiny_model)[0], LORA, str(first)).to(torch.bfloat16), tmp_path / "half"
        )
    again = lora(load_base(tiny_model)[0], LORA, str(start))
    with pytest.raises(JobError, match="There is a reason"):
        save_result(again, tmp_path / "c", str(start), 4, unchanged="There is a reason.")
    with torch.no_grad():
        next(weight for name, weight in again.named_parameters() if "lora_A" in name)[0, 0] += 1e-3
    assert save_result(again, tmp_path / "d", str(start), 4).is_dir()
