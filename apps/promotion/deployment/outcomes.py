"""The state of each target during and after a deployment: plain JSON, so that it stays readable
when the target is gone.
"""

from __future__ import annotations

import time
from typing import Any

from apps.promotion.deployment.models import Deployment, Target

# States of one target, in order; or how it ended.
WAITING, LOADING, LOADED, PROVING, PROVED = "waiting", "loading", "loaded", "proving", "proved"
LIVE, FAILED, UNDONE, UNREACHABLE = "live", "failed", "undone", "unreachable"
DONE = (PROVED, LIVE)


def of_target(target: Target) -> dict[str, Any]:
    name = str(target.server or target.webhook)
    return {
        "target": target.pk,
        "kind": target.kind,
        "name": name,
        "state": WAITING,
        "served_as": "",
        "sentence": "",
        "proof": {},
        "seconds": None,
    }


class Outcomes:
    """The outcomes of one run of a deployment; `store` writes them."""

    def __init__(self, deployment: Deployment) -> None:
        self.pk, self.rows = deployment.pk, list(deployment.outcomes)
        self.began = time.monotonic()

    def start(self, targets: list[Target]) -> None:
        self.rows = [of_target(target) for target in targets]

    def set(self, target: int, state: str, sentence: str = "", **more: Any) -> None:
        row = next(row for row in self.rows if row["target"] == target)
        row |= {
            "state": state,
            "sentence": sentence,
            "seconds": round(time.monotonic() - self.began, 2),
        } | more

    @property
    def done(self) -> int:
        return sum(row["state"] in DONE for row in self.rows)

    def store(self) -> None:
        Deployment.objects.filter(pk=self.pk).update(outcomes=self.rows)
