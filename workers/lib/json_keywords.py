"""The keywords of JSON Schema, drafts 4 to 2020-12, each with a cost in steps.

`jsonschema` does the checking, with three changes: patterns use RE2, comparisons use canonical
texts, and collecting what was evaluated elsewhere counts against the same budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attrs import fields
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    ValidationError,
)
from jsonschema.validators import extend
from referencing.jsonschema import lookup_recursive_ref

from workers.lib.errors import SpecError
from workers.lib.json_formats import has_format
from workers.lib.patterns import PatternError, as_bytes, compiled

MAX_STEPS = 200_000  # per check; a few microseconds each
MAX_WORDS = 300  # characters of a message, in which the library quotes the whole value
REFERENCE_STEPS = 20  # a reference costs more than other keywords


class TooMuch(Exception):
    """The check took more than MAX_STEPS; the message is a sentence."""

    def __init__(self) -> None:
        super().__init__(
            "The value cannot be held against the schema: that takes too many steps. Make either"
            " smaller."
        )


@dataclass
class Budget:
    """The steps that one check has left. `tolerant`: anything that cannot be checked counts as
    valid.
    """

    left: int = MAX_STEPS
    tolerant: bool = False

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuch


_budget: ContextVar[Budget] = ContextVar("budget")
Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _digits(value: Any) -> int:
    """The cost of a division: one step per 20 digits or so."""
    return value.bit_length() // 64 if isinstance(value, int) else 0


def weight(value: Any) -> int:
    """The cost of comparing a value: one step for each of its parts and for every 1,000
    characters.
    """
    found, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        found += 1 + (len(item) // 1000 if isinstance(item, str) else 0)
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found


def _counted(keyword: Keyword, cost: Callable[[Any, Any], int]) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        budget = _budget.get()
        budget.spend(1 + cost(value, instance))
        for error in keyword(validator, value, instance, schema) or ():
            budget.spend(
                1 + len(error.message) // 50
            )  # the library quotes the value in it, however long
            error.message = short(error.message)
            yield error

    return check


def short(text: str) -> str:
    return (
        text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS // 2]} … {text[-MAX_WORDS // 2 :]}"
    )


def _matches(pattern: str, text: str) -> bool | None:
    """Whether RE2 finds the pattern; None if it cannot be run and the check is tolerant."""
    budget, raw = _budget.get(), as_bytes(text)
    try:
        program = compiled(pattern)
    except PatternError as error:
        if budget.tolerant:
            return None
        raise SpecError(f"The pattern {pattern[:80]!r} {error}.") from error
    budget.spend(len(raw) * program.programsize // 1000)
    return program.search(raw) is not None


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if (
        isinstance(value, str)
        and validator.is_type(instance, "string")
        and _matches(value, instance) is False
    ):
        yield ValidationError(f"{short(repr(instance))} does not match {value!r}")


def _pattern_properties(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    for pattern, inner in value.items() if validator.is_type(instance, "object") else ():
        for name, item in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(item, inner, path=name, schema_path=pattern)


def _additional(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object") or value is True:
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    others = [name for name in instance if name not in known]
    extra = [
        name
        for name in others
        if not any(_matches(pattern, name) is not False for pattern in patterns)
    ]
    if value is not False:
        for name in extra:
            yield from validator.descend(instance[name], value, path=name)
    elif extra:
        named = ", ".join(map(repr, sorted(extra)))
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({named} {verb} unexpected)")


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Compares canonical texts of the items; the library would compare each item with every
    other.
    """
    if value is True and validator.is_type(instance, "array"):
        _budget.get().spend(weight(instance))
        if len({_canonical(item) for item in instance}) < len(instance):
            yield ValidationError(f"{short(repr(instance))} has non-unique elements")


def _canonical(value: Any) -> str:
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    """1.0 is 1; true is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return (
        {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value
    )


def _multiple_of(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Computed exactly with the decimals as written: 0.07 is a multiple of 0.01. The library
    divides doubles.
    """
    if (
        validator.is_type(instance, "number")
        and (_exact(instance) / _exact(value)).denominator != 1
    ):
        yield ValidationError(f"{short(str(instance))} is not a multiple of {short(str(value))}")


def _exact(number: float) -> Fraction:
    return Fraction(number if isinstance(number, int) else repr(number))


