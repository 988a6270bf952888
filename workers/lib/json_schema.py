"""JSON Schema, drafts 4 to 2020-12 by `$schema`, for untrusted schemas and values: all work is
bounded.

`jsonschema` does the checking. Its gaps are closed here: patterns use RE2, references stay within
the schema, and every evaluated keyword costs steps. So a schema that unfolds (references to
references), or a value that makes it compare everything with everything, ends in TooMuch instead of
blocking the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from workers.lib.errors import SpecError
from workers.lib.json_keywords import (
    DIALECTS,
    META,
    NEWEST,
    Budget,
    TooMuch,
    _budget,
    dialect_of,
    short,
)
from workers.lib.patterns import PatternError, compiled

__all__ = ["Budget", "JsonSchema", "TooMuch", "refusal", "short"]

MAX_SCHEMA = 100_000  # characters as JSON
MAX_DEPTH = 64
MAX_PATTERNS = 200
META_STEPS = 500_000  # for checking the schema itself, once


class JsonSchema:
    """A schema, ready to check values. Raises SpecError naming what is wrong with it.

    `tolerant` is for schemas in imported data, such as those of a trajectory's tools: nothing in
    them is an error, and anything that cannot be checked (patterns that RE2 does not support,
    references that lead nowhere) is left out.
    """

    def __init__(self, schema: Any, where: str = "schema", *, tolerant: bool = False) -> None:
        self.where, self.tolerant = where, tolerant
        if not tolerant:
            _refuse(schema, where)
        self._validator = DIALECTS[_dialect(schema) or NEWEST](schema, registry=SPECIFICATIONS)

    def problems(
        self, value: Any, most: int = 5, budget: Budget | None = None
    ) -> list[tuple[tuple[str | int, ...], str]]:
        """The first `most` problems: the path of each in the value, and what is wrong. `budget` may
        be shared by several checks.

        Raises TooMuch, and SpecError for an error in the schema that only shows when it is used.
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
                raise SpecError(
                    f"“{self.where}” refers to {error.ref!r}, which is not in it."
                ) from error
        except (TooMuch, SpecError):
            raise
        except Exception as error:  # an invalid schema may make the library raise anything
            if not self.tolerant:
                raise SpecError(
                    f"“{self.where}” cannot be used: {type(error).__name__}: {short(str(error))}"
                ) from error
        finally:
            _budget.reset(token)
        return found

    def problem(self, value: Any) -> str:
        """The first problem's message; "" if the value is valid. Raises like `problems`."""
        return next((said for _, said in self.problems(value, most=1)), "")


def refusal(schema: JsonSchema, arguments: Any) -> str:
    """A tool's answer to arguments that do not match its schema, or that are too large to check;
    else "".
    """
    try:
        return schema.problem(arguments)
    except TooMuch as error:
        return str(error)


def _dialect(schema: Any) -> str | None:
    """The dialect that a schema names, by default the newest; None for an unknown one."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    found = NEWEST if named is None else dialect_of(named) if isinstance(named, str) else ""
    return found if found in DIALECTS else None


def _refuse(schema: Any, where: str) -> None:
    """Raises SpecError for what is not a JSON Schema, and for features that are not supported
    here.
    """
    if not isinstance(schema, dict | bool):
        raise SpecError(f"“{where}” must be a JSON Schema: an object, true or false.")
    if _depth(schema) > MAX_DEPTH:
        raise SpecError(f"“{where}” is nested deeper than {MAX_DEPTH} levels.")
    if (size := len(json.dumps(schema, default=str))) > MAX_SCHEMA:
        raise SpecError(f"“{where}” has {size:,} characters; {MAX_SCHEMA:,} are allowed.")
    dialect = _dialect(schema)
    if dialect is None:
        raise SpecError(f"“{where}.$schema” is not known. Known: {', '.join(DIALECTS)}.")
    meta = META[dialect]
    token = _budget.set(Budget(META_STEPS))
    try:
        error = next(meta(meta.META_SCHEMA, registry=SPECIFICATIONS).iter_errors(schema), None)
    except TooMuch as too_much:
        raise SpecError(f"“{where}” is too large to be checked.") from too_much
    finally:
        _budget.reset(token)
    if error is not None:
        raise SpecError(f"“{where}” is not a JSON Schema: {error.message[:200]}.")
    patterns = list(_patterns(schema, dialect, where))
    if len(patterns) > MAX_PATTERNS:
        raise SpecError(f"“{where}” has {len(patterns):,} patterns; {MAX_PATTERNS} are allowed.")
    for pattern in patterns:
        try:
            compiled(pattern)
        except PatternError as error:
            raise SpecError(f"“{where}”: the pattern {pattern[:80]!r} {error}.") from error


def _patterns(schema: Any, dialect: str, where: str) -> Iterator[str]:
    """The patterns of all schemas in it; references are followed to check them. Raises SpecError
    for a reference out of the schema.
    """
    try:
        whole = specification_with(META[dialect].META_SCHEMA["$schema"]).create_resource(schema)
        registry: Registry = SPECIFICATIONS.with_resource(whole.id() or "", whole).crawl()
        waiting = [(whole, registry.resolver_with_root(whole))]
        while waiting:
            part, resolver = waiting.pop()
            if not isinstance(part.contents, dict):
                continue
            for name in ("$ref", "$dynamicRef"):
                if isinstance(reference := part.contents.get(name), str):
                    resolver.lookup(reference)
            yield from filter(None, [part.contents.get("pattern")])
            yield from part.contents.get("patternProperties", {})
            waiting += [(inner, resolver.in_subresource(inner)) for inner in part.subresources()]
    except Unresolvable as error:
        raise SpecError(
            f"“{where}” refers to {str(error.ref)[:80]!r}, which is not in it. Only references"
            " inside it (#/$defs/…) are followed."
        ) from error
    except SpecError:
        raise
    except Exception as error:  # an invalid schema may make the library raise anything
        raise SpecError(
            f"“{where}” cannot be used: {type(error).__name__}: {short(str(error))}"
        ) from error


def _depth(value: Any) -> int:
    """Nesting depth of lists and objects, counted up to MAX_DEPTH + 1."""
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
