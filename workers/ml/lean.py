"""Layers that compute less and keep less for the backward pass: LoRA branches and gated
feed-forward layers (SwiGLU); and, for generation, linear layers with a merged adapter.

An update's time should be spent on matrix products alone. In the libraries' implementation, a LoRA
branch goes over its layer's output three more times in each direction; here its small product is
added in place to the result of the large one. A gated layer keeps four tensors of tokens ×
intermediate size; here it keeps two, and recomputes the others without a matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from torch.nn import functional

from workers.ml.products import Packed, onednn_has, packed, product

PARTS = (
    "gate_proj",
    "up_proj",
    "down_proj",
)  # names in Llama, Qwen, Mistral, Gemma and similar models
MOST_PACKED = 2**31  # bytes of packed weights, in addition to the model's own
WORTH = 256  # maximum number of new tokens from which packing saves more time than it takes


def keep_less(model: Any) -> None:
    """Replace every layer of a supported form; others are left unchanged."""
    for module in model.modules():
        is_silu = (
            "SiLU" in type(getattr(module, "act_fn", None)).__name__
        )  # torch's class, or that of transformers
        if is_silu and all(
            isinstance(getattr(module, part, None), torch.nn.Module) for part in PARTS
        ):
            module.forward = MethodType(_gated_forward, module)
        elif type(module) is LoraLinear:
            module.forward = MethodType(_lora_forward, module)
        elif type(module) is torch.nn.Linear:
            module.forward = MethodType(_linear_forward, module)


@contextmanager
def packed_weights(model: Any, rows: int, tokens: int) -> Iterator[None]:
    """Within the block, linear layers compute with copies of their weights that are faster to
    multiply by, with the adapter merged.

    For a batch of `rows` rows with at most `tokens` new tokens each. Results are the same up to
    float32 rounding. Only without gradients. The copies are made again for each batch, since
    updates change the adapter in between.
    """
    found = dict(_unpacked(model)) if rows * tokens >= WORTH else {}
    if sum(weight.nbytes for weight, *_ in found.values()) > MOST_PACKED:
        found = {}
    try:
        for layer, (weight, bias, *adapter) in found.items():
            if adapter:
                a, b, scaling = adapter
                weight = torch.addmm(weight, b, a, alpha=scaling)
            layer.packed = Packed(weight, bias, rows)
        yield
    finally:
        for layer in found:
            vars(layer).pop("packed", None)


def _unpacked(model: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """(layer, (weight, bias), and (A, B, scaling) if it has an adapter). A LoRA layer of an
    unsupported form computes as usual, but with its base's packed weight.
    """
    merged = set()
    for module in model.modules():
        if (
            type(module) is LoraLinear
            and (found := _adapter(module, module.weight))
            and onednn_has(found[0])
        ):
            merged.add(module.base_layer)
            yield module, found
        elif type(module) is torch.nn.Linear and module not in merged and onednn_has(module.weight):
            yield module, (module.weight, module.bias)


# LoRA


class _Lora(torch.autograd.Function):
    """x W' + bias + scaling × (x A') B', with x [..., in], W [out, in] and the bias frozen, A [r,
    in], B [out, r].
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scaling: float,
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        low = flat @ a.t()
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scaling = scaling
        return (
            product(flat, weight, bias)
            .addmm_(low, b.t(), alpha=scaling)
            .view(*x.shape[:-1], len(weight))
        )

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        x, low, weight, a, b = ctx.saved_tensors
        of_x, of_a, of_b = _lora_gradients(
            arriving, x, low, weight, a, b, ctx.scaling, ctx.needs_input_grad[0]
        )
        return of_x, None, None, of_a, of_b, None


def _lora_gradients(
    arriving: Tensor,
    x: Tensor,
    low: Tensor,
    weight: Tensor,
    a: Tensor,
    b: Tensor,
    scaling: float,
    of_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    flat = arriving.reshape(-1, len(weight))
    small = (flat @ b).mul_(scaling)
    found = product(flat, weight.t()).addmm_(small, a).view(x.shape) if of_x else None
    return found, small.t() @ x.reshape(-1, x.shape[-1]), (flat.t() @ low).mul_(scaling)


def _adapter(layer: Any, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, float] | None:
    """(weight, bias, A, B, scaling) of a plain LoRA layer with one active adapter and one dtype;
    None for any other.
    """
    active = [name for name in getattr(layer, "active_adapters", ()) if name in layer.lora_A]
    if type(layer) is not LoraLinear or layer.disable_adapters or layer.merged or len(active) != 1:
        return None
    base, dropout = layer.base_layer, layer.lora_dropout[active[0]]
    a, b = layer.lora_A[active[0]], layer.lora_B[active[0]]
    plain = (
        type(base) is torch.nn.Linear
        and not base.weight.requires_grad
        and active[0] not in layer.lora_variant
    )
    drops = layer.training and not isinstance(dropout, torch.nn.Identity) and dropout.p > 0
    if (
        not plain
        or drops
        or b.bias is not None
        or not x.dtype == base.weight.dtype == a.weight.dtype == b.weight.dtype
    ):
        return None
    return base.weight, base.bias, a.weight, b.weight, layer.scaling[active[0]]


def _linear_forward(layer: Any, x: Tensor) -> Tensor:
    whole = packed(layer, x)
    return whole(x) if whole else torch.nn.Linear.forward(layer, x)


def _lora_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not args and not kwargs and (whole := packed(layer, x)):
        return whole(x)
    found = None if args or kwargs else _adapter(layer, x)
    return _Lora.apply(x, *found) if found else LoraLinear.forward(layer, x, *args, **kwargs)


# Gated layers


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


class _GatedLora(torch.autograd.Function):
    """_Lora applied to _Gated, whose product is recomputed."""

    @staticmethod
    def forward(
        ctx: Any,
        gate: Tensor,
        up: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scaling: float,
    ) -> Tensor:
        flat = functional.silu(gate).mul_(up).reshape(-1, gate.shape[-1])
        low = flat @ a.t()
        ctx.save_for_backward(gate, up, low, weight, a, b)
        ctx.scaling = scaling
        found = product(flat, weight, bias).addmm_(low, b.t(), alpha=scaling)
        return found.view(*gate.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, low, weight, a, b = ctx.saved_tensors
        silu = functional.silu(gate)
        of_x, of_a, of_b = _lora_gradients(
            arriving, silu * up, low, weight, a, b, ctx.scaling, True
        )
        of_up = silu.mul_(of_x)
        return (
            torch.ops.aten.silu_backward(of_x.mul_(up), gate),
            of_up,
            None,
            None,
            of_a,
            of_b,
            None,
        )


def _gated_forward(layer: Any, x: Tensor) -> Tensor:
    gate, up, down = layer.gate_proj(x), layer.up_proj(x), layer.down_proj
    if whole := packed(down, gate):
        return whole(functional.silu(gate).mul_(up))
    found = _adapter(down, gate) if type(down) is LoraLinear else None
    return _GatedLora.apply(gate, up, *found) if found else down(_Gated.apply(gate, up))
