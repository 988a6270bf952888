"""Compares mathematical answers. Light: anything beyond plain numbers is compared in
`workers.lib.maths`.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import Any, Literal

from workers.lib.maths import LONGEST as LONGEST_ANSWER
from workers.lib.maths import HelperError, compare, problem_of
from workers.lib.maths.emphasis import MARKS, unmarked
from workers.lib.maths.question import repeats
from workers.lib.messages import text_of
from workers.lib.patterns import LONGEST
from workers.lib.verifiers.answers import Answer, AnswerOptions, find_answer
from workers.lib.verifiers.base import SpecError, Unavailable, options
from workers.lib.verifiers.types import Clients, Rollout, Score

_NUMBER = re.compile(r"([-+−]?(?:\d{1,40}|\d{1,3}(?:,\d{3}){1,12})(?:\.\d{1,40})?)(?:/(\d{1,40}))?")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BETWEEN = re.compile(r"(?:[\s$,;{}]|\\[()\[\],; ]|\\q?quad|\\text|and\b|or\b)*", re.IGNORECASE)
_SAID = re.compile(
    r"answer(?:[*_]*\s*(?:is|was|would be|=)[*_]*\s*:?|[*_]*\s*:|(?=\s*(?:\$|\\[(\[])))",
    re.IGNORECASE,
)
_DOUBT = re.compile(r"\b(?:whether|if|not|never|unsure|unless|doubt)\b|n't\b", re.IGNORECASE)
_END = re.compile(r"\n|[.!?](?=[*_`]*(?:\s|$))")
_MATH = re.compile(
    r"(?:\$\$.*?\$\$|\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\])(?:\s*(?:\\?%|percent\b|pct\b))?", re.DOTALL
)
_MORE = re.compile(r"[\s*_`]*(?:,|;|/|or\b|and\b|\()", re.IGNORECASE)


def final_answer(text: str) -> str:
    """The answer in an output: the last \\boxed{…} (with those joined to it by “and” or “or”), else
    the text after the last “answer is” or “answer:” up to the end of the sentence, else the only
    formula of the last line, else the whole output.
    """
    text = text[:LONGEST].strip()
    if boxes := _boxes(text):
        at = len(boxes) - 1
        while at > 0 and _BETWEEN.fullmatch(text, boxes[at - 1][1], boxes[at][0]):
            at -= 1
        return ", ".join(dict.fromkeys(text[box[2] : box[1] - 1].strip() for box in boxes[at:]))
    said = deque(_SAID.finditer(text), maxlen=1)
    if said:
        return _sentence(text, said[0])
    last = text.splitlines()[-1] if text else ""
    spans = _MATH.findall(last)
    return spans[0] if len(spans) == 1 and not _DOUBT.search(last) else _unmarked(text)


def _sentence(text: str, said: re.Match) -> str:
    """The text after “answer is”; "" if the sentence questions it."""
    begin = max((end.end() for end in _END.finditer(text, 0, said.start())), default=0)
    if _DOUBT.search(text, begin, said.start()):
        return ""
    rest = text[said.end() :].strip()
    inside = rest.lstrip(MARKS + " \n")
    found = _MATH.match(inside)
    if found and not _MORE.match(inside, found.end()):
        return found[0]
    end = _END.search(rest, len(rest) - len(inside))
    return _unmarked(rest[: end.start()] if end else rest)


def _unmarked(text: str) -> str:
    """The text without Markdown, unless it is too long for an answer anyway."""
    return unmarked(text) if len(text) <= LONGEST_ANSWER else text


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """(start, end, start of the content) of each outermost closed box."""
    found: list[tuple[int, int, int]] = []
    opened: list[tuple[int, int] | None] = []
    for match in _BOX.finditer(text):
        if match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened:
            if box := opened.pop():
                while found and found[-1][0] > box[0]:
                    found.pop()
                found.append((box[0], match.end(), box[1]))
        elif len(match[0]) > 2:
            opened.append((match.start(), match.end()))
    return found


def number_of(text: str) -> Fraction | None:
    """A plain number with at most 40 digits on each side; None for anything more complex."""
    found = _NUMBER.fullmatch(text.strip().strip("$").strip().removesuffix("."))
    if found is None or (found[2] is not None and not int(found[2])):
        return None
    return Fraction(found[1].replace(",", "").replace("−", "-")) / Fraction(found[2] or 1)


class MathOptions(AnswerOptions):
    answer_in: Literal["final", "text", "last_line", "boxed", "hashes", "tags", "last_number"] = (
        "final"
    )
    symbols: Literal["real", "positive"] = "real"


class Mathematics(Answer):
    """Right or wrong. An answer that is ambiguous, or takes too much to compare, is wrong."""

    def __init__(self, chosen: MathOptions, path: str) -> None:
        super().__init__(chosen, path)
        self.positive = chosen.symbols == "positive"
        several = isinstance(self.values, list)
        for at, value in enumerate(
            self.values if several else [self.values] * (self.values is not None)
        ):
            if problem := gold_problem(value):
                raise SpecError(
                    f"“{path}.values{f'[{at}]' * several}” is not mathematics that can be compared:"
                    f" {problem}."
                )

    def judge(self, rollout: Rollout) -> Score:
        wanted = [gold_text(value) for value in self.wanted(rollout)]
        found = (
            final_answer(rollout.answer) if self.where == "final" and self.pattern is None else None
        )
        found = find_answer(rollout.answer, self.where, self.pattern) if found is None else found
        if not found:
            return self.judged(False, ["no answer: none was found in the output"], found)
        question = "\n".join(
            text_of(message)
            for message in rollout.task.get("messages") or ()
            if message.get("role") == "user"
        )
        details = []
        for gold in wanted:
            right, reason = self.verdict(found, gold)
            if right and repeats(question, found, gold):
                right, reason = False, f"not evaluated: {found[:80]!r} repeats the question"
            if right:
                return self.judged(True, [], found)
            details.append(reason or f"wrong answer: {found[:120]!r}, expected {gold[:120]!r}")
        return self.judged(False, details, found)

    def verdict(self, found: str, gold: str) -> tuple[bool, str]:
        """(whether it is equal; if not, possibly why)."""
        if found.strip() == gold.strip():
            return True, ""
        one, other = number_of(found), number_of(gold)
        if (
            one is not None
            and other is not None
            and (one != other or one.denominator > 1 or "/" not in found)
        ):
            return one == other, ""
        try:
            return compare(gold, found, self.positive)
        except ValueError as error:
            raise Unavailable(
                f"The expected answer {gold[:80]!r} cannot be read: {error}"
            ) from error
        except HelperError as error:
            raise Unavailable(str(error)) from error


def gold_text(value: Any) -> str:
    """A right answer; if it is a whole solution, the boxed part of it."""
    text = str(value)
    return final_answer(text) if "\\boxed" in text else text


def gold_problem(value: Any) -> str:
    """What is wrong with a right answer; "" if it can be compared."""
    text = gold_text(value)
    return "" if number_of(text) is not None else problem_of(text)


def from_spec(spec: dict, clients: Clients, path: str) -> Mathematics:
    return Mathematics(options(spec, path, MathOptions), path)
