"""Tool definitions: OpenAI's chat format {type, function: {name, description, parameters}} and the
flat format of the Responses API {type, name, …}. Only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def function_of(tool: Any) -> dict | None:
    """{name, description, parameters} of a tool in either format; None if it has no name."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return (
        function if isinstance(function, dict) and isinstance(function.get("name"), str) else None
    )


def functions_of(tools: Any) -> Iterator[tuple[str, dict]]:
    """(name, function) of each tool that has a name."""
    for tool in tools if isinstance(tools, list) else []:
        if (function := function_of(tool)) is not None:
            yield function["name"], function


def schemas_of(tools: Any) -> dict[str, dict]:
    """Tool name → JSON Schema of its arguments; {} if it has none."""
    found = ((name, function.get("parameters")) for name, function in functions_of(tools))
    return {name: schema if isinstance(schema, dict) else {} for name, schema in found}


def chat_tool(tool: dict) -> dict:
    """A tool in the format of chat completions, from the Responses API, the older `functions` or
    Anthropic (`input_schema`).
    """
    if "function" in tool:
        return tool
    kept = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool
    }
    if "input_schema" in tool:
        kept["parameters"] = tool["input_schema"]
    return {"type": "function", "function": kept}


def flat_tool(tool: dict) -> dict:
    """A tool in the format of the Responses API."""
    function = tool.get("function", tool)
    return {
        "type": "function",
        "name": function.get("name", ""),
        "description": function.get("description", ""),
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        "strict": bool(function.get("strict")),
    }
