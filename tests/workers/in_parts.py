"""Several runs of the methods that learn from rows, one after the other in the same processes,
which import torch and TRL once: `python -m tests.workers.in_parts runs.json` for each of them
(tests/workers/test_processes.py). How each ended lies beside its events.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.forms import form_of
from workers import best_of_n, dpo, kto, reward_model, sft
from workers.lib import processes
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import PeerEnded, Stop, StopFlag
from workers.lib.specs.job import checked
from workers.ml import trl_runs
from workers.ml.sharding import shard_layers

HELD: list[float] = []
PROGRAMS = {
    "sft": sft,
    "dpo": dpo,
    "kto": kto,
    "reward_model": reward_model,
    "best_of_n": best_of_n,
}


class Ending(StopFlag):
    """Ends the second process in the middle of its second step: `how` is stop or fail."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.learned, self.checks = how, 0, 0

    def check(self) -> None:
        self.checks += self.learned > 0
        if (
            processes.number() == 1 and self.checks > 2
        ):  # two lie between the steps: after one and before the next
            if self.how == "stop":
                self.is_set = True
            if self.how == "fail":
                raise JobError("The second process broke.")
        super().check()


class Events(Emitter):
    """Of the first process, in a file."""

    def __init__(self, folder: Path, stop: Ending) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stop = stop
        super().__init__(
            os.open(folder / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            mute=processes.number() > 0,
        )

    def metric(self, step: int, values: dict[str, float]) -> None:
        self.stop.learned = step
        super().metric(step, values)


def that_ends_its_answers(*given: Any, load: Any = best_of_n.TransformersEngine.load) -> Any:
    """With random weights it hardly ever would."""
    engine = load(*given)
    engine.stop_ids = list(range(0, 400, 2))
    engine.stops = torch.tensor(engine.stop_ids)
    return engine


def sharded(model: Any, *given: Any) -> Any:
    """Notes which share of the layers' frozen weights this process holds."""
    layers = model.get_base_model().base_model.layers

    def frozen() -> list[Any]:
        return [weight for weight in layers.parameters() if not weight.requires_grad]

    whole = sum(weight.numel() for weight in frozen())
    found = shard_layers(model, *given)
    HELD.append(sum(weight.to_local().numel() for weight in frozen()) / whole)
    return found


def run(given: dict[str, Any]) -> str:
    stop = Ending(given.pop("ending", ""))
    try:
        with patch.object(best_of_n.TransformersEngine, "load", that_ends_its_answers):
            PROGRAMS[given["kind"]].main(
                checked(given, form_of(given["kind"])), Events(Path(given["out_dir"]), stop), stop
            )
    except (Stop, PeerEnded, JobError) as end:
        return type(end).__name__
    return "done"


if __name__ == "__main__":
    trl_runs.shard_layers = sharded
    for each in json.loads(Path(sys.argv[1]).read_text()):
        how = run(each)
        Path(each["out_dir"], f"ended-{processes.number()}").write_text(how)
        Path(each["out_dir"], f"held-{processes.number()}").write_text(json.dumps(HELD[-1:]))
