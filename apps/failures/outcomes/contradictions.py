"""Signs that an action contradicts what was asked, answered or stated, found in users' words, tool
replies and the system prompt.

Pure. No tool or product is hard-coded. Every sign has exceptions that only a reader who understands
the conversation would see, so `model` weighs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from apps.failures.rules import causes, conditions, requests, words
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.reading import Call, Run, kind_of, scalars

Found = Iterator[tuple[int | None, str, str]]  # (message index, sentence, quote)
ANSWERS, REPLIES, SHORTEST, MOST_LISTED = 200, 60, 3, 200
_NUMBERS = {
    word: at
    for at, word in enumerate(
        ["three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], 3
    )
}
_COUNTED = re.compile(
    r"\b(?:there (?:are|is)|we (?:have|offer|carry)|i (?:found|see|can see)|(?:a )?total"
    r" of|exactly)(?: (?:currently|now|exactly|a|total|of)){0,3} "
    rf"(\d{{1,3}}|{'|'.join(_NUMBERS)})\b(?: [\w-]{{1,20}}){{1,6}}",
    re.IGNORECASE,
)
_COMPARED = re.compile(
    r"\$?(\d[\d,]*(?:\.\d+)?)[^.\n\d$]{0,40}?\b(?:is|are)\s+(not\s+)?(more|less|greater|higher|lower|over|under|fewer)"
    r" than\s+"
    r"\$?(\d[\d,]*(?:\.\d+)?)(?![\d.,]*\d|%)"
)


def contradictions(run: Run) -> Iterator[tuple[str, int | None, str, str]]:
    """Yield (sign, message index, sentence, quote), each sign at most once."""
    for rule in FROM_CAUSES:
        if found := next(rule(run), None):
            yield (
                rule.__name__,
                found.blamed if found.shown is None else found.shown,
                found.text,
                found.quote,
            )
    for name, look in OWN:
        if own := next(look(run), None):
            yield name, *own


def other_than_refused(run: Run) -> Found:
    """A tool refused a change, and the agent made another change instead."""
    if run.changes_made:
        for finding in causes.refused_change(run):
            yield finding.blamed, finding.text, finding.quote


def another_was_named(run: Run) -> Found:
    """A tool listed several items, and the agent changed one that the user had not described
    instead of the one they had.
    """
    for call, named in run.named_changes:
        said = "\n".join(text for at, text in run.users if at < call.index).casefold()
        for name, value in named if said else ():
            if value.casefold() not in said and (other := _described(run, call, value, said)):
                text = (
                    f"{call.tool} used {name} {value}, but the user had described {other[0]}"
                    f" (“{other[1]}”)."
                )
                yield call.index, text, cut(call.raw)
                return


def _described(run: Run, call: Call, value: str, said: str) -> tuple[str, str] | None:
    """(item, the words that describe it) for the item that the user described, or None if that is
    `value`.
    """
    for earlier in run.calls[:REPLIES]:
        if earlier.index >= call.index:
            return None
        if (
            earlier.worked
            and value in (earlier.reply or "")
            and (listed := _siblings(run.record(earlier), value))
        ):
            about = {
                key: _descriptions(item) for key, item in listed.items() if isinstance(item, dict)
            }
            own = about.pop(value, set())
            if any(_says(said, item) for item in own):
                return None
            for key, described in about.items():
                others = own.union(*(items for other, items in about.items() if other != key))
                by = next((item for item in sorted(described - others) if _says(said, item)), None)
                if by and key not in call.raw:
                    return key, by
            return None
    return None


def _siblings(record: Any, value: str) -> dict | None:
    """The dict in which `value` is one of several keys that lead to similar items."""
    left, seen = [record], 0
    while left and seen < 200:
        item, seen = left.pop(), seen + 1
        if isinstance(item, dict):
            if isinstance(item.get(value), dict) and len(item) > 1:
                return item
            left += item.values()
        elif isinstance(item, list):
            left += item[:50]
    return None


def _descriptions(item: dict) -> set[str]:
    """The values of an item that a user may describe it by, in lower case."""
    values = (
        value
        for _, value in scalars(item)
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    )
    return {str(value).casefold() for value in values if len(str(value)) >= SHORTEST}


def _says(said: str, item: str) -> bool:
    return item in said and re.search(rf"(?<![\w.]){re.escape(item)}(?!\w)", said) is not None


def wrong_comparison(run: Run) -> Found:
    """A comparison that is wrong, such as “$171, which is not more than $100”."""
    texts = [
        *run.answers[:ANSWERS],
        *((call.index, call.raw) for call in run.calls[:ANSWERS] if kind_of(call.tool) == "read"),
    ]
    for index, text in texts:
        for one, negated, how, other in (
            _COMPARED.findall(text[: words.LOOKED_AT]) if " than " in text else ()
        ):
            left, right = float(one.replace(",", "")), float(other.replace(",", ""))
            true = left > right if how in ("more", "greater", "higher", "over") else left < right
            if true == bool(negated):
                yield index, f"The agent says that {one} is {negated}{how} than {other}.", cut(text)


def breaks_a_condition(run: Run) -> Found:
    """A change that a condition forbids, given the record that was looked up; once per change and
    record.
    """
    seen: set[tuple[int, str]] = set()
    for found in conditions.broken(run):
        if (change := (id(found.call), found.record)) not in seen:
            seen.add(change)
            source = conditions.source_of(run, found.condition)
            text = f"{found.text}. The {source} says “{found.condition.sentence[:160]}”."
            yield found.call.index, text, cut(found.call.raw)


def refuses_what_is_allowed(run: Run) -> Found:
    """A refusal of something that the system prompt allows, in general or for a record that was
    looked up.
    """
    for index, item in (*conditions.refuses_permitted(run), *conditions.refuses_allowed(run)):
        yield (
            index,
            (
                f"The agent refuses, although the {conditions.source_of(run, item)} says"
                f" “{cut(item.sentence, 120)}”."
            ),
            cut(run.words(index)),
        )


def locked_by_itself(run: Run) -> Found:
    """A change was refused because of an earlier change by the agent itself to the same thing: done
    in another order, both would have worked.
    """
    changed: dict[str, str] = {}
    for call, named in run.named_changes:
        before = next((value for _, value in named if value in changed), None)
        if call.error and before is not None:
            yield (
                call.index,
                f"{call.tool} was refused after {changed[before]} had changed {before}.",
                cut(call.reply or ""),
            )
            return
        if call.worked:
            changed |= {value: call.tool for _, value in named}


def miscounted(run: Run) -> Found:
    """A wrong count: “12 options are available”, although the tool's reply lists 12 options of
    which 10 are available.
    """
    calls, last = iter(run.calls), None
    ahead = next(calls, None)
    for index, text in run.answers[:ANSWERS]:
        while ahead is not None and ahead.index < index:
            last, ahead = (ahead if ahead.worked else last), next(calls, None)
        for found in _COUNTED.finditer(text[: words.LOOKED_AT]) if last else ():
            said, what = _number(found[1]), found.group().casefold()
            for flag, true, listed in _flagged(run.record(last)) if said else ():
                if (
                    flag.casefold() in what
                    and true != said <= listed
                    and true < listed
                    and not words.mentions(text, str(true))
                ):
                    yield (
                        index,
                        (
                            f"The agent counts {said} {flag}; {last.tool} lists {listed}, {true} of"
                            f" them {flag}."
                        ),
                        cut(text),
                    )
                    return


def _number(written: str) -> int:
    return int(written) if written.isdigit() else _NUMBERS.get(written.casefold(), 0)


def _flagged(record: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (field, number of items where it is true, number of items) for the boolean fields of
    lists of similar items in a record.
    """
    left, seen = [record], 0
    while left and seen < 200:
        item, seen = left.pop(), seen + 1
        if not isinstance(item, dict | list):
            continue
        inner = list(item.values() if isinstance(item, dict) else item)[:MOST_LISTED]
        if len(inner) >= SHORTEST and all(isinstance(one, dict) for one in inner):
            for flag in (name for name, value in inner[0].items() if isinstance(value, bool)):
                yield flag, sum(one.get(flag) is True for one in inner), len(inner)
        left += inner


FROM_CAUSES: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    causes.choice_not_asked,
    causes.acted_on_the_past,
    causes.miscounted_time,
    causes.contradicts_a_tool,
    causes.taken_on_trust,
    causes.changed_unseen,
    requests.request_not_served,
    requests.change_without_a_yes,
)
OWN: tuple[tuple[str, Callable[[Run], Found]], ...] = (
    ("other_than_refused", other_than_refused),
    ("another_was_named", another_was_named),
    ("wrong_comparison", wrong_comparison),
    ("locked_by_itself", locked_by_itself),
    ("miscounted", miscounted),
    ("breaks_a_condition", breaks_a_condition),
    ("refuses_what_is_allowed", refuses_what_is_allowed),
)
