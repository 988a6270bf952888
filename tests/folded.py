"""A page's HTML with the white space that a browser shows, so that a test of its words does not
depend on where a template breaks its lines.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

PIECE = re.compile(
    r"<!--.*?-->|</?[a-z!](?:[^\"'>]|\"[^\"]*\"|'[^']*')*>|[^<]+|<", re.DOTALL | re.IGNORECASE
)
NAME = re.compile(r"<(/?)([a-z][a-z0-9]*)", re.IGNORECASE)
IN_TAG = re.compile(r"(\"[^\"]*\"|'[^']*')|\s+(?=>)|(\s+)", re.DOTALL)
SPACE = re.compile(r"[ \t\r\n\f]+")
KEPT = {"pre", "textarea", "script", "style"}
INLINE = re.compile(
    "a|abbr|b|bdi|br|cite|code|del|dfn|em|i|img|input|ins|kbd|label|mark|meter|output|progress|q|s"
    "|samp|small|span|strong|sub|sup|svg|textarea|time|u|var|wbr"
)
BOXES = {"button", "select"}  # in a line of text, but white space at their inner edges is not shown


@lru_cache(10_000)
def is_edge(tag: str, of: str) -> bool:
    """Whether no white space is shown at the tag's side: its start or its end."""
    if not (match := NAME.match(tag)):
        return False
    name = match[2].lower()
    inside = of == ("end" if match[1] == "" else "start")
    return inside if name in BOXES else not INLINE.fullmatch(name)


def in_tag(part: re.Match[str]) -> str:
    return SPACE.sub(" ", part[1]) if part[1] else " " * bool(part[2])


def may_fold(piece: str) -> bool:
    """Whether there may be more than single spaces between words: of most there is not, and to ask
    takes a tenth of what looking does.
    """
    return "  " in piece or " >" in piece or not piece.isprintable()


def folded(html: str) -> str:
    pieces: list[str] = [""]
    kept = ""
    for piece in PIECE.findall(html):
        match = NAME.match(piece)
        if match and kept in ("", "pre") and may_fold(piece):
            piece = IN_TAG.sub(in_tag, piece)
        if kept and not (match and match[1] and match[2].lower() == kept):
            pieces.append(piece)
            continue
        if match:
            if not kept and is_edge(piece, "start"):
                pieces[-1] = pieces[-1].removesuffix(" ")
            kept = match[2].lower() if match[2].lower() in KEPT and not match[1] else ""
        elif not piece.startswith("<"):
            piece = SPACE.sub(" ", piece) if may_fold(piece) else piece
            if is_edge(pieces[-1], "end"):
                piece = piece.removeprefix(" ")
        pieces.append(piece)
    return "".join(pieces)


def fold_pages() -> None:
    """Django's test client answers with pages so folded."""
    from django.test import Client

    request = Client.request

    def folding(self: Client, **environ: Any) -> Any:
        response = request(self, **environ)
        if not response.streaming and response.get("Content-Type", "").startswith("text/html"):
            html = response.content.decode(errors="surrogateescape")
            response.content = folded(html).encode(errors="surrogateescape")
        return response

    Client.request = folding
