"""Counts why rollouts were masked. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

QUOTED = re.compile("“[^”]*(”|$)")  # a long reason is cut, perhaps within what it quotes
MOST = 3


def by_reason(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """(reason, how often), the most frequent first. Reasons that differ only in what they quote are
    one.
    """
    found = Counter[str]()
    for reason, count in rows:
        found[QUOTED.sub("“…”", reason)] += count
    return found.most_common()


def counted(reasons: Iterable[str]) -> str:
    """The most frequent ones as text, each with its number; "" if there are none."""
    found = by_reason((reason, 1) for reason in reasons)
    texts = [f"{count} × {reason}" for reason, count in found[:MOST]]
    rest = sum(count for _, count in found[MOST:])
    return " ".join(texts + ([f"{rest} × other reasons."] if rest else []))
