"""Checks values against JSON Schemas for `workers.lib.json_schema`, within limits."""

from __future__ import annotations

from typing import Any

from workers.lib.helpers import serve
from workers.lib.json_schema import TooMuch, compiled, problems_of

MEMORY = 1 << 29  # bytes


def answer(request: dict) -> dict[str, Any]:
    """{"problems"}, None if the value is nested too deep; or {"error"}: why the schema cannot be
    used. Without a value the schema alone is checked.
    """
    try:
        validator = compiled(request["schema"], request["tolerant"])
    except ValueError as error:
        return {"error": str(error)}
    try:
        value = request["value"]
        return {"problems": problems_of(validator, value, request["most"]) if value else []}
    except TooMuch:
        return {"problems": None}


if __name__ == "__main__":
    serve(answer, MEMORY, {"schema": "{}", "tolerant": True, "value": "1", "most": 1})
