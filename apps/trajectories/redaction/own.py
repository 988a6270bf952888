"""Patterns of a project's own, and names and places by Presidio."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from apps.trajectories.redaction.rules import MAX_PATTERN, MAX_PROGRAM, Rule, RuleError, compile_pattern
from apps.trajectories.redaction.walk import sound, to_bytes


def check_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises RuleError for one that is not RE2, is empty, matches nothing at all, or is too large."""
    if not pattern:
        raise RuleError("The pattern is empty.")
    if len(pattern) > MAX_PATTERN:
        raise RuleError(f"The pattern has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed.")
    if re.search(r"(?<!\\)(?:\\\\)*\\C", pattern):
        raise RuleError(r"\C (one byte) could cut a character in two. Use . for one character.")
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        hint = " RE2 does not support lookarounds or backreferences." if "(?" in reason or "escape" in reason else ""
        raise RuleError(f"The pattern does not compile: {reason}.{hint}") from error
    if compiled.programsize > MAX_PROGRAM:
        raise RuleError(
            f"The compiled pattern has {compiled.programsize:,} steps; at most {MAX_PROGRAM:,} are allowed."
        )
    if any((match := compiled.search(sample)) and match.end() == match.start() for sample in (b"", b"a 1")):
        raise RuleError("The pattern matches empty text. It must require at least one character.")
    return compiled


def presidio_installed() -> bool:
    return importlib.util.find_spec("presidio_analyzer") is not None


SPACY_MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")


@lru_cache(maxsize=1)
def analyzer() -> Any:
    """Presidio's analyzer over a spaCy model that is already here: Presidio itself would download one. RuleError."""
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
    except ImportError as error:
        raise RuleError("Presidio is not installed. Run `pip install presidio-analyzer` and restart.") from error
    model = next((name for name in SPACY_MODELS if importlib.util.find_spec(name)), None)
    if model is None:
        raise RuleError("Presidio needs a spaCy model. Run `python -m spacy download en_core_web_sm` and restart.")
    models = [{"lang_code": "en", "model_name": model}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
    return AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def find_names(rule: Rule, text: str) -> Iterator[tuple[int, int]]:
    """Byte spans in `text`. What Presidio cannot read goes whole: better a lost text than a leaked one."""
    entities = re.findall(r"\w+", rule.pattern) or None
    try:
        for found in analyzer().analyze(text=sound(text), language="en", entities=entities, score_threshold=0.5):
            yield tuple(len(to_bytes(text[:place])) for place in (found.start, found.end))  # type: ignore[misc]
    except Exception:
        yield 0, len(to_bytes(text))


class Own(NamedTuple):
    """A rule of kind regex, and its pre-check over strings laid end to end (None: it must see each by itself)."""

    order: int
    pattern: Any
    precheck: Any


_ENDS = re.compile(r"\\[AzQ]|\(\?[a-zA-Z]*-")


def compile_own(order: int, rule: Rule) -> Own:
    pattern = check_pattern(rule.pattern)
    return Own(order, pattern, None if _ENDS.search(rule.pattern) else compile_pattern(f"(?m:{rule.pattern})"))
