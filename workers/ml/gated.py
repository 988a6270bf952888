"""Gated feed-forward layers (SwiGLU) that keep less for the backward pass.

Written as `down(silu(gate) * up)` they keep four tensors of tokens × intermediate size a layer: what goes into silu, what comes
out of it, up, and the product, which the adapter of `down` needs. What comes out of silu is the cheapest to compute again.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PARTS = ("gate_proj", "up_proj", "down_proj")  # as Llama, Qwen, Mistral, Gemma and their like name them


class _Gated(torch.autograd.Function):
    """silu(gate) × up, both [..., intermediate]."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = torch.ops.aten.silu_backward(arriving * up, gate)
        return of_gate, functional.silu(gate).mul_(arriving)


def keep_less(model: Any) -> None:
    """Of every layer of that form with silu; others are left as they are."""
    for module in model.modules():
        is_silu = "SiLU" in type(getattr(module, "act_fn", None)).__name__  # torch's, or transformers' own
        if is_silu and all(isinstance(getattr(module, part, None), torch.nn.Module) for part in PARTS):
            module.forward = MethodType(_forward, module)


def _forward(layer: Any, x: Tensor) -> Tensor:
    return layer.down_proj(_Gated.apply(layer.gate_proj(x), layer.up_proj(x)))
