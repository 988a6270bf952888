"""Rules and what they find: the words that the other modules share."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import re2

MAX_PATTERN, MAX_PROGRAM, MAX_REPLACEMENT, MAX_NAME, MAX_RULES = 500, 10_000, 80, 80, 100
ID = "{id}"


class RuleError(Exception):
    """A rule that cannot be used; the sentence says why."""


class Rule(msgspec.Struct, frozen=True):
    """`pattern` is RE2 syntax for kind regex, `presidio.Settings` for presidio, and empty for the
    built-in kinds.

    `replacement` is put in place of a hit as it stands; empty means `[NAME]`. `{id}` in it becomes
    a token that is the same wherever the same value stands, so that a conversation stays coherent.
    """

    name: str
    kind: str
    pattern: str = ""
    replacement: str = ""


class Hit(msgspec.Struct, frozen=True):
    """What a rule found in a text: `text` is `[start, end)` in characters."""

    rule: str
    start: int
    end: int
    text: str
    replacement: str


class Span(NamedTuple):
    start: int
    end: int
    rule: int


class Leaf(NamedTuple):
    """One string of a row, and the key before it where that key says what the string is
    ("phone").
    """

    context: str
    text: str


BUILTIN_MEMORY = (
    64 << 20
    # bytes that the states of a built-in pattern may take; with RE2's own 8 MB the large ones are
    # 25 times slower
)


def compile_pattern(pattern: str, memory: int = 8 << 20, *, captures: bool = True) -> Any:
    """An RE2 pattern over bytes. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    options.never_capture = not captures
    return re2.compile(pattern.encode("utf-8", "replace"), options)


def default_replacement(rule: Rule) -> str:
    return f"[{re.sub(r'[^A-Z0-9]+', '_', rule.name.upper()).strip('_') or 'REDACTED'}]"
