"""A comment's text, taken apart into what a page shows: plain text, links, and the people who are
mentioned. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

URL = re.compile(r"https?://[^\s<>\"'`]+", re.IGNORECASE)
MENTION = re.compile(r"(?<![\w@./+-])@([\w.+-]{1,150})")
TRAILING = ".,;:!?…*_"
PAIRS = {")": "(", "]": "[", "}": "{"}


class Piece(NamedTuple):
    kind: str  # text, link or mention
    text: str  # all pieces together are the whole text


def pieces(text: str, names: Collection[str]) -> Iterator[Piece]:
    """`names`: the usernames that may be mentioned; other words after an @ are text."""
    at = 0
    known = {name.casefold(): name for name in names}
    found = sorted([*_links(text), *_mentions(text, known)])
    for start, end, kind in found:
        if start < at:  # an @ within a link
            continue
        if start > at:
            yield Piece("text", text[at:start])
        yield Piece(kind, text[start:end])
        at = end
    if at < len(text):
        yield Piece("text", text[at:])


def mentioned(text: str, names: Collection[str]) -> list[str]:
    """Which of the names a text mentions, each once, in order."""
    known = {name.casefold(): name for name in names}
    found = [piece.text[1:] for piece in pieces(text, names) if piece.kind == "mention"]
    return list(dict.fromkeys(known[name.casefold()] for name in found))


def _links(text: str) -> Iterator[tuple[int, int, str]]:
    for match in URL.finditer(text):
        url = match[0]
        while url and (
            url[-1] in TRAILING
            or (url[-1] in PAIRS and url.count(url[-1]) > url.count(PAIRS[url[-1]]))
        ):
            url = url[:-1]
        if len(url) > len("https://"):
            yield match.start(), match.start() + len(url), "link"


def _mentions(text: str, known: dict[str, str]) -> Iterator[tuple[int, int, str]]:
    """The longest known name after an @: a full stop may end the sentence, or be of the name."""
    for match in MENTION.finditer(text):
        name = match[1]
        while name and name.casefold() not in known:
            name = name[:-1] if name[-1] in ".+-" else ""
        if name:
            yield match.start(), match.start() + 1 + len(name), "mention"
