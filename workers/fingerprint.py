"""The log-probabilities that a model version gives a fixed text. `python -m workers.fingerprint
spec.json` (docs/deployment.md).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.memory import gigabytes
from workers.lib.program import StopFlag, run_main
from workers.lib.specs.fingerprint import Fingerprint

MOST_OF_MEMORY = 0.7


def check_size(folder: Path) -> None:
    """Raises JobError if the weights do not fit into this machine's memory: being killed would
    affect other jobs too.
    """
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > MOST_OF_MEMORY * there:
        raise JobError(
            f"The weights need {gigabytes(size)}; this machine has {gigabytes(there)} of memory."
        )


def require_numbers(logprobs: list[float], whose: str) -> None:
    """Raises JobError for NaN, which cannot be compared with anything: every deployment compares
    with all versions of the project.
    """
    if not all(map(math.isfinite, logprobs)):
        raise JobError(
            f"The log-probabilities that {whose} gives a fixed text are not numbers: its weights"
            " hold NaN or are too large."
        )


def text_logprobs(model: Any, ids: list[int]) -> list[float]:
    """[len(ids) - 1]: the log-probability of each token after the first."""
    import torch

    tokens = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        found = model(tokens).logits[0, :-1].float().log_softmax(-1)
    return found.gather(1, tokens[0, 1:, None])[:, 0].tolist()


def main(spec: Fingerprint, events: Emitter, stop: StopFlag) -> None:
    check_size(Path(spec.model.base))
    events.progress(0, 2, "loading the model")
    with stop.at_once():
        from workers.ml.models import add_adapter, device, load_base

        model, tokenizer = load_base(spec.model.base, spec.dtype)
        if spec.model.adapter:
            model = add_adapter(model, spec.model.adapter, trainable=False)
        model = model.to(device()).eval()
    ids = tokenizer(spec.text, add_special_tokens=False)["input_ids"]
    events.progress(1, 2, "computing")
    own, base = text_logprobs(model, ids), []
    if spec.model.adapter:
        with model.disable_adapter():
            base = text_logprobs(model, ids)
    require_numbers(base or own, "the base model")
    require_numbers(own, "the adapter")
    stop.check()
    events.progress(2, 2, "done")
    events.result(ids=ids, logprobs=own, base_logprobs=base)


if __name__ == "__main__":
    run_main(Fingerprint, main)
