"""A failure as clustering sees it, and its text without what differs by chance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

REQUEST_CHARS = 1500
TROUBLE_CHARS = 600
VALUE_CHARS = 40
MAX_ARGUMENTS = 40


@dataclass(frozen=True)
class Case:
    """One failure. All text may be empty; `tool` is the blamed call's, `rule` and `evidence` say
    why it is a failure.
    """

    id: str
    mode: str
    request: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    rule: str = ""
    evidence: str = ""
    error: str = ""
    version: str = ""
    started_at: datetime | None = None


CHANCE = (
    (re.compile(r"\\[nrt]"), " "),
    (re.compile(r"\bhttps?://\S+"), " <url> "),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), " <email> "),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), " <id> "),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:z|[+-]\d\d:?\d\d)?)?\b"
        ),
        " <date> ",
    ),
    (re.compile(r"\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}\b"), " <date> "),
    (re.compile(r"\b(?=[a-f]*\d)(?:0x)?[0-9a-f]{8,}\b"), " <id> "),
    (re.compile(r"_\d[\w-]*"), "_<n> "),
    (re.compile(r"#?\b(?=[a-z-]*\d)(?=\d*-?[a-z])[a-z0-9]+(?:-[a-z0-9]+)*\b"), " <id> "),
    (re.compile(r"\b\d+(?:[.,:]\d+)*\b"), " <n> "),
)
# Values inside JSON differ by chance; an error's own text does not.
JSON_PAIR = re.compile(
    r'"(?!err|mess|detail|reason|status|code|type)[\w'
    r' ]{1,60}"\s*:\s*(?:"[^"]{0,200}"?|[\w.+-]{1,30})?'
    r'|(?<=[,{])"\w{1,60}"?',
    re.IGNORECASE,
)
PLACEHOLDERS = re.compile(r"(<\w+>)(?: <\w+>)+")
SENTENCE = re.compile(r"[.?!,;:]+(?=\s|$)|\n+")
WORD = re.compile(r"<\w+>|[^\W\d_](?:[\w'’]*\w)?")


@lru_cache(maxsize=200_000)
def normalised(text: str) -> str:
    """Lower case, with numbers, ids, dates, addresses and hex as placeholders, words separated by
    one space.
    """
    text = text.lower()
    for pattern, placeholder in CHANCE:
        text = pattern.sub(placeholder, text)
    return PLACEHOLDERS.sub(r"\1", " ".join(WORD.findall(text)))


def request_of(case: Case) -> str:
    return normalised(case.request[:REQUEST_CHARS])


def trouble_of(case: Case) -> str:
    """Rule, evidence and the tool's error, one per line: what went wrong, as text."""
    return "\n".join(map(normalised, (case.rule, *_trouble(case))))


def _trouble(case: Case) -> Iterator[str]:
    """Evidence and error without values in JSON, and without the tool's own name, which has its own
    field.
    """
    for text in (case.evidence, case.error):
        text = JSON_PAIR.sub(" <value> ", text[:TROUBLE_CHARS])
        yield text.replace(case.tool, " ") if case.tool else text


def sentences_of(texts: Iterable[str]) -> Iterator[str]:
    """The normalised sentences and clauses of texts."""
    return (normalised(part) for text in texts for part in SENTENCE.split(text))


def trouble_sentences(case: Case) -> Iterator[str]:
    return sentences_of(_trouble(case))


def arguments_of(case: Case) -> str:
    """Argument names, and short values that are words, one per line, sorted: `cabin`, `cabin=basic
    economy`.
    """
    lines = {
        line for line, _ in zip(_arguments(case.arguments, ""), range(MAX_ARGUMENTS), strict=False)
    }
    return "\n".join(sorted(lines))


def _arguments(value: Any, path: str) -> Iterator[str]:
    """Depth first; a list counts as its items, so that its length does not matter."""
    if isinstance(value, dict):
        for name, item in value.items():
            inner = f"{path}.{name}" if path else str(name)
            yield inner.lower()
            yield from _arguments(item, inner)
    elif isinstance(value, list):
        for item in value[:5]:
            yield from _arguments(item, path)
    elif isinstance(value, str | bool) or value is None:
        words = normalised(value[:VALUE_CHARS] if isinstance(value, str) else json.dumps(value))
        if words and "<" not in words:
            yield f"{path.lower()}={words}"
