"""Parses the log of a job in another engine into lines for people and metrics of steps. Pure.

TRL and Unsloth (our train.py) print `FLYWHEEL {"step", "total", "values"}`; veRL's console logger
`step:1 - actor/loss:0.5 - …`.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from workers.lib.keys import hidden
from workers.lib.storable import storable

MARK = "FLYWHEEL "
VERL = re.compile(r"(?:^|\s)step:(\d{1,9}) - (.+)")
MOST_LINES = 40  # lines kept of each batch; the rest is counted
LONGEST, NAME, TAIL = 500, 60, 20
LARGEST_STEP = 10_000_000


@dataclass(frozen=True)
class Step:
    number: int
    values: dict[str, float]
    total: int = 0

    @property
    def finite(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if math.isfinite(value)}


@dataclass
class Log:
    """`tail`: the last lines that are not metrics. `last`: the newest value of each metric. Secrets
    are never returned.
    """

    secrets: list[str] = field(default_factory=list)
    seen: int = 0  # characters read, up to the end of a line
    steps: int = 0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    last: dict[str, float] = field(default_factory=dict)

    def new(self, text: str) -> tuple[list[str], list[Step]]:
        """(lines for people, steps) added since the last call; an unfinished line is left for the
        next call.
        """
        if len(text) < self.seen:
            self.seen = 0  # the cluster has started another file
        until = text.rfind("\n") + 1
        added, self.seen = text[self.seen : until], max(self.seen, until)
        lines, steps = [], []
        for line in added.splitlines():
            if step := step_in(line):
                steps.append(step)
                self.last |= step.finite
            elif line.strip():
                lines.append(self._shown(line))
        self.steps += len(steps)
        self.tail.extend(lines)
        left_out = len(lines) - MOST_LINES
        if left_out > 0:
            lines = [f"… {left_out:,} lines left out …", *lines[-MOST_LINES:]]
        return lines, steps

    def _shown(self, line: str) -> str:
        for secret in self.secrets:
            line = hidden(line, secret)
        return "".join(one for one in line.rpartition("\r")[2] if one.isprintable())[:LONGEST]


def step_in(line: str) -> Step | None:
    """The metrics in a line; None if it contains none."""
    at = line.find(MARK)
    if at >= 0 and line[at + len(MARK) :].startswith("{"):
        return _marked(line[at + len(MARK) :])
    found = VERL.search(line)
    return _of_verl(int(found[1]), found[2]) if found else None


def _marked(text: str) -> Step | None:
    try:
        row = json.loads(text)
        number, total, values = row["step"], row.get("total", 0), row["values"]
        kept = _numbers(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    total = total if type(total) is int and 0 < total <= LARGEST_STEP else 0
    return (
        Step(number, kept, total) if type(number) is int and 0 <= number <= LARGEST_STEP else None
    )


def _of_verl(number: int, text: str) -> Step | None:
    parts = (part.rpartition(":") for part in text.split(" - "))
    values: dict[str, Any] = {}
    for name, _, value in parts:
        try:
            values[name.strip()] = float(value.removeprefix("np.float64(").rstrip(") "))
        except ValueError:
            continue
    kept = _numbers(values)
    return Step(number, kept) if kept and number <= LARGEST_STEP else None


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name:
            try:
                found[storable(str(name), "")[:NAME]] = float(value)
            except OverflowError:
                continue
    return found
