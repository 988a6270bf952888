"""JSON Schema 2020-12 for schemas and values that anybody may have written: no work without a bound.

`jsonschema` does the checking. What it leaves open is closed here: patterns are RE2, references stay inside the schema, and
every keyword that is looked at costs steps, so that a schema that unfolds (references to references) or a value that
makes it compare everything with everything ends in TooMuch instead of holding the process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from workers.lib.errors import SpecError
from workers.lib.patterns import PatternError, as_bytes, compiled

MAX_SCHEMA = 100_000  # characters of its JSON
MAX_DEPTH = 64
MAX_PATTERNS = 200
MAX_STEPS = 200_000  # of one check; some microseconds each
MAX_WORDS = 300  # characters of a message; the library quotes the whole value in it
REFERENCE_STEPS = 20  # a reference costs more than another keyword
UNSUPPORTED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef")  # the library runs patterns of its own there
_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = ("items", "not", "if", "then", "else", "contains", "additionalProperties", "propertyNames")


class TooMuch(Exception):
    """The check took more than MAX_STEPS; the message is a sentence."""

    def __init__(self) -> None:
        super().__init__("The value cannot be held against the schema: that takes too many steps. Make either smaller.")


@dataclass
class Budget:
    """What is left of the steps of one check. `tolerant`: what cannot be checked counts as fitting."""

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


def weight(value: Any) -> int:
    """How much there is to compare: its parts, and a step for every 1,000 characters."""
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
            budget.spend(1 + len(error.message) // 50)  # the library quotes the value in it, however long
            error.message = short(error.message)
            yield error

    return check


def short(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS // 2]} … {text[-MAX_WORDS // 2 :]}"


def _matches(pattern: str, text: str) -> bool | None:
    """Whether RE2 finds the pattern; None where it is none that may be run and the check is tolerant."""
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
    if isinstance(value, str) and validator.is_type(instance, "string") and _matches(value, instance) is False:
        yield ValidationError(f"{short(repr(instance))} does not match {value!r}")


def _pattern_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for pattern, inner in value.items() if validator.is_type(instance, "object") else ():
        for name, item in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(item, inner, path=name, schema_path=pattern)


def _additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object") or value is True:
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    others = [name for name in instance if name not in known]
    extra = [name for name in others if not any(_matches(pattern, name) is not False for pattern in patterns)]
    if value is not False:
        for name in extra:
            yield from validator.descend(instance[name], value, path=name)
    elif extra:
        named = ", ".join(map(repr, sorted(extra)))
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({named} {verb} unexpected)")


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """By a canonical text of each item, where the library compares each with each."""
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
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def _unsupported(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not _budget.get().tolerant:
        raise SpecError(f"The schema uses {_listed(UNSUPPORTED)}, which is not supported.")
    yield from ()


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
COSTS: dict[str, Callable[[Any, Any], int]] = {
    "enum": lambda value, instance: weight(value) + weight(instance),
    "const": lambda value, instance: weight(value) + weight(instance),
    "patternProperties": lambda value, instance: _size(value) * _size(instance),
    "additionalProperties": lambda value, instance: _size(instance),
    "$ref": lambda value, instance: REFERENCE_STEPS,
    "$dynamicRef": lambda value, instance: REFERENCE_STEPS,
}


def _class(rules: dict[str, Keyword]) -> type:
    keywords = Draft202012Validator.VALIDATORS | rules
    usual = lambda value, instance: _size(value) + _size(instance)  # noqa: E731
    return extend(
        Draft202012Validator, {name: _counted(rule, COSTS.get(name, usual)) for name, rule in keywords.items()}
    )


_Meta: Any = _class(OWN)  # the schema of schemas needs $dynamicRef, and it is known
_Bounded: Any = _class(OWN | dict.fromkeys(UNSUPPORTED, _unsupported))


class JsonSchema:
    """A schema, ready to check values. Raises SpecError naming what is wrong with it.

    `tolerant` is for schemas that came with data, such as those of a trajectory's tools: nothing in them is an error, and
    what cannot be checked (patterns that RE2 does not take, references that lead nowhere) is left out.
    """

    def __init__(self, schema: Any, where: str = "schema", *, tolerant: bool = False) -> None:
        self.where, self.tolerant = where, tolerant
        if not tolerant:
            _refuse(schema, where)
        plain = (
            {name: value for name, value in schema.items() if name != "$schema"} if isinstance(schema, dict) else schema
        )
        self._validator = _Bounded(plain, registry=Registry())

    def problems(
        self, value: Any, most: int = 5, budget: Budget | None = None
    ) -> list[tuple[tuple[str | int, ...], str]]:
        """The first `most` problems: the path of each in the value, and what is wrong. `budget` is one for several checks.

        Raises TooMuch, and SpecError for a fault of the schema that shows only in use.
        """
        found: list[tuple[tuple[str | int, ...], str]] = []
        token = _budget.set(budget or Budget(tolerant=self.tolerant))
        try:
            for error in self._validator.iter_errors(value):
                found.append((tuple(error.absolute_path), error.message))
                if len(found) == most:
                    break
        except RecursionError as error:
            raise TooMuch from error
        except Unresolvable as error:
            if not self.tolerant:
                raise SpecError(f"“{self.where}” refers to {error.ref!r}, which is not in it.") from error
        except (TooMuch, SpecError):
            raise
        except Exception as error:  # a schema of any shape makes the library raise anything
            if not self.tolerant:
                raise SpecError(
                    f"“{self.where}” cannot be used: {type(error).__name__}: {short(str(error))}"
                ) from error
        finally:
            _budget.reset(token)
        return found

    def problem(self, value: Any) -> str:
        """The first problem's message; "" where the value fits. Raises as `problems` does."""
        return next((said for _, said in self.problems(value, most=1)), "")


