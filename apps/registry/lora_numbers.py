"""Checks the weights of an adapter: none may be NaN or infinite. If every lora_B is 0, it answers
like its base; if no weight differs from those of another adapter, like that one.

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
# Half the distance of two neighbouring numbers, relative to them: what rounding may change.
ROUNDING = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8}
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


def same_weights(path: Path, other: Path) -> bool:
    """Whether two adapters have the same tensors with the same numbers, apart from the rounding of
    the less precise one. Both files have been checked.
    """
    with (
        path.open("rb") as file,
        other.open("rb") as other_file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        mmap.mmap(other_file.fileno(), 0, access=mmap.ACCESS_READ) as other_data,
    ):
        mine, theirs = _tensors(data, path), _tensors(other_data, other)
        if {name: entry["shape"] for name, entry in mine.items()} != {
            name: entry["shape"] for name, entry in theirs.items()
        }:
            return False
        return all(
            _same(_values(data, mine[name]), _values(other_data, theirs[name]), mine[name], entry)
            for name, entry in theirs.items()
        )


def _same(
    mine: Iterator[np.ndarray], theirs: Iterator[np.ndarray], entry: dict, other: dict
) -> bool:
    allowed = max(ROUNDING.get(one["dtype"], 0.0) for one in (entry, other))
    if entry["dtype"] == other["dtype"]:
        allowed = 0.0
    return all(
        np.allclose(one, two, rtol=allowed, atol=0.0) for one, two in zip(mine, theirs, strict=True)
    )


def _values(data: mmap.mmap, entry: dict) -> Iterator[np.ndarray]:
    """A tensor's numbers in pieces; those of unknown types as bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = (start + at for at in entry["data_offsets"])
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(entry["dtype"], "u1")
    size = PIECE * np.dtype(kind).itemsize
    for at in range(begin, end, size):
        piece = np.frombuffer(data[at : min(end, at + size)], kind)
        if entry["dtype"] == "BF16":  # the upper half of a float32
            piece = (piece.astype("<u4") << 16).view("<f4")
        yield piece.astype("f4")


def _pieces(data: mmap.mmap, path: Path) -> Iterator[tuple[str, np.ndarray, int, int]]:
    """(tensor, the bits of some of its numbers, masks of the exponent and of the value)."""
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in _tensors(data, path).items():
        if entry["dtype"] not in BITS:
            continue
        kind, exponent, value = BITS[entry["dtype"]]
        begin, end = (start + at for at in entry["data_offsets"])
        size = PIECE * np.dtype(kind).itemsize
        for at in range(begin, end, size):
            yield name, np.frombuffer(data[at : min(end, at + size)], kind), exponent, value


def _tensors(data: mmap.mmap, path: Path) -> dict[str, dict]:
    """The header's entries by name. Raises ModelError."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        entries = header.items()
    except (ValueError, AttributeError) as error:
        raise ModelError(
            f"{path.name} is not a safetensors file: its header cannot be read."
        ) from error
    return {name: entry for name, entry in entries if name != "__metadata__"}
