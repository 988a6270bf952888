"""A failure as clustering sees it, and its text without what differs by chance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workers.lib.remembered import remembered

CAUSE_CHARS, ERROR_CHARS = 600, 600
VALUE_CHARS = 40
MAX_ARGUMENTS = 40
FEW_VALUES = 4  # in a JSON error: all of its texts are read
TEXT_WORDS = 3


@dataclass(frozen=True)
class Case:
    """One failure. `cause` is a sentence of whoever knows why: the judge, or the outcome's reason.
    `fact` is the rule that saw it and `named` what its finding names of the run: arguments, other
    tools. `tool`, `arguments` and `error` are those of the blamed call. All may be empty.
    `corrected`: a person showed what would have been right.
    """

    id: str
    mode: str
    cause: str = ""
    fact: str = ""
    named: tuple[str, ...] = ()
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    error: str = ""
    corrected: bool = False
    started_at: datetime | None = None

    @property
    def has_cause(self) -> bool:
        """Without one it is only known that the run failed, and it belongs to no group."""
        return bool(self.cause or self.fact)


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
# The name of an exception, a code in capitals, or an HTTP status, whatever the error's language.
CLASS = re.compile(
    r"\b(?:[A-Z]\w*(?:Error|Exception)|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|E[A-Z]{4,}|[45]\d\d)\b"
)
PLACEHOLDERS = re.compile(r"(<\w+>)(?: <\w+>)+")
WORD = re.compile(r"<\w+>|[^\W\d_](?:[\w'’]*\w)?")


@remembered(characters=8_000_000)
def normalised(text: str) -> str:
    """Lower case, with numbers, ids, dates, addresses and hex as placeholders, words separated by
    one space.
    """
    text = text.lower()
    for pattern, placeholder in CHANCE:
        text = pattern.sub(placeholder, text)
    return PLACEHOLDERS.sub(r"\1", " ".join(WORD.findall(text)))


def cause_of(case: Case) -> str:
    return normalised(case.cause[:CAUSE_CHARS])


def fact_of(case: Case) -> str:
    """The rule, with its tool and with what its finding names, each as one term."""
    about = [case.tool.lower(), *case.named]
    pairs = [f"{case.fact}:{name}" for name in about if name]
    return "\n".join(f"<{term}>" for term in (case.fact, *pairs)) if case.fact else ""


def error_of(case: Case) -> str:
    """The text of the call's error, and its classes, each as one term: `not found`, `<404>`."""
    text = case.error[:ERROR_CHARS].replace(case.tool or "\0", " ")
    classes = sorted(set(CLASS.findall(text)))
    return "\n".join((normalised(text), *(f"<{name.casefold()}>" for name in classes)))


def text_of_error(reply: str) -> str:
    """An error without the values that a JSON object repeats of its call: of more than a few, only
    texts count.
    """
    try:
        values = list(_texts(json.loads(reply)))
    except (ValueError, RecursionError):
        return reply[:ERROR_CHARS]
    if len(values) > FEW_VALUES:
        values = [text for text in values if not text.isascii() or len(text.split()) >= TEXT_WORDS]
    return "\n".join(values)[:ERROR_CHARS]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _texts(inner)


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
