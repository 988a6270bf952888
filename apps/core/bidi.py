"""Text of others inside a sentence of ours: characters that change the direction of writing end
where the text ends. Between elements of a page `unicode-bidi` in app.css does that. Pure.
"""

from __future__ import annotations

import re

PDF, PDI, FSI = "\u202c", "\u2069", "\u2068"
CLOSED_BY = dict.fromkeys("\u202a\u202b\u202d\u202e", PDF) | dict.fromkeys(
    "\u2066\u2067\u2068", PDI
)
# Controls and marks, and the letters of Hebrew, Arabic and their like.
TURNS = re.compile(
    "[\u200e\u200f\u202a-\u202e\u2066-\u2069\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]"
)

CONTROLS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """JSON with its controls of direction as escapes: the same JSON, of which a value turns nothing
    round.
    """
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def isolated(text: str) -> str:
    """The text, which reads as before, and after which the sentence reads on as it would."""
    if not TURNS.search(text):
        return text
    waiting: list[str] = []
    kept = []
    for letter in text:
        if closing := CLOSED_BY.get(letter):
            waiting.append(closing)
        elif letter == PDF and waiting[-1:] == [PDF]:
            waiting.pop()
        elif letter == PDI:
            if PDI not in waiting:  # would end the isolate around the text
                continue
            while waiting.pop() != PDI:  # ends what was opened within, too
                pass
        kept.append(letter)
    return f"{FSI}{''.join(kept)}{''.join(reversed(waiting))}{PDI}"
