"""GRPO whose reward random weights can vary in, as a program: `python -m tests.workers.paid_grpo
spec.json`. With THEN=other.json it trains that one next, in the same processes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from workers import grpo
from workers.lib.environments import workplace
from workers.lib.errors import JobError
from workers.lib.program import read_spec, run_main
from workers.lib.specs.grpo import Grpo
from workers.lib.verifiers import Score


async def rewarded(episode: Any) -> Score:
    output = episode.said[0]["content"] or ""
    share = sum(letter.isascii() and letter.isalpha() for letter in output) / max(1, len(output))
    return Score(reward=share, success=share > 0.5)


class Trainer(grpo.Trainer):
    def step(self) -> None:
        rank, step = os.environ.get("KILLED", "-1,0").split(",")
        if self.ranks.number == int(rank) and self.done == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.ranks.number == 1 and os.environ.get("BROKEN"):
            self.engine.check = broken
        super().step()


def broken() -> None:
    raise JobError("The second process broke.")


def main(*given: Any) -> None:
    grpo.main(*given, Trainer)
    if after := os.environ.get("THEN"):
        grpo.main(read_spec(Path(after), Grpo), *given[1:], Trainer)


if __name__ == "__main__":
    workplace.OneCall.score = rewarded  # type: ignore[method-assign]
    run_main(Grpo, main)
