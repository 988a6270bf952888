"""Products with weights that are not trained: the same sums in less time on a CPU.

PyTorch multiplies float32 matrices by MKL. Of the sizes of an update, oneDNN, which PyTorch has as well, is 1.1 to 1.3 times as fast.
"""

from __future__ import annotations

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
