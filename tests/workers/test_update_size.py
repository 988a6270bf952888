"""How large what an adapter adds is, as a multiple of the weights that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def test_it_is_that_of_the_full_matrices(tiny_model: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from workers.ml.checkpoint import update_size

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert update_size(base) is None
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"])
    model = get_peft_model(base, config)
    model.add_adapter("reference", config)
    model.set_adapter("default")
    assert update_size(model) == 0  # lora_B is 0

    torch.manual_seed(1)
    added, weights = 0.0, 0.0
    for name, layer in model.named_modules():
        if name.endswith(("q_proj", "down_proj")):
            up, down = (part["default"].weight.detach() for part in (layer.lora_B, layer.lora_A))
            torch.nn.init.normal_(up)
            torch.nn.init.normal_(layer.lora_B["reference"].weight)
            added += float((3 * up @ down).square().sum())
            weights += float(layer.base_layer.weight.square().sum())
    assert update_size(model) == pytest.approx((added / weights) ** 0.5, rel=1e-4)
