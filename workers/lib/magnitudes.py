"""Words after a number that change it, in some 60 languages. Pure.

`KINDS`: the word, in lower case, to a power of ten (“6”), a factor (“×12”), “%”, “‰”, “-” for words
before the number that make it negative, or “?” where languages disagree.
"""

from __future__ import annotations

import re
from pathlib import Path

_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
KINDS = {
    word: kind
    for kind, words in (line.split(" ", 1) for line in _LINES if line and line[0] != "#")
    for word in words.split("|")
}
# Words of scripts that are written without spaces may have others right after them.
UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u9fff\uac00-\ud7a3]")


def after_numbers() -> str:
    """A pattern for the words that stand after a number."""
    words = [word for word, kind in KINDS.items() if kind != "-"]
    ordered = map(re.escape, sorted(words, key=len, reverse=True))
    return "|".join(
        rf"{word}(?!\d)" if UNSPACED.match(word) else rf"{word}(?!\w)" for word in ordered
    )
