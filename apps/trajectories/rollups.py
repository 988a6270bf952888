"""Counts of trajectories by hour and kind, as differences that are added up later. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.trajectories.ids import time_of
from apps.trajectories.metrics.cells import SPENT, Cell, Numbers
from workers.lib.token_usage import TOKENS

KIND = ("agent_name", "agent_version", "model", "workload", "outcome_status")
COLUMNS = (*KIND, *TOKENS, "cost_usd", "cost_basis", "latency_ms", "tool_names", "tags")
SUMS = ("trajectories", *SPENT, "latency_ms", "with_latency")
DIMENSIONS = {
    "outcome": "outcome_status",
    "agent": "agent_name",
    "version": "agent_version",
    "model": "model",
    "workload": "workload",
}
FACETS = {
    "agent": "agent_name",
    "version": "agent_version",
    "model": "model",
    "workload": "workload",
}


def values_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(dimension, value) of all cells that a row counts in; the first is that of all rows."""
    found = [("", ""), *((dimension, row[name]) for dimension, name in DIMENSIONS.items())]
    return found + [("tool", name) for name in dict.fromkeys(row["tool_names"])]


class Counts:
    """What rows add to the roll-ups; a row that goes or changes is taken away as it was and added
    as it is.
    """

    def __init__(self) -> None:
        self.hours: defaultdict[tuple, list] = defaultdict(lambda: [0] * len(SUMS))
        self.cells: defaultdict[tuple[str, str, str], Cell] = defaultdict(Cell)
        self.facets: Counter[tuple[str, str]] = Counter()

    def add(self, pk: UUID, row: Mapping[str, Any], sign: int = 1) -> None:
        """`row` has COLUMNS of a Trajectory by name. It counts in the hour of its id, by which
        it is listed and filtered, even if its start was corrected or is in the future.
        """
        hour = time_of(pk).replace(minute=0, second=0, microsecond=0)
        at, numbers = hour.isoformat(), Numbers.of(row)
        sums = self.hours[(at, *(row[name] for name in KIND))]
        for dimension, value in values_of(row):
            self.cells[at, dimension, value].add(numbers, sign)
        latency = row["latency_ms"]
        added = (1, *numbers.spent, latency or 0.0, latency is not None)
        for index, value in enumerate(added):
            sums[index] += sign * value
        for kind, name in FACETS.items():
            if row[name]:
                self.facets[kind, row[name]] += sign
        for name in row["tool_names"]:
            self.facets["tool", name] += sign
        for name in row["tags"]:
            self.facets["tag", name] += sign

    def as_json(self) -> dict[str, list]:
        return {
            "hours": [[*key, *sums] for key, sums in self.hours.items() if any(sums)],
            "cells": [[*key, *cell.as_list()] for key, cell in self.cells.items()],
            "facets": [[*key, n] for key, n in self.facets.items() if n],
        }

    def merge(self, given: Mapping[str, list]) -> None:
        """Adds what `as_json` of another says."""
        for item in given["hours"]:
            sums = self.hours[tuple(item[:6])]
            for index, value in enumerate(item[6:]):
                sums[index] += value
        for item in given["cells"]:
            self.cells[tuple(item[:3])].merge(Cell.from_list(item[3:]))
        for kind, value, n in given["facets"]:
            self.facets[kind, value] += n

    def hour_rows(self) -> list[dict[str, Any]]:
        """The hours as columns of HourlyCount, in a fixed order."""
        return [
            {"hour": datetime.fromisoformat(key[0])}
            | dict(zip(KIND, key[1:], strict=True))
            | dict(zip(SUMS, sums, strict=True))
            for key, sums in sorted(self.hours.items())
            if any(sums)
        ]


def rollup_unit(begin: datetime | None, end: datetime | None) -> str:
    """Hours for two days, days for half a year, else weeks: a chart of at most some two hundred
    bars.
    """
    days = (end - begin).total_seconds() / 86_400 if begin and end else 0
    return "hour" if days <= 2 else "day" if days <= 190 else "week"
