"""Conditions that a system prompt states about records, such as “An order can only be cancelled if
its status is pending”. Pure.

It reads sentences of the form *subject* can (not, only, always) be *done* (if *field* is *value*).
A condition applies to the records whose values its subject names (“Basic economy flights”: records
with a field whose value is `basic_economy`), or to all records if the subject is only a kind of
thing. Nothing else in a policy is understood, so a condition is evidence rather than proof: only a
rule that a person has confirmed yields a finding (`violations`). `Run.rule_states` holds people's
decisions, by the rule's `key_of`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

from apps.failures.rules import words
from apps.failures.rules.reading import Call, Run, is_identifier, name_parts, scalars

READ_OF_A_PROMPT, MOST_CONDITIONS = 40_000, 60
MOST_RULES, LONGEST_SENTENCE = (
    40,
    600,
)  # per prompt, and characters per sentence, as shown to people
PROPOSED, CONFIRMED, DISMISSED = "proposed", "confirmed", "dismissed"
# The parts of a prompt that change from run to run: dates, times of day and UUIDs.
_CHANGING = re.compile(
    r"\d{4}-\d\d-\d\d|\b\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6} \d{1,2}(?:st|nd|rd|th)?,?"
    r" \d{4}\b"
    r"|\b\d{1,2} (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6},? \d{4}\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n|,? and (?=(?:\w+ ){1,4}can )")
_CAN = re.compile(
    r"(?P<subject>[^.;:,\n]{2,80}?)\s+(?:can(?P<not>not|'t| not)?|(?P<must_not>must not|may"
    r" not)|(?P<may>may))\s+"
    r"(?P<always>always )?(?P<only>only )?be (?P<verb>[a-z]{3,20}ed)\b(?P<rest>[^.\n]{0,200})",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|when) (?:the |its |their |an? )?(?P<field>[a-z][a-z _]{1,40}?) (?:is|are|was|were|has"
    r" been) "
    r"(?P<value>['\"“‘]?[\w -]{2,30})",
    re.IGNORECASE,
)
_AT_FIRST = re.compile(
    r"\b(?:all|any|an?|every) [a-z]{3,20} (?:can|may) be (?P<verb>[a-z]{3,20}ed) within"
    r" (?P<n>\d{1,4})[ -](?P<unit>hour|day)s? "
    r"(?:of|after) (?:the |its |their )?(?:booking|purchas\w+|order\w*|creation|placement|being"
    r" (?:booked|ordered|placed|made|created))\b",
    re.IGNORECASE,
)
_IN_A_CONDITION = re.compile(r"\b(?:if|when|whenever|unless|whether|until)\b")
_CAN_DO = re.compile(
    r"\bcan (?:also |always"
    r" )?(?P<verb>modify|change|update|edit|upgrade|cancel|return|exchange|remove|replace)\s+"
    r"(?:(?:the|their|its|his|her|any|an?) )?(?P<thing>[a-z]{4,20})\b",
    re.IGNORECASE,
)
_BEFORE_A_VALUE = words.word_set("or and all any every each otherwise the a an if only")
_KINDS = words.word_set("all any every an a the each other such this these it they")
_NO = frozenset(("no", "false", "none", "0", "", "null", "never"))
_MADE = words.word_set("created booked ordered placed purchased made")
_DONE = words.word_set(
    "bought paid met available present given included active valid purchased enabled set"
)


@dataclass(frozen=True)
class Condition:
    """`allowed` is "never", "always" or "if". `field` and `value` belong to "if"; without a value,
    anything but “no” satisfies it. `days`: for how many days after a record was created the prompt
    allows it anyway.
    """

    sentence: str
    subject: str
    verb: str
    allowed: str
    field: str = ""
    value: str = ""
    days: int = 0


@lru_cache(maxsize=256)
def conditions(system: str) -> tuple[Condition, ...]:
    """The conditions in a system prompt, in order."""
    if " be " not in system:
        return ()
    text = system[:READ_OF_A_PROMPT].replace("’", "'")
    found = [
        item for part in _SENTENCE_END.split(text) if " be " in part and (item := _condition(part))
    ]
    days = _allowed_at_first(text)
    return tuple(
        (
            replace(item, days=days[item.verb])
            if item.verb in days and item.allowed != "always"
            else item
        )
        for item in found
    )[:MOST_CONDITIONS]


def _allowed_at_first(text: str) -> dict[str, int]:
    """{participle: days}: what is allowed for every record within so many days of its creation.
    Hours are rounded up to days.
    """
    return {
        found["verb"].casefold(): -(
            -int(found["n"]) // (24 if found["unit"].casefold() == "hour" else 1)
        )
        for found in _AT_FIRST.finditer(text)
    }


def _condition(sentence: str) -> Condition | None:
    if not (can := _CAN.search(sentence)):
        return None
    subject, verb = can["subject"].strip(" -*•").casefold(), can["verb"].casefold()
    if _IN_A_CONDITION.search(subject):
        return None
    about = (sentence.strip(" -*•\t"), subject, verb)
    if can["always"]:
        return Condition(*about, "always")
    only = can["only"] or re.search(r"\bonly (?:if|when)\b", can["rest"])
    if only and (if_ := _CONDITION.search(can["rest"])):
        value = re.split(r" and | or |,", if_["value"].strip("'\"“‘ ").casefold())[0].strip()
        return Condition(*about, "if", if_["field"].casefold(), "" if value in _DONE else value)
    if (can["not"] or can["must_not"]) and not re.search(
        r"\b(?:if|unless|when|except|without)\b", can["rest"]
    ):
        return Condition(*about, "never")
    return None


@dataclass(frozen=True)
class Permission:
    """“The user can modify passengers”: `thing` is the first word of the object, `except_for` the
    words of clauses that exclude something.
    """

    sentence: str
    verb: str
    thing: str
    except_for: frozenset[str]


@lru_cache(maxsize=256)
def permissions(system: str) -> tuple[Permission, ...]:
    """The changes that a system prompt says can be made."""
    if " can " not in system:
        return ()
    parts = (
        part for part in re.split(r"(?<=[.!?])\s+|\n", system[:READ_OF_A_PROMPT]) if " can " in part
    )
    return tuple(found for part in parts for found in _permitted(part))[:MOST_CONDITIONS]


def _permitted(sentence: str) -> Iterator[Permission]:
    taken_back = re.split(r"\b(?:but|cannot|can't|can not|except)\b", sentence)[1:]
    except_for = frozenset(
        word for clause in taken_back for word in words.content_words(clause) if len(word) > 4
    )
    except_for -= words.SAME_ACTION["modify"]
    for found in _CAN_DO.finditer(sentence):
        thing = found["thing"].casefold().removesuffix("s")
        if thing not in _KINDS and len(thing) > 3:
            taken = frozenset(word for word in except_for if not word.startswith(thing))
            yield Permission(sentence.strip(" -*•\t"), found["verb"].casefold(), thing, taken)


@dataclass(frozen=True)
class Consent:
    """A sentence such as “Ask the user to confirm before you change anything.”"""

    sentence: str


@lru_cache(maxsize=256)
def consent(system: str) -> Consent | None:
    """The first sentence of a system prompt that requires the user's confirmation before
    changes.
    """
    for line in system[:READ_OF_A_PROMPT].splitlines():
        if words.search(words.CONSENT, line):
            parts = re.split(r"(?<=[.!?])\s+", line)
            found = next((part for part in parts if words.search(words.CONSENT, part)), line)
            return Consent(found.strip(" -*•\t"))
    return None


Rule = Condition | Permission | Consent


@lru_cache(maxsize=256)
def rules_of(system: str) -> tuple[Rule, ...]:
    """All rules that are understood, without duplicates, at most `MOST_RULES`: confirmation first,
    then conditions, then permissions.
    """
    asked = consent(system)
    found: list[Rule] = [*((asked,) if asked else ()), *conditions(system), *permissions(system)]
    return tuple({key_of(rule): rule for rule in reversed(found)}.values())[::-1][:MOST_RULES]


@lru_cache(maxsize=4096)
def key_of(rule: Rule) -> str:
    """A key for a rule that does not depend on dates in the prompt. Different wording, or another
    reading of it, gives another key.
    """
    parts = [
        sorted(part) if isinstance(part, frozenset) else part for part in astuple(rule) if part != 0
    ]
    return _digest(" ".join(_CHANGING.sub("#", repr([type(rule).__name__, *parts])).split()), 12)


@lru_cache(maxsize=512)
def digest_of(system: str) -> str:
    """A digest of a prompt without the parts that change from run to run, so that a prompt with
    today's date is the same prompt every day.
    """
    return _digest(" ".join(_CHANGING.sub("#", system).split()), 16)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()


def understood(rule: Rule) -> dict[str, str]:
    """How a rule was understood: `kind` and the fields of that kind. All values are short texts."""
    if isinstance(rule, Consent):
        return {"kind": "confirm"}
    if isinstance(rule, Permission):
        return {
            "kind": "can",
            "verb": rule.verb,
            "thing": rule.thing,
            "except": " ".join(sorted(rule.except_for))[:200],
        }
    given = {"kind": rule.allowed, "subject": rule.subject, "verb": rule.verb}
    given |= {"field": rule.field, "value": rule.value} if rule.allowed == "if" else {}
    return given | ({"days": str(rule.days)} if rule.days else {})


def in_words(given: dict[str, str]) -> str:
    """The meaning of `understood`, as a sentence."""
    kind, subject, verb, days = (
        given.get(name, "") for name in ("kind", "subject", "verb", "days")
    )
    anyway = f" (or within {days} {'day' if days == '1' else 'days'} of being made)" if days else ""
    if kind == "confirm":
        return "Every change needs a “yes” in the user's last message."
    if kind == "can":
        return f"The agent must not refuse to {verb} “{given.get('thing', '')}”."
    if kind == "if":
        field = given.get("field", "").strip()
        condition = (
            f"“{field}” is “{given['value']}”" if given.get("value") else f"“{field}” has a value"
        )
        return f"“{subject}” may be {verb} only if {condition}{anyway}."
    return f"“{subject}” can {'always' if kind == 'always' else 'never'} be {verb}{anyway}."


def in_use(run: Run, kind: type[Rule], stated: Sequence[Any]) -> list[Any]:
    """The rules of a kind that the prompt states or people wrote, without dismissed ones."""
    rules = [*stated, *(rule for rule in run.written_rules if isinstance(rule, kind))]
    return [
        rule
        for rule in rules
        if not run.rule_states or run.rule_states.get(key_of(rule)) != DISMISSED
    ]


def source_of(run: Run, rule: Rule) -> str:
    return "policy rule" if rule in run.written_rules else "system prompt"


def consents_asked(run: Run) -> list[Consent]:
    """The rules that require a confirmation before changes, without dismissed ones."""
    asked = consent(run.system)
    return in_use(run, Consent, [asked] if asked else [])


def refuses_permitted(run: Run) -> Iterator[tuple[int, Permission]]:
    """Answers that refuse a change which the system prompt permits, and which no call made
    either.
    """
    if not (stated := in_use(run, Permission, permissions(run.system))):
        return
    done = [f"{call.tool} {call.raw}".casefold() for call in run.changes_made]
    for index, text in run.answers:
        for sentence in re.split(r"(?<=[.!?])\s|\n", text[: words.LOOKED_AT]):
            if words.search(words.REFUSED, sentence) is None:
                continue
            said = sentence.casefold()
            for item in stated:
                if (
                    item.thing in said
                    and _changes(said, item)
                    and not any(item.thing in call for call in done)
                ):
                    yield index, item


def _changes(said: str, item: Permission) -> bool:
    group = words.SAME_ACTION.get(item.verb, frozenset((item.verb,)))
    named = words.content_words(said)
    asked = any(
        words.same_stem(word, verb) or word.startswith(("modif", "chang"))
        for word in named
        for verb in group
    )
    return asked and item.except_for.isdisjoint(named)


@dataclass(frozen=True, slots=True)
class Broken:
    """A change that a condition forbids, given the record that was looked up before it."""

    call: Call
    record: str
    condition: Condition
    text: str


def broken(run: Run) -> Iterator[Broken]:
    """Each change to a record together with each rule that forbids it."""
    stated = in_use(run, Condition, conditions(run.system))
    if not stated:
        return
    for call in run.changes_made:
        fitting = [
            item for item in stated if item.allowed != "always" and _is_of(item.verb, call.tool)
        ]
        for name, record in _records(run, call) if fitting else ():
            for item in fitting:
                if (why := _why_not(item, record, call)) and not (
                    item.days and _made_lately(run, record, item.days)
                ):
                    yield Broken(call, name, item, f"{call.tool} changed {name}, although {why}")


def always_allowed(run: Run) -> list[Condition]:
    """Conditions that always allow something for a record that was looked up."""
    stated = [
        item for item in in_use(run, Condition, conditions(run.system)) if item.allowed == "always"
    ]
    if not stated:
        return []
    records = [
        record for call in run.calls if call.worked and isinstance(record := run.record(call), dict)
    ]
    return [item for item in stated if any(_named(item.subject, record) for record in records)]


def refuses_allowed(run: Run) -> Iterator[tuple[int, Condition]]:
    """Answers that refuse what the system prompt always allows for a record that was looked up."""
    allowed = always_allowed(run)
    done = [call.tool for call in run.calls if call.worked]
    for index, text in run.answers if allowed else ():
        if words.search(words.REFUSED, text):
            for item in allowed:
                if says_verb(text, item.verb) and not allows(item.verb, done):
                    yield index, item


def _why_not(item: Condition, record: dict, call: Call) -> str:
    """Why a condition does not allow a change to a record; empty if it allows it or says nothing
    about it.
    """
    named = _named(item.subject, record)
    if not named and not is_a_kind(item.subject):
        return ""
    if item.allowed == "never":
        changed = any((call.args or {}).get(field, value) != value for field, value in named)
        return (
            ""
            if changed or not named
            else " and ".join(f"{field} is {value}" for field, value in named)
        )
    field = next(
        (name for name in reversed(item.field.replace("_", " ").split()) if name in record), None
    )
    if field is None or not isinstance(record[field], str | bool | int | None):
        return ""
    stored = str(record[field]).casefold().replace("_", " ")
    allowed = stored not in _NO if not item.value else stored == item.value.replace("_", " ")
    return "" if allowed else f"{field} is {record[field]}"


def _made_lately(run: Run, record: dict, days: int) -> bool:
    """Whether a record was created at most `days` days ago, by its own date field and the date in
    the system prompt.
    """
    made = (
        words.day_of(value)
        for name, value in record.items()
        if type(value) is str and _MADE & set(name_parts(name))
    )
    latest = max(filter(None, made), default=None)
    return run.today is not None and latest is not None and (run.today - latest).days <= days


def is_a_kind(subject: str) -> bool:
    """Whether a subject is only a kind of thing, such as “an order”."""
    return len(subject.split()) == 2 and subject.split()[0] in _KINDS


def _named(subject: str, record: dict) -> list[tuple[str, str]]:
    """The fields of a record whose values a subject names."""
    found = []
    for field, value in record.items():
        if isinstance(value, str) and 2 < len(value) < 30 and not is_identifier(value):
            at = re.search(
                rf"(?:(\w+) )?(?<!\w){re.escape(value.casefold().replace('_', ' '))}(?!\w)", subject
            )
            if at and (at[1] is None or at[1] in _BEFORE_A_VALUE):
                found.append((field, value))
    return found


def _is_of(verb: str, tool: str) -> bool:
    """Whether a tool does what a participle says: cancel_order for cancelled, update_order for
    modified.
    """
    own = frozenset().union(
        *(words.SAME_ACTION.get(part, frozenset((part,))) for part in name_parts(tool))
    )
    stems = (verb[:-2], verb[:-1], verb[:-3], f"{verb[:-3]}y")
    return any(stem in own for stem in stems)


def says_verb(text: str, verb: str) -> bool:
    """Whether a text contains a form of a participle: cancelled, cancel or cancellation."""
    return verb[: max(4, len(verb) - 4)] in text.casefold()


def allows(verb: str, tools: Sequence[str]) -> bool:
    return any(_is_of(verb, tool) for tool in tools)


def _records(run: Run, call: Call) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (identifier, record): for each identifier in the arguments of a change, the record last
    looked up by it.
    """
    for _, value in scalars(call.args):
        if type(value) is str and is_identifier(value):
            before = [other for other in run.looked_up.get(value, ()) if other.index < call.index]
            if before and isinstance(record := run.record(before[-1]), dict):
                yield value, record
