"""tau-bench result files: a list of `{task_id, reward, info, traj, trial}`; reward 1 is success,
anything else failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from apps.trajectories.decoding import RowError
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import (
    Row,
    chat_messages,
    digest,
    each,
    identity,
    items,
    number,
    obj,
    text,
    without_empty,
)

SOLVED = 1 - 1e-6


def rows(records: Iterable[Record], name: str) -> Iterator[Row]:
    """One row a run. Task and trial repeat from file to file, so the id also has a digest of the
    content.
    """
    return each(records, _run)


def _run(record: dict) -> dict:
    info = obj(record.get("info"))
    if not items(record.get("traj")):
        why = text(info.get("error")) or "the run has no messages"
        raise RowError("traj", f"nothing to import: {why[:300]}")
    reward = number(record.get("reward"))
    if reward is None:
        raise RowError("reward", "expected a number")
    task, trial = text(record.get("task_id"), 60), text(record.get("trial"), 20)
    return {
        "id": identity("tau-bench", task, trial, digest(record)[:16]),
        "workload": "tau-bench",
        "session_id": identity("tau-bench", task),
        "messages": chat_messages(record["traj"], "traj"),
        "outcome": {
            "status": "success" if reward >= SOLVED else "failure",
            "reward": reward,
            "reason": text(info.get("error"), 2000),
        },
        "metadata": without_empty(
            {"source": "tau-bench", "task_id": task, "trial": trial, "info": info}
        ),
    }
