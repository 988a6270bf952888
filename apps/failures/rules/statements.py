"""What a system prompt states, part by part, in any language. Pure.

A part is a line or a sentence. It is known by a digest that leaves out what changes from run to
run (dates, times, long numbers, UUIDs), so a statement is the same one in every prompt that
contains it word for word, however the rest of the prompt differs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

RECENT = 200  # newest runs that are looked at
READ, MOST_PARTS = 40_000, 2_000  # characters and parts of a prompt
SHORTEST_QUOTE, LONGEST_QUOTE = 4, 1_000
COMMON, OF_SIMILAR = 3, 0.2  # runs, and share of the runs with a similar prompt, that have a part
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？।])\s*|\s*\n\s*")
_CHANGING = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\d{1,4}[-/.年]\d{1,2}[-/.月]\d{1,4}日?"
    r"|\b\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?\b|\d{6,}",
    re.IGNORECASE,
)
_MARKS = " \t-*•#\"'“”‘’「」`"


@lru_cache(maxsize=256)
def parts_of(system: str) -> tuple[str, ...]:
    """The digests of a prompt's parts, in order."""
    return tuple(map(_digest, _texts(system)))


def digest_of(parts: Iterable[str]) -> str:
    return _short(" ".join(parts), 16)


def located(system: str, quote: str) -> tuple[str, ...]:
    """The parts of a prompt that a quote touches; empty if it does not occur there. White space,
    and quotation marks around it, are ignored.
    """
    texts = _texts(system)
    squashed = [_squashed(text) for text in texts]
    whole, wanted = "".join(squashed), _squashed(quote[:LONGEST_QUOTE])
    for words in (wanted, wanted.strip(_MARKS)):
        at = whole.find(words) if len(words) >= SHORTEST_QUOTE else -1
        if at >= 0:
            return tuple(map(_digest, _between(texts, squashed, at, at + len(words))))
    return ()


def _between(texts: Sequence[str], squashed: Sequence[str], begin: int, end: int) -> list[str]:
    found, at = [], 0
    for text, short in zip(texts, squashed, strict=True):
        if at < end and at + len(short) > begin:
            found.append(text)
        at += len(short)
    return found


def _texts(system: str) -> list[str]:
    parts = _END.split(system[:READ])
    return [part for part in parts if part.strip(_MARKS)][:MOST_PARTS]


def _digest(part: str) -> str:
    return _short(" ".join(_CHANGING.sub("#", part).strip(_MARKS).split()), 6)


def _squashed(text: str) -> str:
    return "".join(text.split())


def _short(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()


def next_unread(
    prompts: Sequence[tuple[str, ...]], read: Collection[str], least: int = COMMON
) -> int | None:
    """Of the prompts of runs, the newest first, the first with a part that nobody has read and that
    belongs to the prompt rather than to the run: at least `least` runs have it, and a share of
    those with a similar prompt since it came up. Of a template only what stays the same counts.
    """
    sets = [frozenset(parts) for parts in prompts]
    seen: set[frozenset[str]] = set()
    for at, parts in enumerate(sets):
        fresh = parts.difference(read)
        if not fresh or parts in seen:
            continue
        seen.add(parts)
        alike = [index for index, other in enumerate(sets) if similar(parts, other)]
        for part in fresh:
            having = [index for index in alike if part in sets[index]]
            since = sum(index <= having[-1] for index in alike)
            if len(having) >= max(least, OF_SIMILAR * since):
                return at
    return None


def similar(parts: Collection[str], other: Collection[str]) -> bool:
    """Whether a prompt has half of another's parts."""
    return 2 * len(frozenset(parts).intersection(other)) >= len(parts)
