"""What changed between two texts, line by line. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff

MOST_LINES = 1_000  # of a changed part, on both sides: difflib takes time by the square of them


def changed_lines(
    before: list[str], after: list[str], around: int = 3
) -> Iterator[tuple[str, str]]:
    """(kind: "same", "gone", "new" or "skip" between distant changes; line), `around` lines of the
    same about each.

    A changed part of more than MOST_LINES is shown whole: all that is gone, then all that is new.
    """
    first = _common(before, after)
    last = _common(before[first:][::-1], after[first:][::-1])
    start, ends = max(0, first - around), (len(before) - last, len(after) - last)
    if ends[0] + ends[1] - 2 * first > MOST_LINES:
        yield from (("same", line) for line in before[start:first])
        yield from (("gone", line) for line in before[first : ends[0]])
        yield from (("new", line) for line in after[first : ends[1]])
        yield from (("same", line) for line in before[ends[0] : ends[0] + around])
        return
    tail = around if last else 0
    parts = before[start : ends[0] + tail], after[start : ends[1] + tail]
    kinds = {" ": "same", "-": "gone", "+": "new", "@": "skip"}
    for line in list(unified_diff(*parts, lineterm="", n=around))[3:]:
        yield kinds[line[0]], "…" if line[0] == "@" else line[1:]


def changed_parts(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """The same for texts in named parts: each is compared with the part of its name alone, below
    its first line.
    """
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, []), after.get(name, [])
        lines = list(changed_lines(old, new))
        if lines and lines[0][1] not in (old[:1] + new[:1]):
            yield "skip", new[0] if new else old[0]
        yield from lines


def _common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
