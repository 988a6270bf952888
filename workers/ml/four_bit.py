"""A base whose linear layers are quantized to 4 bits, so that a larger model fits next to its
adapter (QLoRA, 2305.14314). Heavy: imports torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from workers.lib.errors import SpecError

MISSING = (
    "“config.load_in_4bit” needs bitsandbytes, which is not installed where training runs. Install"
    " it there with `pip install -r requirements/qlora.txt`, or set load_in_4bit to false."
)


def quantization(dtype: str, device: str) -> dict[str, Any]:
    """Arguments of `from_pretrained`: NormalFloat with double quantization, and products in
    `dtype`. Embeddings, norms and the output layer are not quantized. Raises SpecError without
    bitsandbytes.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise SpecError(MISSING)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )
    return {"quantization_config": config, "device_map": {"": device}}


def keep_weights_as_loaded(model: Any) -> None:
    """On some CPUs bitsandbytes repacks the weights with bfloat16 scales in the first pass without
    gradients, which would change the model during the run. Prevent that.
    """
    for layer in _layers(model):
        layer.support_avx512bf16_for_cpu = False


@contextmanager
def products_in_float32(model: Any) -> Iterator[None]:
    layers = _layers(model)
    before = [layer.compute_dtype for layer in layers]
    for layer in layers:
        layer.compute_dtype = torch.float32
    try:
        yield
    finally:
        for layer, dtype in zip(layers, before, strict=True):
            layer.compute_dtype = dtype


def size_of(parameter: torch.Tensor) -> int:
    """The number of weights; a quantized parameter packs two into a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def _layers(model: Any) -> list[Any]:
    """None of a base that is not quantized."""
    if not getattr(model, "is_loaded_in_4bit", False):
        return []
    from bitsandbytes.nn import Linear4bit

    return [module for module in model.modules() if isinstance(module, Linear4bit)]
