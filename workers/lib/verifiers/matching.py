"""Whether a value is one of the accepted ones, given its type, and as tolerant as the leaderboard's
rules. Pure.

The rules are those of the Berkeley Function Calling Leaderboard's AST checker: texts are compared
ignoring case, spaces and the punctuation `,./-_*^`, unless that would make different amounts or
days equal; an integer is accepted for a float, but not the reverse; "" among the accepted values
means that the argument may be left out.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workers.lib.checks import perfect_pairs
from workers.lib.messages import normalise
from workers.lib.verifiers.languages import CODE, schema_of, value_of
from workers.lib.verifiers.numbers import other_numbers
from workers.lib.verifiers.quantities import date_of, same_quantity

_DROPPED = str.maketrans(dict.fromkeys(" ,./-_*^") | {"'": '"'})
# Mail, web address or path: every character counts.
_ADDRESS = re.compile(r"\S@[^\s@]+\.\w|\w://|^(?:www\.|~?/\w|[A-Za-z]:\\)")
LONGEST_UNORDERED = 200  # items of a list that are compared with each other
TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "float": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "tuple": (list,),
    "object": (dict,),
    "dict": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class OneOf:
    """The accepted values of an argument; `optional`: it may be left out."""

    values: tuple
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How tolerant matching is. `unordered`: names of arguments whose lists have no order."""

    text: str = "loose"
    whole_floats: bool = False
    tolerance: float = 0.0
    dates: bool = False
    unordered: frozenset[str] = frozenset()


def loose(text: str) -> str:
    """The text without case, spaces and punctuation, as the leaderboard compares it; ' becomes
    ".
    """
    return text.translate(_DROPPED).lower()


TEXTS: dict[str, Callable[[str], Any]] = {"loose": loose, "spaces": normalise, "exact": str}


def one_of(values: Iterable[Any], nested: bool) -> OneOf:
    """From the list of accepted values; `nested`: objects in it contain lists of accepted values
    again (as in BFCL's files).
    """
    values = tuple(values)
    optional = any(
        value == "" or value is None for value in values if not isinstance(value, list | dict)
    )
    return OneOf(tuple(_nested(value) for value in values) if nested else values, optional)


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: one_of(items if isinstance(items, list) else [items], True)
            for name, items in value.items()
        }
    return [_nested(item) for item in value] if isinstance(value, list) else value


def same(given: Any, wanted: Any, schema: Any, rules: Rules, unordered: bool = False) -> bool:
    """Whether a value is the accepted one. `schema` is the JSON Schema of the argument, or anything
    else if unknown.
    """
    if isinstance(schema, dict) and isinstance(code := schema.get(CODE), dict):
        if not isinstance(given, str):
            return False
        given, schema = value_of(given, code), schema_of(code)
    if isinstance(wanted, OneOf):
        return any(same(given, value, schema, rules, unordered) for value in wanted.values)
    if isinstance(wanted, bool) or isinstance(given, bool) or wanted is None or given is None:
        return type(given) is type(wanted) and given == wanted
    if isinstance(wanted, str):
        return isinstance(given, str) and _same_text(given, wanted, schema, rules)
    if isinstance(wanted, int | float):
        return isinstance(given, int | float) and _same_number(given, wanted, schema, rules)
    if isinstance(wanted, list):
        return isinstance(given, list) and _same_list(given, wanted, schema, rules, unordered)
    return (
        isinstance(wanted, dict)
        and isinstance(given, dict)
        and _same_dict(given, wanted, schema, rules)
    )


def _type_of(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else None


def _same_text(given: str, wanted: str, schema: Any, rules: Rules) -> bool:
    if wanted == "":  # an optional argument given as "" is only right if it is a text
        return given == "" and _type_of(schema) in (None, "string", "any")
    standard = normalise if rules.text == "loose" and _ADDRESS.search(wanted) else TEXTS[rules.text]
    if standard(given) == standard(wanted) and not contradicts(given, wanted):
        return given != "" or standard is str
    return rules.dates and (day := date_of(given)) is not None and day == date_of(wanted)


def contradicts(given: str, wanted: str) -> bool:
    """Whether texts that are loosely equal are different amounts or days: -5 and 5, 3.5 km and 35
    km, 2024-1-12 and 2024-11-2.
    """
    if normalise(given) == normalise(wanted):
        return False
    same = same_quantity(given, wanted)
    return other_numbers(given, wanted) if same is None else not same


def _same_number(given: float, wanted: float, schema: Any, rules: Rules) -> bool:
    if isinstance(given, float) and isinstance(wanted, int) and not rules.whole_floats:
        kind = _type_of(schema)
        if kind not in ("number", "float"):
            return False
    if given == wanted:
        return True
    try:
        return rules.tolerance > 0 and math.isclose(given, wanted, rel_tol=rules.tolerance)
    except OverflowError:
        return False


def _same_list(given: list, wanted: list, schema: Any, rules: Rules, unordered: bool) -> bool:
    if len(given) != len(wanted):
        return False
    items = schema.get("items") if isinstance(schema, dict) else None
    if unordered and _same_items(given, wanted):
        return True
    if not unordered or len(given) > LONGEST_UNORDERED:
        return all(same(one, other, items, rules) for one, other in zip(given, wanted, strict=True))
    scores = [[same(one, other, items, rules) for other in wanted] for one in given]
    return len(perfect_pairs(scores)) == len(given)


def _same_items(given: list, wanted: list) -> bool:
    """Whether two lists have exactly the same items; False if the accepted list has
    alternatives.
    """
    try:
        one, other = (
            Counter(json.dumps(item, sort_keys=True) for item in items) for items in (given, wanted)
        )
    except TypeError:
        return False
    return one == other


def _same_dict(given: dict, wanted: dict, schema: Any, rules: Rules) -> bool:
    inner = schema.get("properties") if isinstance(schema, dict) else None
    inner = inner if isinstance(inner, dict) else {}
    if any(
        name not in wanted or not same(value, wanted[name], inner.get(name), rules)
        for name, value in given.items()
    ):
        return False
    return all(
        name in given or (isinstance(item, OneOf) and item.optional)
        for name, item in wanted.items()
    )


def fits(value: Any, schema: Any) -> bool:
    """Whether a value has the type in its schema; true if the schema names none."""
    kinds = TYPES.get(_type_of(schema) or "")
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
