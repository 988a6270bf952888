"""Whether an answer repeats an expression of the question. Pure, without a parser."""

from __future__ import annotations

import re

from workers.lib.maths.notation import rewritten, undecorated
from workers.lib.maths.units import split_unit

LONGEST_QUESTION = 5_000  # characters, from the end
_TOKEN = re.compile(r"\\[A-Za-z]+|\d+|\S")
_IN_BRACES = re.compile(r"\{(\w)\}|(?<=\^)\{(\w+)\}")
_NUMBER = r"\d[\d.,]*"
# A number in any form may well be in the question, too.
_PLAIN = re.compile(
    rf"[-+]?(?:{_NUMBER}(?: ?\d+/\d+|/\d+)?|(?:{_NUMBER})?\\frac\{{?\d+\}}?\{{?\d+\}}?)?(?:\\?%)?"
    r"|[A-Za-z\\]*(?:_\w+)?"
)


def repeats(question: str, answer: str, gold: str) -> bool:
    """Whether the answer is written in the question, and the gold one is written otherwise:
    “(x+1)^2” where it is to be expanded, “90 min” where hours are wanted.
    """
    tokens = _tokens(answer)
    shape = "".join(tokens)
    if not tokens or _PLAIN.fullmatch(shape) or tokens == _tokens(gold):
        return False
    if _has_unit(answer) and not _has_unit(gold):
        return False
    whole = r"(?<![\w.\\^/*+-])(?<![\^/*+-]\s){}(?!\s*[\^/*+-]|[\w(]|[.,]\d)".format(
        r"\s*".join(map(re.escape, tokens))
    )
    return re.search(whole, _in_one_notation(question[-LONGEST_QUESTION:])) is not None


def _in_one_notation(text: str) -> str:
    text = rewritten(undecorated(text)).replace('"', " ").replace("\\times", "\\cdot")
    return _IN_BRACES.sub(r"\1\2", text).replace("\\cdot", "*")


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_in_one_notation(text))


def _has_unit(text: str) -> bool:
    return split_unit(_in_one_notation(text), named=False, letters=True) is not None
