"""What is taken out of a row before it is stored: personal data and secrets. Pure: no Django.

All rules look at the strings as they came; where hits overlap, the union goes and the earlier rule
names it. Patterns run on RE2, whose time is linear in the text whatever the pattern: a time limit
would leave the choice between storing unread text and losing the row. Offsets are of UTF-8 bytes
inside this module and of characters in a `Hit`.

A row goes two ways. Nearly all rows only meet one combined pre-check over their JSON, a superset of
the built-in rules. Otherwise the row's strings are laid end to end and each rule reads that text
once.
"""

from apps.trajectories.redaction.kinds import BUILTINS
from apps.trajectories.redaction.presidio import TooLong
from apps.trajectories.redaction.redactor import Redactor, strings, test
from apps.trajectories.redaction.rules import (
    ID,
    MAX_NAME,
    MAX_PATTERN,
    MAX_REPLACEMENT,
    Hit,
    Leaf,
    Rule,
    RuleError,
)
from apps.trajectories.redaction.walk import is_json

__all__ = [
    "BUILTINS",
    "ID",
    "MAX_NAME",
    "MAX_PATTERN",
    "MAX_REPLACEMENT",
    "Hit",
    "Leaf",
    "Redactor",
    "Rule",
    "RuleError",
    "TooLong",
    "is_json",
    "strings",
    "test",
]
