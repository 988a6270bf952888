"""Rules that a person writes: a sentence for people, and one of the forms in which rules are read
from prompts (`policy`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from apps.failures.rules.conditions import (
    LONGEST_SENTENCE,
    Condition,
    Consent,
    Permission,
    Rule,
    is_a_kind,
)

# What each form needs, in the order of the page; fields in OPTIONAL may be empty.
FORMS: dict[str, tuple[str, ...]] = {
    "if": ("subject", "verb", "field", "value", "days"),
    "never": ("subject", "verb", "days"),
    "always": ("subject", "verb"),
    "confirm": (),
    "can": ("verb", "thing", "except"),
}
OPTIONAL = frozenset(("value", "days", "except"))
LONGEST, MOST_DAYS = 80, 3650
CHANGES = (
    "modify",
    "change",
    "update",
    "edit",
    "upgrade",
    "cancel",
    "return",
    "exchange",
    "remove",
    "replace",
)
_PARTICIPLE = re.compile(r"[a-z]{3,20}ed")
_FIELD, _VALUE = re.compile(r"[a-z][a-z0-9_ ]{0,40}"), re.compile(r"[\w -]{1,30}")
_THING, _WORDS = re.compile(r"[a-z]{4,20}"), re.compile(r"[a-z ]{1,200}")


class Invalid(Exception):
    """What is wrong with a rule, by field."""

    def __init__(self, errors: dict[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = errors


def written_rule(sentence: str, given: Mapping[str, str]) -> Rule:
    """The rule of a sentence and its form: `kind` and the fields of `FORMS`. Raises Invalid."""
    kind, sentence = (
        given.get("kind", ""),
        " ".join("".join(filter(str.isprintable, " ".join(sentence.split()))).split()),
    )
    if kind not in FORMS:
        raise Invalid({"kind": f"The form must be one of {', '.join(FORMS)}."})
    fields = {name: " ".join(str(given.get(name) or "").casefold().split()) for name in FORMS[kind]}
    errors = {
        name: "Required for this kind of rule."
        for name, text in fields.items()
        if not text and name not in OPTIONAL
    }
    if not 0 < len(sentence) <= LONGEST_SENTENCE:
        errors["sentence"] = f"Write the rule in 1 to {LONGEST_SENTENCE} characters."
    errors |= {
        name: error
        for name, text in fields.items()
        if text and (error := _problem(kind, name, text))
    }
    if errors:
        raise Invalid(errors)
    return rule_of(sentence, fields | {"kind": kind})


def _problem(kind: str, name: str, text: str) -> str:
    """What is wrong with the text of a field; empty if nothing is."""
    if len(text) > LONGEST and name != "except":
        return f"Use at most {LONGEST} characters."
    if name == "verb" and kind == "can":
        return "" if text in CHANGES else f"Use one of {', '.join(CHANGES)}."
    if name == "verb":
        return (
            ""
            if _PARTICIPLE.fullmatch(text)
            else "Use one word that ends in -ed, such as “cancelled”."
        )
    if name == "subject" and kind != "if" and (" " not in text or is_a_kind(text)):
        return (
            "Name a value of the record, such as “delivered orders”: only records with that value"
            " are checked."
        )
    if name == "days":
        return (
            ""
            if text.isascii() and text.isdecimal() and int(text) <= MOST_DAYS
            else f"Use a whole number up to {MOST_DAYS}."
        )
    pattern, hint = {
        "field": (_FIELD, "Use the field's name in letters, such as “status”."),
        "value": (_VALUE, "Use letters, digits, spaces, - and _, at most 30."),
        "thing": (_THING, "Use one word of 4 to 20 letters, such as “address”."),
        "except": (_WORDS, "Use words of letters, separated by spaces."),
    }.get(name, (None, ""))
    return "" if pattern is None or pattern.fullmatch(text) else hint


def rule_of(sentence: str, fields: Mapping[str, str]) -> Rule:
    """The rule of a valid sentence and form; what `conditions.understood` says of it gives the same
    rule.
    """
    kind = fields["kind"]
    if kind == "confirm":
        return Consent(sentence)
    if kind == "can":
        except_for = frozenset(word for word in fields.get("except", "").split() if len(word) > 4)
        return Permission(sentence, fields["verb"], fields["thing"].removesuffix("s"), except_for)
    subject = fields["subject"] if " " in fields["subject"] else f"any {fields['subject']}"
    days = int(fields.get("days") or 0)
    return Condition(
        sentence,
        subject,
        fields["verb"],
        kind,
        fields.get("field", ""),
        fields.get("value", ""),
        days,
    )
