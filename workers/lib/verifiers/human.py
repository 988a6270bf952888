"""A person's label of exactly this output, looked up by a digest. Outputs without a label are
masked. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from workers.lib.typed import Number
from workers.lib.verifiers.base import Guarded, Options, Unavailable, options
from workers.lib.verifiers.types import Clients, Rollout, Score


def label_key(task: dict, messages: list[dict]) -> str:
    """SHA-256 of the task's messages and the agent's: the same answer to the same request has the
    same label.
    """
    text = json.dumps(
        [task.get("messages"), messages], sort_keys=True, ensure_ascii=True, default=repr
    )
    return hashlib.sha256(text.encode()).hexdigest()


class HumanOptions(Options):
    threshold: Number = 0.5


class Human(Guarded):
    """`labels` is a mapping or a function: key → true, false, a number, or {"reward", "success",
    "reason"}.
    """

    def __init__(self, labels: Any, threshold: float) -> None:
        self.labels, self.threshold = labels, threshold

    def judge(self, rollout: Rollout) -> Score:
        label = self.find(label_key(rollout.task, rollout.messages))
        if label is None:
            raise Unavailable("No person has judged this output yet.")
        given = label if isinstance(label, dict) else {"reward": float(label)}
        reward = given.get("reward")
        if isinstance(reward, bool | int | float) and abs(reward) < 1e300:
            success = bool(given.get("success", reward >= self.threshold))
            details = [str(given["reason"])[:500]] if given.get("reason") else []
            return Score(
                reward=float(reward),
                components={"label": float(reward)},
                success=success,
                details=details,
            )
        raise Unavailable("The stored label has no number as its reward.")

    def find(self, key: str) -> Any:
        if isinstance(self.labels, Mapping):
            return self.labels.get(key)
        if isinstance(self.labels, Callable):
            return self.labels(key)
        raise Unavailable("There are no labels to look in.")


def from_spec(spec: dict, clients: Clients, path: str) -> Human:
    chosen = options(spec, path, HumanOptions)
    return Human(clients.get("labels"), chosen.threshold)
