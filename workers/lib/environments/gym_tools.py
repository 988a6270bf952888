"""The tools of a NeMo Gym resources server, taken from its own description, so that tasks need not
list them. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from workers.lib.messages import chat_tool

ROUTES = {
    "seed_session",
    "verify",
    "aggregate_metrics",
    "close_session",
    "reverify_mode",
    "run",
    "health",
    "healthz",
}
HELD = "#/components/schemas/"
MOST_REFERENCES = 20  # followed in a row
MAX_TOOLS, MAX_SCHEMA = 500, 50_000  # characters of one tool's schema


def described_tools(about: Any, openapi: Any) -> list[dict]:
    """The tools listed by `GET /` (as Flywheel does), otherwise one per route that is not part of
    the protocol; [] if there is no description.
    """
    listed = about.get("tools") if isinstance(about, dict) else None
    if isinstance(listed, list) and all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in listed
    ):
        return [chat_tool(tool) for tool in listed[:MAX_TOOLS]]
    paths = openapi.get("paths") if isinstance(openapi, dict) else None
    components = openapi.get("components") if isinstance(openapi, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    found = [
        _of_route(path, methods, schemas)
        for path, methods in (paths.items() if isinstance(paths, dict) else ())
    ]
    return [tool for tool in found if tool][:MAX_TOOLS]


def _of_route(path: str, methods: Any, schemas: Any) -> dict | None:
    name = path.strip("/")
    post = methods.get("post") if isinstance(methods, dict) else None
    if not name or name in ROUTES or "/" in name or "{" in name or not isinstance(post, dict):
        return None
    body = post.get("requestBody")
    for part in ("content", "application/json", "schema"):
        body = body.get(part) if isinstance(body, dict) else None
    parameters = _without_components(body, schemas if isinstance(schemas, dict) else {})
    about = post.get("description") or post.get("summary") or ""
    return {
        "type": "function",
        "function": {"name": name, "description": str(about), "parameters": parameters},
    }


def _without_components(schema: Any, schemas: dict) -> dict:
    """The schema with the components of the document that it refers to moved into its own $defs."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    for _ in range(MOST_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith(HELD):
            break
        held = schemas.get(reference.removeprefix(HELD))
        schema = held if isinstance(held, dict) else {"type": "object"}
    else:
        return {"type": "object"}
    needed: dict[str, Any] = {}
    waiting = [json.dumps(schema)]
    while waiting:
        text = waiting.pop()
        for name, held in schemas.items():
            if name not in needed and f'"{HELD}{name}"' in text:
                needed[name] = held
                waiting.append(json.dumps(held))
    whole = schema | ({"$defs": needed} if needed else {})
    text = json.dumps(whole).replace(f'"{HELD}', '"#/$defs/')
    return json.loads(text) if len(text) <= MAX_SCHEMA else {"type": "object"}
