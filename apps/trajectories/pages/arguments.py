"""Arguments of tool calls, held against the JSON schema that the tool was offered with. Pure.

Schemas come from whoever sends trajectories: nothing they say may load an address, run a pattern of theirs (which can
take for ever) or unfold without end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from referencing import Registry

MAX_BYTES = 100_000  # larger arguments and schemas are not checked
MAX_REFERENCES = 500  # followed in one check
MAX_PROBLEMS = 3
MAX_WORDS = 200

_plain = Draft202012Validator.VALIDATORS


class Unbounded(Exception):
    """A schema that refers to itself over and over."""


def _ignored(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    return None


def _additional(validator: Any, value: Any, instance: Any, schema: dict) -> Iterator[Any]:
    if "patternProperties" not in schema:
        yield from _plain["additionalProperties"](validator, value, instance, schema) or ()


def _validator_class(budget: list[int]) -> type:
    """A validator whose references cost: the sum of them is `budget[0]`."""

    def reference(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        budget[0] -= 1
        if budget[0] < 0:
            raise Unbounded
        yield from _plain["$ref"](validator, value, instance, schema) or ()

    unsafe = ("pattern", "patternProperties", "uniqueItems", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef")
    rules: dict[str, Callable] = dict.fromkeys(unsafe, _ignored)
    return extend(Draft202012Validator, rules | {"$ref": reference, "additionalProperties": _additional})


def offered(tools: Any) -> Iterator[tuple[str, dict]]:
    """(name, function) of each tool that has a name, in OpenAI's form or flat; what has another shape is left out."""
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            yield name, function


class Checker:
    """Says what is wrong with the arguments of calls of these tools (OpenAI's form, any shape tolerated)."""

    def __init__(self, tools: Any) -> None:
        self._budget = [0]
        self._form = _validator_class(self._budget)
        self._schemas: dict[str, Any] = {}
        self.dangerous: set[str] = set()
        for name, function in offered(tools):
            self._schemas[name] = self._validator(function.get("parameters"))
            if function.get("x-dangerous") is True:
                self.dangerous.add(name)

    def _validator(self, schema: Any) -> Any:
        if not isinstance(schema, dict) or len(json.dumps(schema, default=str)) > MAX_BYTES:
            return None
        return self._form({key: value for key, value in schema.items() if key != "$schema"}, registry=Registry())

    def problems(self, name: str, arguments: Any) -> list[str]:
        """At most MAX_PROBLEMS sentences; none where there is nothing to check against."""
        if not self._schemas:
            return []
        if name not in self._schemas:
            return ["This tool was not offered."]
        try:
            value = json.loads(arguments or "{}") if isinstance(arguments, str) else (arguments or {})
        except (ValueError, RecursionError) as error:
            return [f"The arguments are not JSON: {str(error)[:MAX_WORDS]}"]
        validator = self._schemas[name]
        if validator is None or len(str(arguments)) > MAX_BYTES:
            return []
        self._budget[0] = MAX_REFERENCES
        found = []
        try:
            for error in validator.iter_errors(value):
                where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
                found.append(f"{where.lstrip('.')[:80]}: {_short(error.message)}".lstrip(": "))
                if len(found) == MAX_PROBLEMS:
                    break
        except Exception:  # a schema of any shape makes the library raise anything; then there is nothing to say
            return found
        return found


def _short(text: str) -> str:
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS // 2]} … {text[-MAX_WORDS // 2 :]}"
