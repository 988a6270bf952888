"""Two runs side by side, aligned by turn. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from apps.trajectories.pages.transcript import Text, Turn

MOST_CHANGES = 20
MOST_ALIGNED = 1_000  # difflib takes time by the square of them


@dataclass(slots=True)
class Pair:
    """A turn of each run, or of one of them; `differences` are in words, empty if both say the
    same.
    """

    a: Turn | None
    b: Turn | None
    differences: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.a is not None and self.b is not None and not self.differences


def align(a: list[Turn], b: list[Turn]) -> list[Pair]:
    """Turns of the same role that call the same tools stand beside each other; what is between is
    paired in order, as all of two runs are of which one has more than MOST_ALIGNED turns."""
    if max(len(a), len(b)) > MOST_ALIGNED:
        ranges = [("", 0, len(a), 0, len(b))]
    else:
        kinds = [_kind(turn) for turn in a], [_kind(turn) for turn in b]
        ranges = SequenceMatcher(None, *kinds, autojunk=False).get_opcodes()
    pairs = []
    for _, a_from, a_to, b_from, b_to in ranges:
        for step in range(max(a_to - a_from, b_to - b_from)):
            left = a[a_from + step] if a_from + step < a_to else None
            right = b[b_from + step] if b_from + step < b_to else None
            pairs.append(Pair(left, right, differences(left, right)))
    return pairs


def _kind(turn: Turn) -> tuple:
    return (turn.role, *(call.name for call in turn.calls))


def differences(a: Turn | None, b: Turn | None) -> list[str]:
    if a is None or b is None:
        return [f"only in {'A' if b is None else 'B'}"]
    found = [] if a.role == b.role else [f"{a.role} → {b.role}"]
    if _whole(a.text) != _whole(b.text) or a.media != b.media:
        found.append("text differs")
    names = [call.name for call in a.calls], [call.name for call in b.calls]
    if names[0] != names[1]:
        return [
            *found,
            f"calls {', '.join(names[0]) or 'nothing'} → {', '.join(names[1]) or 'nothing'}",
        ]
    for one, other in zip(a.calls, b.calls, strict=True):
        found += [f"{one.name} {change}" for change in argument_changes(one.given, other.given)]
        if _whole(one.reply and one.reply.text) != _whole(other.reply and other.reply.text):
            found.append(f"{one.name}: another reply")
    return found


def argument_changes(a: Any, b: Any) -> list[str]:
    """“name: before → after” for each argument that differs."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return [] if a == b else [f"arguments: {_brief(a)} → {_brief(b)}"]
    keys = [key for key in {**a, **b} if key not in a or key not in b or a[key] != b[key]]
    return [
        f"{key[:60]}: {_brief(a[key]) if key in a else '–'} → {_brief(b[key]) if key in b else '–'}"
        for key in keys[:MOST_CHANGES]
    ]


def _whole(text: Text | None) -> tuple:
    return (text.head, text.rest, text.cut) if text else ()


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