def refusal(schema: JsonSchema, arguments: Any) -> str:
    """What a tool answers to arguments that do not fit its schema, or that are too large to be looked at; else ""."""
    try:
        return schema.problem(arguments)
    except TooMuch as error:
        return str(error)


def _refuse(schema: Any, where: str) -> None:
    """Raises SpecError for what is no JSON Schema, and for what this module does not run."""
    if not isinstance(schema, dict | bool):
        raise SpecError(f"“{where}” must be a JSON Schema: an object, true or false.")
    if _depth(schema) > MAX_DEPTH:
        raise SpecError(f"“{where}” is nested deeper than {MAX_DEPTH} levels.")
    if (size := len(json.dumps(schema, default=str))) > MAX_SCHEMA:
        raise SpecError(f"“{where}” has {size:,} characters; {MAX_SCHEMA:,} are allowed.")
    token = _budget.set(Budget())
    try:
        error = next(_Meta(Draft202012Validator.META_SCHEMA).iter_errors(schema), None)
    except TooMuch as too_much:
        raise SpecError(f"“{where}” is too large to be checked.") from too_much
    finally:
        _budget.reset(token)
    if error is not None:
        raise SpecError(f"“{where}” is not a JSON Schema: {error.message[:200]}.")
    patterns = [pattern for part in _parts(schema) for pattern in _patterns_of(part, where)]
    if len(patterns) > MAX_PATTERNS:
        raise SpecError(f"“{where}” has {len(patterns):,} patterns; {MAX_PATTERNS} are allowed.")
    for pattern in patterns:
        try:
            compiled(pattern)
        except PatternError as error:
            raise SpecError(f"“{where}”: the pattern {pattern[:80]!r} {error}.") from error


def _patterns_of(part: dict, where: str) -> list[str]:
    """Of one schema in it. Raises SpecError for what this module does not run."""
    for name in UNSUPPORTED:
        if name in part:
            raise SpecError(f"“{where}” uses {name}, which is not supported. Use additionalProperties or items.")
    reference = part.get("$ref")
    if reference is not None and not str(reference).startswith("#"):
        raise SpecError(
            f"“{where}” refers to {str(reference)[:80]!r}. Only references inside it (#/$defs/…) are followed."
        )
    return [*filter(None, [part.get("pattern")]), *part.get("patternProperties", {})]


def _depth(value: Any) -> int:
    """Levels of lists and objects; counted no further than one more than MAX_DEPTH."""
    level, depth = [value], 0
    while depth <= MAX_DEPTH:
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            break
        depth += 1
    return depth


def _parts(schema: Any) -> Iterator[dict]:
    """The schema and all schemas in it."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for name in _MANY:
            waiting.extend(part[name].values() if isinstance(part.get(name), dict) else ())
        for name in _LISTS:
            waiting.extend(part.get(name) or ())
        waiting.extend(part[name] for name in _ONE if name in part)
