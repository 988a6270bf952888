"""Matrix products with frozen weights: the same results in less time on a CPU.

PyTorch multiplies float32 matrices with MKL. For the sizes of an update, oneDNN (which is part of
PyTorch) is 1.1 to 1.3 times as fast; for the few rows of a generation step 1.4 to 2.3 times, if the
weights are in its own layout (`Packed`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST = 2**15  # weights in a matrix; below, oneDNN's overhead is larger than the product


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] · weight [out, in]ᵀ + bias. Has no gradients: call it within an autograd function
    or under no_grad.
    """
    if x.dtype != torch.float32 or not onednn_has(weight):
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def onednn_has(weight: Tensor) -> bool:
    plain = (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    )
    return plain and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


class Packed:
    """A weight in oneDNN's own layout, for products with about this many rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, rows), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def packed(layer: Any, x: Tensor) -> Packed | None:
    """The packed weight that `workers.ml.lean.packed_weights` attached to the layer, if it can be
    used for x.
    """
    found = vars(layer).get("packed")
    return (
        found
        if found is not None and x.dtype == torch.float32 and not torch.is_grad_enabled()
        else None
    )
