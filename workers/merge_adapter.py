"""Merges a LoRA adapter into its base, for servers that only load whole models. `python -m
workers.merge_adapter spec.json`

Merging is done in float32 on the CPU; the weights are stored in the base's own dtype. The written
model is loaded again and must give a fixed text the same log-probabilities as base and adapter,
both computed in float32 (docs/artifacts.md).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from workers.fingerprint import MOST_OF_MEMORY, require_numbers, text_logprobs
from workers.lib.adapter_serving import LEAST_MOVE, difference, mean_distance, norm
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.memory import gigabytes
from workers.lib.program import StopFlag, run_main
from workers.lib.specs.merge_adapter import MergeAdapter

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as in safetensors headers
TOLERANCE = {
    "float32": 1e-3,
    "bfloat16": 0.05,
    "float16": 0.05,
}  # mean |Δ log-probability|, in nats
MOST_LOST = 0.25  # maximum share of the adapter's effect that rounding to 16 bits may lose


def stored(folder: Path) -> tuple[str, int]:
    """(dtype, number of weights) of a model folder, from its headers. Raises JobError if they are
    not plain floats.
    """
    from safetensors import safe_open

    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                part = file.get_slice(name)
                found[part.get_dtype()] += math.prod(part.get_shape())
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config or not found or found.keys() - DTYPES.keys():
        kinds = ", ".join(sorted(found)) or "no weights"
        raise JobError(
            f"The base model is quantized ({kinds}): an adapter is merged into float weights only."
        )
    return DTYPES[found.most_common(1)[0][0]], found.total()


def require_memory(numbers: int) -> None:
    """Raises JobError if merging does not fit into memory: it is done in float32, with 4 bytes per
    number.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * numbers > MOST_OF_MEMORY * there:
        raise JobError(
            f"Merging needs {gigabytes(4 * numbers)} of memory (float32); this machine has"
            f" {gigabytes(there)}."
        )


def require_same(
    wanted: list[float], base: list[float], merged: list[float], dtype: str
) -> tuple[float, float]:
    """(mean distance in nats, share of the adapter's effect that is lost) of a merged model
    compared with base and adapter. All arguments are log-probabilities of the fixed text. Raises
    JobError beyond TOLERANCE or MOST_LOST.
    """
    require_numbers(merged, "the merged model")
    gap, move = mean_distance(merged, wanted), norm(difference(wanted, base))
    lost = norm(difference(merged, wanted)) / move if move > LEAST_MOVE * len(base) ** 0.5 else 0.0
    if gap > TOLERANCE[dtype]:
        raise JobError(
            "The merged model is not base and adapter: the log-probabilities of a fixed text"
            f" differ by {gap:.2g} nats on average, where {TOLERANCE[dtype]:g} is the most in"
            f" {dtype}."
        )
    if lost > MOST_LOST:
        raise JobError(
            f"Stored in {dtype}, the merged model loses {lost:.0%} of what the adapter changes in a"
            f" fixed text ({MOST_LOST:.0%} is the most). Serve the adapter as LoRA, or register the"
            " base in float32."
        )
    return gap, lost


def require_whole(folder: Path, dtype: str, model: Any) -> None:
    """Raises JobError if the files do not contain all weights of the model in the dtype."""
    found, numbers = stored(folder)
    wanted = sum(weight.numel() for weight in model.parameters())  # shared weights count once
    if found != dtype or numbers < wanted:
        raise JobError(
            f"The merged model was not stored whole: {numbers:,} numbers in {found} instead of"
            f" {wanted:,} in {dtype}."
        )


def main(spec: MergeAdapter, events: Emitter, stop: StopFlag) -> None:
    dtype, numbers = stored(Path(spec.model.base))
    require_memory(numbers)
    out = Path(spec.out_dir) / "merged"
    shutil.rmtree(out, ignore_errors=True)  # left over from an attempt that was killed
    events.progress(0, 3, "Loading the model")
    with stop.at_once():
        import torch

        from workers.ml.models import add_adapter, load_base

        base, tokenizer = load_base(spec.model.base)
        model = add_adapter(base, spec.model.adapter, trainable=False).eval()
        ids = tokenizer(spec.text, add_special_tokens=False)["input_ids"]
        wanted = text_logprobs(model, ids)
        with model.disable_adapter():
            plain = text_logprobs(model, ids)
        require_numbers(plain, "the base model")
        require_numbers(wanted, "the adapter")
        events.progress(1, 3, "Merging")
        merged = model.merge_and_unload(safe_merge=True).to(getattr(torch, dtype))
        merged.save_pretrained(out)
        tokenizer.save_pretrained(out)
        del base, model, merged
        events.progress(2, 3, "Checking what was written")
        written = load_base(out)[0].eval()
        require_whole(out, dtype, written)
        gap, lost = require_same(wanted, plain, text_logprobs(written, ids), dtype)
    stop.check()
    events.progress(3, 3, "done")
    events.result(folder=str(out), dtype=dtype, gap=gap, lost=lost)


if __name__ == "__main__":
    run_main(MergeAdapter, main)
