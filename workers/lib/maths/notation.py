"""Normalises mathematical notation: plain LaTeX without decoration; and finds where brackets close.
Pure.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate

from workers.lib.maths.emphasis import unmarked

MOST_NESTED = 12
_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log exp gcd lcm det"
_GREEK = "alpha beta gamma delta epsilon theta lambda mu sigma phi omega pi"
_SUPERSCRIPTS = {
    "⁰": "0",
    "¹": "1",
    "²": "2",
    "³": "3",
    "⁴": "4",
    "⁵": "5",
    "⁶": "6",
    "⁷": "7",
    "⁸": "8",
    "⁹": "9",
    "⁻": "-",
}
_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": "\\times ",
        "·": "\\cdot ",
        "⋅": "\\cdot ",
        "÷": "/",
        "π": "\\pi ",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "±": "\\pm ",
        "∪": "\\cup ",
        "∈": "\\in ",
        "∅": "\\emptyset ",
        "°": "^\\circ ",
        "θ": "\\theta ",
        "⅓": "\\frac{1}{3}",
        "⅔": "\\frac{2}{3}",
        "⅛": "\\frac{1}{8}",
        "⅕": "\\frac{1}{5}",
        "⅙": "\\frac{1}{6}",
        "⟨": "(",
        "⟩": ")",
        "ℝ": "\\mathbb{R}",
        "½": "\\frac{1}{2}",
        "¼": "\\frac{1}{4}",
        "¾": "\\frac{3}{4}",
        "≈": "\\approx ",
        "~": " ",
        "\t": " ",
        "\n": " ",
    }
)
_ENCLOSED = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mathbf|mathit|mbox|operatorname|boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_REWRITES = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])", " "),
        (r"(?<!\\)\\[,;: ]|(?<![,\\])\\!|\\q?quad(?![a-z])", " "),
        (r"\\langle(?![a-z])", "("),
        (r"\\rangle(?![a-z])", ")"),
        (r"\\colon(?![a-z])", ":"),
        (r"(?<![A-Za-z])\\?lg(?![a-z])", r"\\log_{10} "),
        (r"\\log\s*_\s*(?:e(?![a-z])|\{\s*e\s*\})", r"\\ln "),
        (r"(?<=[\d.])\s*[xX]\s*(?=10\s*\^)", r" \\times "),
        (r"(?<=\d),\\!\s*(?=\d{3})", ","),
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\[dt]binom(?![a-z])", r"\\binom"),
        (r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r'\1 "\2"'),
        (r"\\[lr]?vert(?![a-z])", "|"),
        (r"\\lbrace(?![a-z])", r"\\{"),
        (r"\\rbrace(?![a-z])", r"\\}"),
        (r"\\(?:leq|leqslant)(?![a-z])|<=|=<", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\neq(?![a-z])|!=", r"\\ne "),
        (r"\\varnothing(?![a-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\+/-|\+-", r"\\pm "),
        (r"\*\*", "^"),
        (r"\*", r" \\cdot "),
        (r"\\div(?![a-z])", "/"),
        (r"√\s*(\d+|\w)", r"\\sqrt{\1}"),
        (r"√", r"\\sqrt"),
        (r"(?<![\\a-zA-Z])(?:infinity|inf)(?![a-zA-Z])", r"\\infty "),
        (r"(?<![\\a-zA-Z])sqrt(?![a-zA-Z])", r"\\sqrt"),
        (
            rf"(?<![\\a-zA-Z])({'|'.join((_FUNCTIONS + ' ' + _GREEK).split())})(?![a-zA-Z])",
            r"\\\1 ",
        ),
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,6})(?![\w.])", r"\1 \\cdot 10^{\2}"),
        (r"\\text\s*", ""),
    )
)
AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
WORDS = re.compile(r"[A-Za-z][A-Za-z'’ -]*")


def undecorated(text: str) -> str:
    """The text without delimiters and emphasis, with special characters as LaTeX commands."""
    text = "".join(map(_plain, re.sub(r"~(?=\s*[\d.])", "≈", text)))
    text = _undelimited(text.translate(_CHARACTERS).strip())
    text = (
        text if "\\begin" in text else text.replace("\\\\", "\\")
    )  # backslashes were escaped twice
    return re.sub(
        f"[{''.join(_SUPERSCRIPTS)}]+",
        lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}",
        text,
    )


def _plain(char: str) -> str:
    """A space or digit of any script as ASCII; "" for what is invisible."""
    kind = "" if char.isascii() else unicodedata.category(char)
    if kind == "Nd":
        return str(unicodedata.decimal(char))
    return {"Zs": " ", "Cf": ""}.get(kind, char)


def unwrapped(text: str) -> str:
    """The contents of commands such as \\text{…}, without the commands."""
    return _ENCLOSED.sub(r" \1 ", text)


def rewritten(text: str) -> str:
    """The text with one command for each meaning, and with words in quotes."""
    for _ in range(MOST_NESTED):
        inner = _ENCLOSED.sub(_quoted, text)
        if inner == text:
            break
        text = inner
    for pattern, by in _REWRITES:
        text = pattern.sub(by, text)
    text = _with_arguments(text)
    return _braced(_braced(text, "\\sqrt"), "^").replace('"" ', "").strip().rstrip(".").strip()


def _quoted(match: re.Match) -> str:
    inner = match[1].strip()
    if inner in ("i", "e") and match[0].startswith("\\math"):
        return f" {inner} "
    is_words = (
        WORDS.fullmatch(inner)
        and not AND.search(inner)
        and (len(inner) > 1 or not match[0].startswith("\\text"))
    )
    return (
        f' "{inner}" '
        if is_words and not match[0].startswith(("\\boxed", "\\mathbf", "\\operatorname"))
        else f" {inner} "
    )


_OF_A_COUNTRY = re.compile(r"(?<![A-Za-z])((?:US|CA|MX|NZ|HK|NT|[ACRS]))\$(?=\s*\d)")


def _undelimited(text: str) -> str:
    """The text without surrounding $…$, \\(…\\), \\[…\\] and emphasis; a dollar sign before a
    number stays as $.
    """
    text = re.sub(r"\\[()\[\]]", " ", re.sub(r"\\\\(?=[\[(])", " ", unmarked(text)))
    text = _OF_A_COUNTRY.sub(r"\1＄", text.replace("\\$", "＄"))
    if text.count("$") % 2:
        text = re.sub(r"^(-?\s*)\$(?=\s*[\d.])|^(-?[\d.,\s]*\d\s*)\$$", r"\1\2＄", text)
    return text.replace("$", " ").replace("＄", "$").strip()


_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1}
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TAKES_ARGUMENTS = re.compile(r"\\(?:frac|binom|sqrt)(?![A-Za-z])|\^\s*(?=\\)")


def _with_arguments(text: str) -> str:
    """Each argument in braces, as TeX reads them: \\frac1x, \\frac\\pi4, \\sqrt2, x^\\frac12."""
    for match in reversed(list(_TAKES_ARGUMENTS.finditer(text))):
        at, arguments = match.end(), ""
        if text[at : at + 1] == "[" and (end := text.find("]", at)) > 0:
            arguments, at = text[at : end + 1], end + 1
        for _ in range(_ARGUMENTS.get(match[0], 1)):
            argument, at = _argument(text, at)
            arguments += argument
        text = text[: match.end()].rstrip() + arguments + text[at:]
    return text


def _argument(text: str, at: int) -> tuple[str, int]:
    """The argument that begins there, in braces, and where it ends; "" if none does."""
    at += len(text[at:]) - len(text[at:].lstrip())
    if text[at : at + 1] == "{" and (end := closing(text, at)):
        return text[at : end + 1], end + 1
    end = at
    if command := _COMMAND.match(text, at):
        end = command.end()
        for _ in range(_ARGUMENTS.get(command[0], 0)):
            end = _argument(text, end)[1]
    elif text[at : at + 1].isalnum():
        end = at + 1
    return ("{" + text[at:end] + "}", end) if end > at else ("", at)


def _braced(text: str, before: str) -> str:
    """`before`(…) as `before`{…}, with any nesting inside."""
    at = 0
    while (at := text.find(before, at)) >= 0:
        at += len(before)
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if text[start : start + 1] == "(" and (end := closing(text, start)):
            text = f"{text[:at]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    return text


# Brackets


def step(char: str) -> int:
    return (char in "([{") - (char in ")]}")


def closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += step(text[at])
        if depth == 0:
            return at
    return 0


def is_unbalanced(text: str) -> bool:
    """Whether brackets are unbalanced; ( may be closed by ], for half-open intervals."""
    depths = list(accumulate(map(step, text), initial=0))
    return min(depths) < 0 or depths[-1] != 0


def split(text: str, separator: re.Pattern) -> list[str]:
    """Split at separators outside of all brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        depth += step(char)
        if depth == 0 and (found := separator.match(text, at)):
            parts.append(text[start:at])
            start = at = max(found.end(), at + 1)
            continue
        at += 1
    return [part.strip() for part in (*parts, text[start:])]
