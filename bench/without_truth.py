"""tau-bench with the true calls taken away. Used by `bench.cluster_purity`.

Half of the runs, by the SHA-256 of the task's id (so that both trials of a task are on one side),
was looked at while rules were written; the other half was not.
"""

from __future__ import annotations

import hashlib

LOOKED_AT, HELD_BACK = "looked at", "held back"


def half_of(run_id: str) -> str:
    """The half of a run “tau-bench:task:trial:digest”."""
    digest = hashlib.sha256(run_id.split(":")[1].encode()).hexdigest()
    return HELD_BACK if int(digest, 16) % 2 else LOOKED_AT


def without_truth(run: dict, status: str = "") -> dict:
    """A run as production has it: no true calls; `status` in place of the known outcome."""
    return run | {"metadata": {}, "outcome_status": status or run["outcome_status"]}
