"""The results of rules: evidence, and the diagnosis drawn from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_QUOTE = 200
UNEXPLAINED = "unexplained"  # the mode of a failure whose cause no fact tells


@dataclass(frozen=True)
class Evidence:
    """One reason: the rule, the message it is about, a sentence, and that message's own words.

    `confidence` is "certain" (it can be checked and leaves no other mode: a schema, a ground truth,
    a person's act) or "likely" (a pattern in calls and replies). `bench.families` measures
    each rule.
    """

    rule: str
    message_index: int | None
    text: str
    quote: str = ""
    mode: str = ""
    confidence: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "message_index": self.message_index,
            "text": self.text,
            "quote": self.quote,
            "mode": self.mode,
            "confidence": self.confidence,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong (a slug of a failure mode), at which message, and why we think so: the
    deciding reason first.
    """

    mode: str
    blamed_message: int | None
    evidence: list[Evidence]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found: the mode, the agent's blamed step, and the message that shows it.

    `confidence` is set if it is less certain than usual for its rule.
    """

    mode: str
    blamed: int | None
    shown: int | None
    text: str
    quote: str = ""
    confidence: str = ""


def cut(text: str, limit: int = MAX_QUOTE) -> str:
    """At most `limit` characters, from both ends if there are more."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"
