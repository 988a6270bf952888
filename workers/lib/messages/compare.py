"""Whether two calls are the same call. Only the standard library.

Rewards, failures, near-duplicates and recorded results all use this comparison: the same tool by
its exact name, and equivalent arguments. Texts are compared ignoring case, with runs of spaces
collapsed and accents composed; 4 equals 4.0; true is not 1; the order of names does not matter,
that of lists does. Integers are compared exactly: two ids above 2**53 that a double cannot tell
apart are different.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable
from typing import Any

from workers.lib.messages.calls import ToolCall


def normalise(value: Any) -> Hashable:
    """A value that is equal for equivalent JSON values, even when written as JSON text."""
    if isinstance(value, str):
        return ("text", _plain(value))
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, int | float):
        return ("number", int(value) if isinstance(value, float) and value.is_integer() else value)
    if isinstance(value, list):
        return ("list", tuple([normalise(item) for item in value]))
    if isinstance(value, dict):
        return ("object", tuple(sorted([(key, normalise(item)) for key, item in value.items()])))
    return ("other", repr(value))


def _plain(text: str) -> str:
    return " ".join(
        (text if text.isascii() else unicodedata.normalize("NFC", text)).split()
    ).casefold()


def same_value(one: Any, other: Any) -> bool:
    """Whether two JSON values are equivalent."""
    if (
        type(one) is type(other)
        and isinstance(one, str | int | float)
        and (one == other or not isinstance(one, str))
    ):
        return bool(
            one == other
        )  # fast in most cases; only two different texts may still be equal when normalised
    if isinstance(one, str) and isinstance(other, str):
        return _plain(one) == _plain(other)
    return normalise(one) == normalise(other)


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, with texts compared exactly: 5 is 5.0, true is not 1.
    Values must not be nested deeper than `read_json` allows.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same_json(item, other[name]) for name, item in one.items()
        )
    return bool(one == other)


def call_key(tool: str, args: dict | None) -> Hashable:
    """Equal for calls that are the same."""
    return tool, normalise(args or {})


def same_call(one: ToolCall, other: ToolCall) -> bool:
    """Calls that cannot be parsed are the same if their texts are."""
    if one.args is None or other.args is None:
        return (
            one.tool == other.tool and one.args is other.args and one.arguments == other.arguments
        )
    return call_key(one.tool, one.args) == call_key(other.tool, other.args)


def argument_share(args: dict, right: dict, accept: dict | None = None) -> float:
    """Share of arguments that are right, in [0, 1]: missing and unexpected ones both count as
    wrong.

    `accept` lists all correct values of an argument; None or "" among them means that it may be
    left out.
    """
    choices = {
        name: (values, any(value is None or value == "" for value in values))
        for name, values in (accept or {}).items()
    }
    choices |= {name: ([value], False) for name, value in right.items() if name not in choices}
    names = args.keys() | {name for name, (_, optional) in choices.items() if not optional}
    if not names:
        return 1.0
    correct = sum(
        name in args
        and name in choices
        and normalise(args[name]) in map(normalise, choices[name][0])
        for name in names
    )
    return correct / len(names)
