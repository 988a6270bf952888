"""Means and spreads of scored rollouts, under the names that NeMo Gym gives them. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from apps.environments.protocol.bodies import Refusal

TASK = "_ng_task_index"
MAX_ROWS = 100_000


def aggregate(given: Any) -> dict[str, Any]:
    """{group_level_metrics, agent_metrics, key_metrics} of verify responses; masked ones only count
    for coverage.

    Raises Refusal for any other input.
    """
    if (
        not isinstance(given, list)
        or len(given) > MAX_ROWS
        or not all(isinstance(row, dict) for row in given)
    ):
        raise Refusal(422, f"“verify_responses” must be a list of at most {MAX_ROWS} objects.")
    scored = [row for row in given if row.get("mask_sample") is not True]
    overall = _describe(scored) | (_coverage(given, scored) if len(scored) < len(given) else {})
    return {
        "group_level_metrics": [
            {TASK: index} | _describe(rows) for index, rows in _by_task(scored)
        ],
        "agent_metrics": overall,
        "key_metrics": {
            name: value
            for name, value in overall.items()
            if name in ("mean/reward", "mean/success")
        },
    }


def _by_task(rows: Iterable[dict]) -> list[tuple[int, list[dict]]]:
    groups: dict[int, list[dict]] = {}
    for row in rows:
        groups.setdefault(_task(row), []).append(row)
    return sorted(groups.items())


def _task(row: dict) -> int:
    index = row.get(TASK)
    return index if isinstance(index, int) and not isinstance(index, bool) else 0


def _describe(rows: list[dict]) -> dict[str, float]:
    """mean, max, min, median and (sample) standard deviation of every number in the rows."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if not name.startswith("_") and name != "mask_sample" and _is_number(value):
                columns.setdefault(name, []).append(float(value))
    return {
        f"{stat}/{name}": number
        for name, values in columns.items()
        for stat, number in _stats(values)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and abs(value) < 1e150 and math.isfinite(value)


def _stats(values: list[float]) -> list[tuple[str, float]]:
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(spread / (len(values) - 1)) if len(values) > 1 else 0.0
    return [
        ("mean", mean),
        ("max", max(values)),
        ("min", min(values)),
        ("median", statistics.median(values)),
        ("std", deviation),
    ]


def _coverage(rows: list[dict], scored: list[dict]) -> dict[str, int]:
    """How much of the run the numbers are of."""
    all_tasks, measured = {_task(row) for row in rows}, {_task(row) for row in scored}
    return {
        "coverage/measured_rollouts": len(scored),
        "coverage/masked_rollouts": len(rows) - len(scored),
        "coverage/measured_tasks": len(measured),
        "coverage/fully_masked_tasks": len(all_tasks - measured),
    }
