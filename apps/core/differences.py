"""What several things are set to, side by side. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"


def side_by_side(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """(name, the value of each as text, whether they differ), by name; what one has not is
    MISSING.
    """
    names = sorted({name for each in settings for name in each})
    rows = [
        (name, [as_text(each[name]) if name in each else MISSING for each in settings])
        for name in names
    ]
    return [(name, values, len(set(values)) > 1) for name, values in rows]


def left_out(given: Sequence[str], shown: int, most: int, what: str) -> str:
    """What a link names and a comparison does not show, as a sentence; empty if it shows
    everything.
    """
    asked = len(set(filter(None, given)))
    parts = []
    if asked > most:
        parts.append(f"The link contains {asked} {what}; only the first {most} are compared.")
    if missing := min(asked, most) - shown:
        parts.append(
            f"{missing} of the {what} in the link {'is' if missing == 1 else 'are'} missing:"
            " deleted, or in another project."
        )
    return " ".join(parts)


def as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
