"""When the steps of a run happened, from `metadata.steps`. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Bar:
    """`left` and `width` are percents of the whole; `ms` is the duration, `start_ms` from the run's
    start. `key` names the step in addresses: its span's id, or its place among the steps where it
    has none of its own."""

    key: str
    name: str
    kind: str
    depth: int
    start_ms: float
    ms: float
    left: str
    width: str
    error: str
    message_index: int | None
    tokens: int | None
    step: dict[str, Any]


@dataclass(slots=True)
class Waterfall:
    total_ms: float
    bars: list[Bar]

    @property
    def failed(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.error]


def waterfall(metadata: Any) -> Waterfall | None:
    """Bars in the order of the tree, children under their parent. None without a usable step; any
    shape is tolerated.
    """
    given = metadata.get("steps") if isinstance(metadata, dict) else None
    steps = [step for step in given if _usable(step)] if isinstance(given, list) else []
    if not steps:
        return None
    begin = min(step["start_ms"] for step in steps)
    total = max(step["start_ms"] + step["duration_ms"] for step in steps) - begin or 1.0
    keys = _keys(given)
    return Waterfall(
        total, [_bar(step, keys[id(step)], depth, begin, total) for step, depth in _ordered(steps)]
    )


def _keys(given: list[Any]) -> dict[int, str]:
    """{id of the step: its key}; of several with one span id the first has it."""
    keys: dict[int, str] = {}
    taken: set[str] = set()
    for place, step in enumerate(given):
        span = _name(step, "span_id") if isinstance(step, dict) else ""
        keys[id(step)] = f"#{place}" if not span or span in taken else span
        taken.add(span)
    return keys


def _usable(step: Any) -> bool:
    return isinstance(step, dict) and all(
        isinstance(value := step.get(name), int | float)
        and not isinstance(value, bool)
        and is_finite(value)
        for name in ("start_ms", "duration_ms")
    )


def is_finite(value: float) -> bool:
    try:
        return math.isfinite(value) and abs(value) < 1e15
    except OverflowError:  # an integer of hundreds of digits
        return False


def _ordered(steps: list[dict]) -> list[tuple[dict, int]]:
    """(step, depth): each after its parent. What hangs in a circle or on a stranger is a root."""
    steps = sorted(steps, key=lambda step: step["start_ms"])
    children: defaultdict[str, list[int]] = defaultdict(list)
    names = {_name(step, "span_id"): number for number, step in reversed(list(enumerate(steps)))}
    roots = []
    for number, step in enumerate(steps):
        parent = _name(step, "parent_id")
        if parent and parent in names and names[parent] != number:
            children[parent].append(number)
        else:
            roots.append(number)
    found: list[tuple[dict, int]] = []
    seen: set[int] = set()
    for root in [*roots, *range(len(steps))]:
        stack = [(root, 0)]
        while stack:
            number, depth = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            found.append((steps[number], depth))
            span = _name(steps[number], "span_id")
            if names.get(span) == number:
                stack += [(child, depth + 1) for child in reversed(children[span])]
    return found


def _name(step: dict, key: str) -> str:
    return str(step.get(key) or "")[:200]


def _bar(step: dict, key: str, depth: int, begin: float, total: float) -> Bar:
    duration = max(0.0, float(step["duration_ms"]))
    left = 100 * (step["start_ms"] - begin) / total
    index, error = step.get("message_index"), step.get("error")
    counts = [
        count
        for name in ("input_tokens", "output_tokens")
        if isinstance(count := step.get(name), int | float)
    ]
    return Bar(
        key=key,
        name=_name(step, "name") or "step",
        kind=_name(step, "kind")[:20],
        depth=min(depth, 12),
        start_ms=step["start_ms"] - begin,
        ms=duration,
        left=f"{left:.3f}",
        width=f"{min(100 * duration / total, 100 - left):.3f}",
        error=("failed" if error is True else str(error)[:300]) if error else "",
        message_index=(
            index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None
        ),
        tokens=int(sum(counts)) if counts and is_finite(sum(counts)) else None,
        step=step,
    )
