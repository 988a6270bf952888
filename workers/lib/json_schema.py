"""JSON Schema, drafts 4 to 2020-12 by `$schema`, for untrusted schemas and values: all work is
bounded.

`jsonschema-rs` does the checking. It cannot be interrupted, and references and patterns can make a
small schema endless; so schemas with these are checked in a helper process
(`workers.json_schema`), which the kernel ends. Others look at each part of a value about once for
each of their own parts, so where both are small, they are checked here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs

from workers.lib.errors import SpecError
from workers.lib.helpers import TooMuch as ExceedsLimits
from workers.lib.helpers import helpers_of

CPU_SECONDS, PROCESSES = 0.5, 2
MAX_SCHEMA = 100_000  # characters as JSON
MAX_DEPTH = 64
MAX_WORDS = 300  # characters of a message, in which the library quotes the whole value
MAX_REPAIRS = 50
SMALL = 5_000_000  # characters of a schema × characters of a value
_ENDLESS = re.compile(r'"(?:\$ref|\$dynamicRef|\$recursiveRef|pattern|patternProperties)":|"regex"')
Problem = tuple[tuple[str | int, ...], str]  # the path in the value, and what is wrong


class TooMuch(Exception):
    """The check takes too long; the message is a sentence."""

    def __init__(self) -> None:
        super().__init__(
            "The value cannot be checked against the schema: that takes too long. Make either"
            " smaller."
        )


@dataclass
class Budget:
    """The processor time that several checks have left together, in seconds."""

    left: float = CPU_SECONDS


class JsonSchema:
    """A schema, ready to check values. Raises SpecError naming what is wrong with it.

    `tolerant` is for schemas in imported data, such as those of a trajectory's tools: nothing in
    them is an error, and keywords that cannot be used are left out.
    """

    def __init__(self, schema: Any, where: str = "schema", *, tolerant: bool = False) -> None:
        self.where, self.tolerant = where, tolerant
        self._text = json.dumps(schema, default=str)
        if not tolerant:
            _refuse(schema, self._text, where)
        self._validator = None
        try:
            if not _ENDLESS.search(self._text) and len(self._text) <= MAX_SCHEMA:
                self._validator = compiled(self._text, tolerant)
            elif not tolerant:
                self._ask(None, 1, Budget())
        except ValueError as error:
            if not tolerant:
                raise SpecError(f"“{where}” is not a JSON Schema: {error}.") from error
        except TooMuch as error:
            raise SpecError(f"“{where}” takes too long to be checked.") from error

    def problems(self, value: Any, most: int = 5, budget: Budget | None = None) -> list[Problem]:
        """The first `most` problems. `budget` may be shared by several checks. Raises TooMuch."""
        try:
            text = json.dumps(value, ensure_ascii=False)
        except RecursionError as error:
            raise TooMuch from error
        if self._validator is not None and len(self._text) * len(text) <= SMALL:
            return problems_of(self._validator, text, most)
        try:
            return self._ask(text, most, budget or Budget())
        except ValueError:  # only a tolerant schema, since others were compiled before
            return []

    def problem(self, value: Any) -> str:
        """The first problem's message; "" if the value is valid. Raises like `problems`."""
        return next((message for _, message in self.problems(value, most=1)), "")

    def _ask(self, value: str | None, most: int, budget: Budget) -> list[Problem]:
        """Raises TooMuch, and ValueError for a schema that cannot be used."""
        request = {"schema": self._text, "tolerant": self.tolerant, "value": value, "most": most}
        helpers = helpers_of("workers.json_schema", PROCESSES, CPU_SECONDS)
        try:
            if budget.left <= 0:
                raise TooMuch
            answer = helpers.ask(request, budget.left)
        except ExceedsLimits as error:
            budget.left = 0
            raise TooMuch from error
        budget.left = answer["left"]
        if "error" in answer:
            raise ValueError(answer["error"])
        if answer["problems"] is None:
            raise TooMuch
        return [(tuple(path), message) for path, message in answer["problems"]]


def refusal(schema: JsonSchema, arguments: Any) -> str:
    """A tool's answer to arguments that do not match its schema, or that are too large to check;
    else "".
    """
    try:
        return schema.problem(arguments)
    except TooMuch as error:
        return str(error)


@lru_cache(256)
def compiled(text: str, tolerant: bool) -> jsonschema_rs.Validator:
    """Formats are asserted in every draft, since the author of a schema for answers means it that
    way. Raises ValueError for a schema that cannot be used; a tolerant one loses those of its
    keywords that cannot.
    """
    schema = json.loads(text)
    for _ in range(MAX_REPAIRS if tolerant else 1):
        try:
            return jsonschema_rs.validator_for(
                schema,
                validate_formats=True,
                retriever=(lambda address: True) if tolerant else None,
                offline=not tolerant,
            )
        except jsonschema_rs.ValidationError as error:
            reason = _reason(error)
            if not tolerant or not _repaired(schema, error):
                break
    raise ValueError(reason)


def problems_of(validator: jsonschema_rs.Validator, value: str, most: int) -> list[Problem]:
    """What is wrong with a value, given as JSON. Raises TooMuch for one that is nested too deep."""
    try:
        parsed = json.loads(value.encode("utf-8", "replace"))  # without halves of surrogate pairs
        if validator.is_valid(parsed):
            return []
        errors = list(islice(validator.iter_errors(parsed), most))
    except (ValueError, RecursionError) as error:
        raise TooMuch from error
    return [(tuple(error.instance_path), _message(error)) for error in errors]


def _message(error: jsonschema_rs.ValidationError) -> str:
    """The library's, but for a choice: it names only two, and an agent needs all."""
    kind = error.kind
    if not isinstance(kind, jsonschema_rs.ValidationErrorKind.Enum):
        return short(error.message)
    given, options = (json.dumps(it, ensure_ascii=False) for it in (error.instance, kind.options))
    return f"{short(given)} is not one of {short(options)}"


def short(text: str) -> str:
    return (
        text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS // 2]} … {text[-MAX_WORDS // 2 :]}"
    )


def _reason(error: jsonschema_rs.ValidationError) -> str:
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return f"{short(error.message)} (only references inside it, #/$defs/…, are followed)"
    return short(error.message)


def _repaired(schema: Any, error: jsonschema_rs.ValidationError) -> bool:
    """Takes out the keyword that cannot be used, or an unknown `$schema`."""
    *path, keyword = error.instance_path or ["$schema"]
    for part in path:
        schema = schema[part]
    removable = isinstance(schema, dict) and keyword in schema
    if removable:
        del schema[keyword]
    return removable


def _refuse(schema: Any, text: str, where: str) -> None:
    if not isinstance(schema, dict | bool):
        raise SpecError(f"“{where}” must be a JSON Schema: an object, true or false.")
    if _depth(schema) > MAX_DEPTH:
        raise SpecError(f"“{where}” is nested deeper than {MAX_DEPTH} levels.")
    if len(text) > MAX_SCHEMA:
        raise SpecError(f"“{where}” has {len(text):,} characters; {MAX_SCHEMA:,} are allowed.")


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
