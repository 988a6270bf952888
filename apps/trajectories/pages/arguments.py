"""Arguments of tool calls, held against the JSON schema that the tool was offered with. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from workers.lib.json_schema import Budget, JsonSchema, TooMuch, short

MAX_BYTES = 100_000  # larger arguments and schemas are not checked
MAX_PROBLEMS = 3


def offered(tools: Any) -> Iterator[tuple[str, dict]]:
    """(name, function) of each tool that has a name, in OpenAI's form or flat; what has another shape is left out."""
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            yield name, function


class Checker:
    """Says what is wrong with the arguments of calls of these tools (OpenAI's form, any shape tolerated).

    All its checks share one budget of steps: a page of many calls with hostile schemas is bounded as one of few is.
    """

    def __init__(self, tools: Any) -> None:
        self._budget = Budget(tolerant=True)
        self._schemas: dict[str, JsonSchema | None] = {}
        self.dangerous: set[str] = set()
        for name, function in offered(tools):
            self._schemas[name] = self._schema(function.get("parameters"))
            if function.get("x-dangerous") is True:
                self.dangerous.add(name)

    def _schema(self, schema: Any) -> JsonSchema | None:
        if not isinstance(schema, dict) or len(json.dumps(schema, default=str)) > MAX_BYTES:
            return None
        return JsonSchema(schema, tolerant=True)

    def problems(self, name: str, arguments: Any) -> list[str]:
        """At most MAX_PROBLEMS sentences; none where there is nothing to check against."""
        if not self._schemas:
            return []
        if name not in self._schemas:
            return ["This tool was not offered."]
        try:
            value = json.loads(arguments or "{}") if isinstance(arguments, str) else (arguments or {})
        except (ValueError, RecursionError) as error:
            return [f"The arguments are not JSON: {short(str(error))}"]
        schema = self._schemas[name]
        if schema is None or len(str(arguments)) > MAX_BYTES:
            return []
        try:
            return [_sentence(*problem) for problem in schema.problems(value, MAX_PROBLEMS, self._budget)]
        except TooMuch:
            return []


def _sentence(path: tuple[str | int, ...], said: str) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{where.lstrip('.')[:80]}: {short(said)}".lstrip(": ")
