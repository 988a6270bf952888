"""Patterns of a project's own."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import re2

from apps.trajectories.redaction.rules import (
    MAX_PATTERN,
    MAX_PROGRAM,
    Rule,
    RuleError,
    compile_pattern,
)


def check_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises RuleError for one that is not RE2, is empty, matches nothing at
    all, or is too large.
    """
    if not pattern:
        raise RuleError("The pattern is empty.")
    if len(pattern) > MAX_PATTERN:
        raise RuleError(
            f"The pattern has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed."
        )
    if re.search(r"(?<!\\)(?:\\\\)*\\C", pattern):
        raise RuleError(r"\C (one byte) could cut a character in two. Use . for one character.")
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        hint = (
            " RE2 does not support lookarounds or backreferences."
            if "(?" in reason or "escape" in reason
            else ""
        )
        raise RuleError(f"The pattern does not compile: {reason}.{hint}") from error
    if compiled.programsize > MAX_PROGRAM:
        raise RuleError(
            f"The compiled pattern has {compiled.programsize:,} steps; at most {MAX_PROGRAM:,} are"
            " allowed."
        )
    if any(
        (match := compiled.search(sample)) and match.end() == match.start()
        for sample in (b"", b"a 1")
    ):
        raise RuleError("The pattern matches empty text. It must require at least one character.")
    return compiled


class Own(NamedTuple):
    """A rule of kind regex, and its pre-check over strings laid end to end (None: it must see each
    by itself).
    """

    order: int
    pattern: Any
    precheck: Any


_ENDS = re.compile(r"\\[AzQ]|\(\?[a-zA-Z]*-")


def compile_own(order: int, rule: Rule) -> Own:
    pattern = check_pattern(rule.pattern)
    return Own(
        order,
        pattern,
        None if _ENDS.search(rule.pattern) else compile_pattern(f"(?m:{rule.pattern})"),
    )
