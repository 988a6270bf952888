"""Checks the weights of an adapter: none may be NaN or infinite, and if every lora_B is zero, the
adapter changes nothing.

Reads the file's bytes in pieces, because NumPy has no bfloat16 and torch is not loaded here.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from apps.registry.actions import ModelError

# dtype → (mask of the exponent, mask of all bits but the sign). An exponent of all ones is NaN or
# infinite.
BITS = {
    "F32": ("<u4", 0x7F80_0000, 0x7FFF_FFFF),
    "F16": ("<u2", 0x7C00, 0x7FFF),
    "BF16": ("<u2", 0x7F80, 0x7FFF),
}
PIECE = 2**22  # numbers at a time


def changes_something(path: Path) -> bool:
    """False if every lora_B is zero everywhere. Raises ModelError for a tensor with NaN, which it
    names, and for invalid safetensors files.
    """
    something = False
    if path.stat().st_size < 8:
        raise ModelError(f"{path.name} is not a safetensors file: it has no header.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for name, numbers, exponent, value in _pieces(data, path):
            if ((numbers & exponent) == exponent).any():
                raise ModelError(
                    f"{path.name}: {name[:120]} holds NaN or infinite numbers, so the adapter is"
                    " unusable. Its training diverged: use an earlier checkpoint."
                )
            something = something or (".lora_B." in name and bool((numbers & value).any()))
    return something


def _pieces(data: mmap.mmap, path: Path) -> Iterator[tuple[str, np.ndarray, int, int]]:
    """(tensor, the bits of some of its numbers, masks of the exponent and of the value)."""
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        tensors = json.loads(data[8:start]).items()
    except (ValueError, AttributeError) as error:
        raise ModelError(
            f"{path.name} is not a safetensors file: its header cannot be read."
        ) from error
    for name, entry in tensors:
        if name == "__metadata__" or entry["dtype"] not in BITS:
            continue
        kind, exponent, value = BITS[entry["dtype"]]
        begin, end = (start + at for at in entry["data_offsets"])
        size = PIECE * np.dtype(kind).itemsize
        for at in range(begin, end, size):
            yield name, np.frombuffer(data[at : min(end, at + size)], kind), exponent, value
