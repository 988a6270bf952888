"""Parses the judge's output into a verdict, or a sentence that says what is wrong with it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workers.lib.storable import storable

MAX_SCANNED = 40_000  # characters of an answer that are searched for JSON
END_OF_THOUGHTS = "</think>"
MAX_STARTS = 400  # opening braces that are tried
MAX_QUOTE, MAX_REASON = 500, 1_000
_MARKS = "\"'“”‘’`"
_NUMBER = re.compile(r"#?\s*(\d{1,9})")


class AnswerError(ValueError):
    """An answer that is not a verdict; the sentence is sent back to the judge."""


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict; an empty mode means no failure. `confidence` is how sure the judge says
    it is, from 0 to 1: no probability. `rule` is the id of the confirmed rule that was broken.
    """

    mode: str = ""
    message_index: int | None = None
    quote: str = ""
    reason: str = ""
    confidence: float | None = None
    rule: int | None = None

    @property
    def failed(self) -> bool:
        return bool(self.mode)


def read(
    text: str,
    slugs: Collection[str],
    bodies: Sequence[str],
    agents: Collection[int] | None = None,
    rules: Sequence[int] = (),
) -> Verdict:
    """The verdict in an answer. `slugs` are the available modes, `bodies` the run's messages,
    `agents` the numbers of the agent's own, the only ones that may be blamed (None: any), `rules`
    the ids of those that the question numbers from 1. Raises AnswerError."""
    given = extract(text)
    failed = given.get("failed")
    if not isinstance(failed, bool):
        raise AnswerError(f"“failed” must be true or false, not {_shown(failed)}.")
    reason, sure = _text(given, "reason")[:MAX_REASON], _confidence(given.get("confidence"))
    if not failed:
        if given.get("mode"):
            raise AnswerError(
                f"“failed” is false, but “mode” is {_shown(given['mode'])}. Give null, or true."
            )
        return Verdict(reason=reason, confidence=sure)
    mode = _mode(given.get("mode"), slugs)
    index = _index(given.get("message_index"), len(bodies))
    if index is not None and agents is not None and index not in agents:
        raise AnswerError(
            f"“message_index” is {index}, which is not a message of the agent. Blame a step of the"
            " agent, or give null."
        )
    quote = _quote(_text(given, "quote"), index, bodies)
    return Verdict(mode, index, quote, reason, sure, _rule(given.get("rule"), rules))


def extract(text: str, name: str = "failed") -> dict[str, Any]:
    """The object with that field in an answer that may be surrounded by prose and fences. Several
    that differ are none: one of them may be copied from the run. Raises AnswerError.
    """
    said = text.rpartition(END_OF_THOUGHTS)[2]
    found = list(_objects(said[-MAX_SCANNED:]))
    if not found:
        raise AnswerError("There is no JSON object in it.")
    fitting = [item for item in found if name in item]
    if not fitting:
        raise AnswerError(f"The JSON object has no “{name}”.")
    if any(item != fitting[0] for item in fitting):
        raise AnswerError(f"There are several JSON objects with “{name}”. Give one alone.")
    return fitting[-1]


def read_notes(text: str) -> str:
    """The notes on a part of a run. Raises AnswerError."""
    notes = _text(extract(text, "notes"), "notes")
    if not notes:
        raise AnswerError("“notes” is empty.")
    return notes


def quote_from(given: dict[str, Any], index: int, bodies: Sequence[str]) -> str:
    """The “quote” of an answer, if that message contains it. Raises AnswerError."""
    return _quote(_text(given, "quote"), index, bodies)


def quoted_anywhere(given: dict[str, Any], bodies: Sequence[str]) -> str:
    """The “quote” of an answer, if any message contains it. Raises AnswerError."""
    return _quote(_text(given, "quote"), None, bodies)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """All JSON objects in a text, except nested ones."""
    decoder, at = json.JSONDecoder(), text.find("{")
    for _ in range(MAX_STARTS):
        if at < 0:
            return
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield found
        at = text.find("{", end)


def _shown(value: Any) -> str:
    return storable(repr(value))[:80]


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AnswerError(f"“{name}” must be a string, not {_shown(value)}.")
    return storable(value).strip()


def _confidence(value: Any) -> float | None:
    """None where the judge gives none: a verdict is not refused for it."""
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if is_share else None


def _mode(value: Any, slugs: Collection[str]) -> str:
    slug = value.strip() if isinstance(value, str) else ""
    if slug in slugs:
        return slug
    raise AnswerError(f"“mode” is {_shown(value)}, which is none of {', '.join(sorted(slugs))}.")


def _rule(value: Any, rules: Sequence[int]) -> int | None:
    """The id of the rule with that number."""
    if value is None or not rules:
        return None
    number = _whole(value)
    if number is None or not 1 <= number <= len(rules):
        raise AnswerError(f"“rule” is {_shown(value)}, but the rules are 1 to {len(rules)}.")
    return rules[number - 1]


def _index(value: Any, count: int) -> int | None:
    """The number of a message; null if the judge blames none. “#3” is 3."""
    if value is None:
        return None
    number = _whole(value)
    if number is None:
        raise AnswerError(f"“message_index” must be a number or null, not {_shown(value)}.")
    if not 0 <= number < count:
        raise AnswerError(
            f"“message_index” is {_shown(number)}, but the messages are #0 to #{count - 1}."
        )
    return number


def _whole(value: Any) -> int | None:
    """A whole number, as judges write it; None if it is none."""
    written = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if written:
        return int(written[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)


def _quote(quote: str, index: int | None, bodies: Sequence[str]) -> str:
    """The quote, if that message contains it (any message, if none is blamed); white space is
    ignored.
    """
    wanted = _plain(quote)
    if not wanted:
        if index is not None and _plain(bodies[index]):
            raise AnswerError(f"“quote” is empty; quote a few words of message #{index}.")
        return ""
    among = bodies if index is None else [bodies[index]]
    for words in (wanted, wanted.strip(_MARKS + " ")):
        if words and any(words in _plain(body) for body in among):
            return words[:MAX_QUOTE]
    where = "any message" if index is None else f"message #{index}"
    raise AnswerError(f"“quote” does not occur in {where}; copy a few words of it exactly.")


def _plain(text: str) -> str:
    return " ".join(text.split())
