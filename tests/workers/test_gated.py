"""Gated layers that keep less compute the same, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from workers.ml.gated import _Gated, keep_less
from workers.ml.models import load_base
from workers.ml.tree import use_tree


def plain(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def through(multiply: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    gate, up = (torch.randn(3, 5, 16, dtype=dtype).mul_(4).requires_grad_() for _ in range(2))
    arriving = torch.randn(3, 5, 16, dtype=dtype)
    out = multiply(gate, up)
    out.backward(arriving)
    return out, gate.grad, up.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_plain_layer(dtype: torch.dtype) -> None:
    for found, expected in zip(through(_Gated.apply, dtype), through(plain, dtype), strict=True):
        assert torch.equal(found, expected)


def kept(layer: Any, x: torch.Tensor) -> int:
    """Numbers that a layer's forward pass keeps for the backward pass, of tensors that depend on x."""
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[:-1] == x.shape[:-1]:
            sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = layer(x)
    out.sum().backward()
    return sum(sizes.values())


def test_a_layer_keeps_one_tensor_less(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    layer = model.model.layers[0].mlp
    x = torch.randn(1, 7, 32, requires_grad=True)
    before = kept(layer, x)
    keep_less(model)
    assert before - kept(layer, x) == 7 * 64


def test_training_and_generation_use_it(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    use_tree(model)
    assert all("gated" in layer.mlp.forward.__func__.__module__ for layer in model.model.layers)


def test_a_layer_of_another_function_is_left_alone(tiny_model: Path) -> None:
    model = load_base(tiny_model)[0]
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    keep_less(model)
    assert not any("forward" in vars(layer.mlp) for layer in model.model.layers)