def _format(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Asserted in every draft, with or without a vocabulary, since the author of a schema for
    answers means it that way.
    """
    if isinstance(instance, str) and isinstance(value, str) and not has_format(instance, value):
        yield ValidationError(f"{short(repr(instance))} is not a {value!r}")


def _unevaluated(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Properties or items that neither the schema nor any schema that it applies in place has
    evaluated.
    """
    if not isinstance(instance, dict | list):
        return
    names = instance.keys() if isinstance(instance, dict) else range(len(instance))
    left = [name for name in names if name not in _evaluated(validator, instance, schema, top=True)]
    for name in left if value is not True else ():
        if next(validator.descend(instance[name], value, path=name), None) is not None:
            kind = "Properties" if isinstance(instance, dict) else "Items"
            yield ValidationError(
                f"{kind} that nothing in the schema describes are not allowed ({name!r} was"
                " unexpected)"
            )
            return


def _unevaluated_properties(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    yield from (
        _unevaluated(validator, value, instance, schema) if isinstance(instance, dict) else ()
    )


def _unevaluated_items(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    yield from (
        _unevaluated(validator, value, instance, schema) if isinstance(instance, list) else ()
    )


def _evaluated(validator: Any, instance: Any, schema: Any, top: bool = False) -> set:
    """Names or indexes that a schema which is valid for the instance has evaluated, itself and
    through schemas that it applies in place.
    """
    _budget.get().spend(1 + _size(instance))
    if not isinstance(schema, dict):
        return set()
    found = set(
        _own_properties(instance, schema)
        if isinstance(instance, dict)
        else _own_items(validator, instance, schema)
    )
    name = "unevaluatedProperties" if isinstance(instance, dict) else "unevaluatedItems"
    if name in schema and not top:
        return set(instance) if isinstance(instance, dict) else set(range(len(instance)))
    for inner, fitting in _in_place(validator, instance, schema):
        if fitting.is_valid(instance):
            found |= _evaluated(fitting, instance, inner)
    return found


def _own_properties(instance: dict, schema: dict) -> Iterator[str]:
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in instance:
        if (
            "additionalProperties" in schema
            or name in known
            or any(_matches(pattern, name) for pattern in patterns)
        ):
            yield name


def _own_items(validator: Any, instance: list, schema: dict) -> Iterator[int]:
    first = schema.get(
        "prefixItems", schema.get("items") if isinstance(schema.get("items"), list) else []
    )
    rest = "additionalItems" if isinstance(schema.get("items"), list) else "items"
    contains = (
        validator.evolve(schema=schema["contains"])
        if "contains" in schema and _is_newest(validator)
        else None
    )
    for index, item in enumerate(instance):
        if (
            rest in schema
            or index < len(first)
            or (contains is not None and contains.is_valid(item))
        ):
            yield index


def _is_newest(validator: Any) -> bool:
    return (
        "$dynamicRef" in validator.VALIDATORS
    )  # in 2019-09, items matched by `contains` do not count as evaluated


def _in_place(validator: Any, instance: Any, schema: dict) -> Iterator[tuple[Any, Any]]:
    """Yield (schema, its validator) for each schema that a schema applies to the same instance."""
    resolver, known = validator._resolver, validator.VALIDATORS
    found = [
        resolver.lookup(schema[name])
        for name in ("$ref", "$dynamicRef")
        if name in schema and name in known
    ]
    found += (
        [lookup_recursive_ref(resolver)]
        if "$recursiveRef" in schema and "$recursiveRef" in known
        else []
    )
    for there in found:
        yield there.contents, validator.evolve(schema=there.contents, _resolver=there.resolver)
    parts = [part for name in ("allOf", "anyOf", "oneOf") for part in schema.get(name, ())]
    if isinstance(instance, dict):
        parts += [
            part for name, part in schema.get("dependentSchemas", {}).items() if name in instance
        ]
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        parts += [schema["if"]] if holds else []
        parts += [schema[name] for name in ["then" if holds else "else"] if name in schema]
    for part in parts:
        yield part, validator.evolve(schema=part)


OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
    "format": _format,
    "multipleOf": _multiple_of,
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}
COSTS: dict[str, Callable[[Any, Any], int]] = {
    "enum": lambda value, instance: weight(value) + weight(instance),
    "const": lambda value, instance: weight(value) + weight(instance),
    "patternProperties": lambda value, instance: _size(value) * _size(instance),
    "additionalProperties": lambda value, instance: _size(instance),
    "multipleOf": lambda value, instance: _digits(value) + _digits(instance),
    "$ref": lambda value, instance: REFERENCE_STEPS,
    "$dynamicRef": lambda value, instance: REFERENCE_STEPS,
    "$recursiveRef": lambda value, instance: REFERENCE_STEPS,
    "format": lambda value, instance: len(instance) // 20 if isinstance(instance, str) else 0,
}


def _evolve(self: Any, **changes: Any) -> Any:
    """The library's own method would pass a schema with `$schema` to a class without these
    keywords.
    """
    schema = changes.setdefault("schema", self.schema)
    named = schema.get("$schema") if isinstance(schema, dict) else None
    dialects = META if type(self) in META.values() else DIALECTS
    made = dialects.get(dialect_of(named), type(self)) if isinstance(named, str) else type(self)
    for field in fields(type(self)):
        if field.init and field.alias not in changes:
            changes[field.alias] = getattr(self, field.name)
    return made(**changes)


def dialect_of(name: str) -> str:
    return name.removesuffix("#").replace("https://", "http://", 1)


def _bounded(draft: Any, rules: dict[str, Keyword]) -> Any:
    keywords = draft.VALIDATORS | {
        name: rule for name, rule in rules.items() if name in draft.VALIDATORS
    }
    usual = lambda value, instance: _size(value) + _size(instance)  # noqa: E731
    made: Any = extend(
        draft, {name: _counted(rule, COSTS.get(name, usual)) for name, rule in keywords.items()}
    )
    made.evolve = _evolve
    return made


DRAFTS = (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
NEWEST = dialect_of(Draft202012Validator.META_SCHEMA["$schema"])
DIALECTS = {dialect_of(draft.META_SCHEMA["$schema"]): _bounded(draft, OWN) for draft in DRAFTS}
"""$schema → the bounded class of its draft."""

# For metaschemas: formats in schemas are checked where they are used, with their own errors.
_SILENT: dict[str, Keyword] = OWN | {"format": lambda validator, value, instance, schema: iter(())}
META = {dialect_of(draft.META_SCHEMA["$schema"]): _bounded(draft, _SILENT) for draft in DRAFTS}
