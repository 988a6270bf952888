"""Scores from reward model versions, for the process of a job. Light: the model runs in a separate
process (`python -m workers.score_rewards`), which starts with the first request; requests that
several threads make meanwhile are scored as one batch.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from workers.lib.framed import Framed, Lost
from workers.lib.messages import answer_text
from workers.lib.specs.environment import RewardModelFolder
from workers.lib.verifiers.types import Rollout

START_S, ANSWER_S = 900.0, 900.0
MOST = 64  # conversations per batch
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
ROOT = Path(__file__).parents[2]


class CannotScore(Exception):
    """The reward model cannot be used; the message is a sentence."""


class RewardScorer:
    """`scores` may be called from any thread. Raises CannotScore."""

    def __init__(self, folder: RewardModelFolder) -> None:
        self.folder = folder
        self.waiting: list[tuple[dict, Future]] = []
        self.listed, self.turn = threading.Lock(), threading.Lock()
        self.process: Framed | None = None
        self.failure = ""

    def scores(self, conversations: list[dict]) -> list[dict[str, Any]]:
        """{"raw", "calibrated"} for each {"messages", "tools"}; {"error"} for one that cannot be
        scored.
        """
        mine = [(one, Future[dict]()) for one in conversations]
        with self.listed:
            self.waiting += mine
        # The thread that holds it scores everything that waits, so the others find their results
        # when they get it.
        with self.turn:
            while not all(future.done() for _, future in mine):
                with self.listed:
                    batch, self.waiting = self.waiting[:MOST], self.waiting[MOST:]
                self._answer(batch)
        return [future.result() for _, future in mine]

    def _answer(self, batch: list[tuple[dict, Future]]) -> None:
        try:
            found = self._ask([one for one, _ in batch])
        except Exception as error:
            failure = (
                error
                if isinstance(error, CannotScore)
                else CannotScore(f"{self.folder.name} failed: {error}")
            )
            for _, future in batch:
                future.set_exception(failure)
        else:
            for (_, future), score in zip(batch, found, strict=True):
                future.set_result(score)

    def _ask(self, conversations: list[dict]) -> list[dict]:
        """A process that died is started once more; one that cannot load the model is not."""
        for last in (False, True):
            if self.process is None:
                self._start()
            try:
                return self.process.send({"conversations": conversations}, ANSWER_S)["scores"]  # type: ignore[union-attr]
            except Lost as error:
                self.close()
                if last:
                    raise CannotScore(
                        f"The process of the reward model {self.folder.name}: {error}."
                    ) from error
        raise AssertionError

    def _start(self) -> None:
        if self.failure:
            raise CannotScore(self.failure)
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self.process = Framed(
            [sys.executable, "-m", "workers.score_rewards"], env=environment, cwd=str(ROOT)
        )
        atexit.register(self.close)
        try:
            self.failure = self.process.send(to_builtins(self.folder), START_S).get("error", "")
        except Lost as error:
            self.failure = (
                f"The process of the reward model {self.folder.name} did not start: {error}."
            )
        if self.failure:
            self.close()
            raise CannotScore(self.failure)

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.close()


def conversation_of(rollout: Rollout) -> dict[str, Any]:
    """What a reward model reads of a rollout: the task's messages, without the harness's, and
    everything that followed, with the agent's calls as the text that it was trained on.
    """
    said = [
        (
            {"role": "assistant", "content": answer_text(message)}
            if message.get("role") == "assistant"
            else message
        )
        for message in rollout.messages
    ]
    return {"messages": [*(rollout.task.get("messages") or []), *said], "tools": rollout.tools}
