"""A fast check whether arguments certainly match a tool's schema. Pure.

Nearly all calls do. If this check is not certain, `Checker` decides and finds the reason; a schema
with any keyword unknown here is never certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Fits = Callable[[Any], bool]
SAYS_NOTHING = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
    )
)
KNOWN = SAYS_NOTHING | {"type", "properties", "required", "additionalProperties", "items", "enum"}
CLASSES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
MAX_DEPTH = 12


def fits_of(schema: Any, depth: int = 0) -> Fits | None:
    """A test that is true only for values that JSON Schema 2020-12 allows; None for an unsupported
    schema.
    """
    if not isinstance(schema, dict) or not KNOWN.issuperset(schema) or depth > MAX_DEPTH:
        return None
    classes = _classes(schema.get("type"))
    inner = _properties(schema, depth)
    items = fits_of(schema["items"], depth + 1) if "items" in schema else _anything
    choices = _choices(schema)
    if classes is None or inner is None or items is None or choices is None:
        return None
    return _test(classes, choices, inner, items)


def _anything(value: Any) -> bool:
    return True


def _classes(kind: Any) -> frozenset[type] | None:
    """The exact classes of values of a type (True is not an integer); without a type, all that JSON
    has.
    """
    names = list(CLASSES) if kind is None else kind if isinstance(kind, list) else [kind]
    if not all(isinstance(name, str) and name in CLASSES for name in names):
        return None
    return frozenset(made for name in names for made in CLASSES[name])


def _choices(schema: dict) -> frozenset[str] | tuple[()] | None:
    """The texts of an enum; () if all values are allowed. Other enums are left to the checker: 1
    equals True in Python.
    """
    if "enum" not in schema:
        return ()
    given = schema["enum"]
    is_plain = isinstance(given, list) and given and all(type(value) is str for value in given)
    return frozenset(given) if is_plain else None


def _properties(schema: dict, depth: int) -> tuple[Mapping[str, Fits], frozenset[str], bool] | None:
    """(test by name, required names, whether others are allowed)"""
    given, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    if (
        not isinstance(given, dict)
        or not isinstance(required, list)
        or not isinstance(others, bool)
    ):
        return None
    tests = {name: fits_of(inner, depth + 1) for name, inner in given.items()}
    if None in tests.values() or not all(isinstance(name, str) for name in required):
        return None
    return tests, frozenset(required), others  # type: ignore[return-value]


def _test(
    classes: frozenset[type],
    choices: frozenset[str] | tuple[()],
    inner: tuple[Mapping[str, Fits], frozenset[str], bool],
    items: Fits,
) -> Fits:
    tests, required, others = inner

    def fits(value: Any) -> bool:
        kind = type(value)
        if kind not in classes or (choices and (kind is not str or value not in choices)):
            return False
        if kind is dict:
            if not required <= value.keys():
                return False
            return all(
                tests[name](item) if name in tests else others for name, item in value.items()
            )
        return all(map(items, value)) if kind is list else True

    return fits
