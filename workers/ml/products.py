"""Products with weights that are not trained: the same sums in less time on a CPU.

PyTorch multiplies float32 matrices by MKL. Of the sizes of an update, oneDNN, which PyTorch has as well, is 1.1 to 1.3 times as fast;
of the few rows of a step of generation 1.4 to 2.3 times, if the weights are in its own order (`Packed`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST = 2**15  # numbers of a weight; below, starting oneDNN's product takes longer than the product


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] · weight [out, in]ᵀ + bias. Without gradients: call it inside an autograd function or where none are wanted."""
    if x.dtype != torch.float32 or not onednn_has(weight):
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def onednn_has(weight: Tensor) -> bool:
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return plain and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


class Packed:
    """A weight in oneDNN's own order, for products with about that many rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, rows), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def packed(layer: Any, x: Tensor) -> Packed | None:
    """What `workers.ml.lean.packed_weights` has given the layer, where it can be used."""
    found = vars(layer).get("packed")
    return found if found is not None and x.dtype == torch.float32 and not torch.is_grad_enabled() else None
