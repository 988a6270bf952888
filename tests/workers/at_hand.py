"""The small models of tests, which each training loads: read from their files once in a process,
and copied; that their attention can be replaced is proved once. Both take a third of a training
that lasts three steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

MOST_BYTES = 1 << 20


@contextmanager
def models_at_hand() -> Iterator[None]:
    from accelerate.utils import memory

    from workers.ml import models, tree

    load, proof = models.AutoModelForCausalLM.from_pretrained, tree._largest_difference
    kept: dict[str, Any] = {}
    proved: dict[str, float] = {}

    def from_pretrained(folder: Path, **options: Any) -> Any:
        files = [(file.name, file.stat()) for file in sorted(folder.iterdir())]
        if "quantization_config" in options or sum(at.st_size for _, at in files) > MOST_BYTES:
            return load(folder, **options)
        key = f"{folder} {[(name, at.st_size, at.st_mtime_ns) for name, at in files]} {options}"
        if key not in kept:
            kept[key] = load(folder, **options)
        model = deepcopy(kept[key])
        model.read_as = key
        return model

    def largest_difference(causal: Any) -> float:
        key = getattr(causal, "read_as", None)
        if key not in proved:
            found = proof(causal)
            if key:
                proved[key] = found
            return found
        causal.set_attn_implementation(tree.NAME)
        tree.keep_less(causal)
        return proved[key]

    with (
        patch.object(
            models, "AutoModelForCausalLM", SimpleNamespace(from_pretrained=from_pretrained)
        ),
        patch.object(tree, "_largest_difference", largest_difference),
        patch.object(memory, "gc", SimpleNamespace(collect=lambda: None)),
    ):
        yield
