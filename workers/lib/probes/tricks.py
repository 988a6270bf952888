"""Strings and numbers that look like others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

ALIKE = str.maketrans("aceopxyiAEOPCTKMHB", "асеорхуіАЕОРСТКМНВ")  # Latin to Cyrillic
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def homoglyphs(text: str) -> str:
    return text.translate(ALIKE)


def zero_width(text: str) -> str:
    return text[:1] + "\u200b" + text[1:] if text else text


def full_width(text: str) -> str:
    return text.translate(FULL_WIDTH)


def combining(text: str) -> str:
    return text[:1] + "\u0301" + text[1:] if text else text


def right_to_left(text: str) -> str:
    """Displayed like the text, but stored in reverse. Palindromes are not changed."""
    return f"\u202e{text[::-1]}\u202c" if text != text[::-1] else text


# (name, change, whether a fair reader of text may treat it as the same)
CHANGES: tuple[tuple[str, Callable[[str], str], bool], ...] = (
    ("Cyrillic look-alikes", homoglyphs, False),
    ("a zero-width space", zero_width, True),
    ("full-width characters", full_width, True),
    ("a combining accent", combining, False),
    ("right-to-left override", right_to_left, False),
)


def in_call(call: dict, change: Callable[[str], str]) -> Iterator[tuple[str, dict]]:
    """The call with its tool's name changed, then with all its texts changed, if the change has an
    effect.
    """
    if (name := change(call["tool"])) != call["tool"]:
        yield "the tool's name", call | {"tool": name}
    args = {
        key: change(value) if isinstance(value, str) else value
        for key, value in call["args"].items()
    }
    if args != call["args"]:
        yield "the values", call | {"args": args}


def is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text.replace(",", "").strip()))


def number_forms(text: str) -> list[str]:
    """Wrong forms: other signs and magnitudes, things that are not numbers, hedges with the right
    value neither first nor last.
    """
    plain = text.replace(",", "").strip().lstrip("+")
    value = float(plain)
    near, far = f"{value + 1:g}", f"{value - 1:g}"
    negative = plain.removeprefix("-") if plain.startswith("-") else f"-{plain}"
    return [
        negative,
        f"{plain}0000",
        f"{plain}.42.17",
        f"{near}, {plain} or {far}",
        f"from {near} over {plain} to {far}",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        f"{far}–{near}",
    ]
