"""Checks arguments of tool calls against the JSON schema with which the tool was offered. Pure."""

from __future__ import annotations

import json
from typing import Any

from workers.lib.json_schema import Budget, JsonSchema, TooMuch, short
from workers.lib.messages import functions_of

MAX_BYTES = 100_000  # larger arguments and schemas are not checked
MAX_PROBLEMS = 3


class Checker:
    """Finds what is wrong with the arguments of calls of these tools (OpenAI's format, any shape
    tolerated).

    All its checks share one budget of time: a page of many calls with hostile schemas is as limited
    as one of few.
    """

    def __init__(self, tools: Any) -> None:
        self._budget = Budget()
        self._schemas: dict[str, JsonSchema | None] = {}
        self.dangerous: set[str] = set()
        for name, function in functions_of(tools):
            self._schemas[name] = self._schema(function.get("parameters"))
            if function.get("x-dangerous") is True:
                self.dangerous.add(name)

    def _schema(self, schema: Any) -> JsonSchema | None:
        if not isinstance(schema, dict) or len(json.dumps(schema, default=str)) > MAX_BYTES:
            return None
        return JsonSchema(schema, tolerant=True)

    def problems(self, name: str, arguments: Any) -> list[str]:
        """At most MAX_PROBLEMS sentences; none if there is no schema."""
        if not self._schemas:
            return []
        if name not in self._schemas:
            return ["This tool was not offered."]
        try:
            value = (
                json.loads(arguments or "{}") if isinstance(arguments, str) else (arguments or {})
            )
        except (ValueError, RecursionError) as error:
            return [f"The arguments are not JSON: {short(str(error))}"]
        schema = self._schemas[name]
        if schema is None or len(str(arguments)) > MAX_BYTES:
            return []
        try:
            return [
                _sentence(*problem)
                for problem in schema.problems(value, MAX_PROBLEMS, self._budget)
            ]
        except TooMuch:
            return []


def _sentence(path: tuple[str | int, ...], said: str) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{where.lstrip('.')[:80]}: {short(said)}".lstrip(": ")
