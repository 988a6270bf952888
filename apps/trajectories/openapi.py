"""The API's forms for OpenAPI, from the structs that rows are checked with: what is described is
what is checked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from apps.core.openapi import REFERENCE, reference
from apps.trajectories.schema import Feedback, Row


class Rejected(msgspec.Struct):
    index: int
    path: str
    error: str


class Warned(msgspec.Struct):
    index: int
    path: str
    warning: str


class Ingested(msgspec.Struct):
    """What became of what was sent. `held` rows are stored once Presidio has looked for names in
    them.
    """

    accepted: int
    duplicates: int
    updated: int
    held: int
    rejected: list[Rejected]
    warnings: list[Warned]


class Waiting(msgspec.Struct):
    """Feedback is kept until the trajectory arrives."""

    id: str
    waiting: bool


class Error(msgspec.Struct):
    """What is wrong: with a row (`path`, `error`), or with the request (`detail`)."""

    path: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    detail: str | msgspec.UnsetType = msgspec.UNSET


def components() -> dict[str, Any]:
    """OpenAPI's components.schemas."""
    _, found = msgspec.json.schema_components(
        [Row, Feedback, Ingested, Waiting, Error], ref_template=REFERENCE + "{name}"
    )
    page = {
        "type": "object",
        "properties": {
            "results": {"type": "array", "items": reference("Trajectory")},
            "next": {"type": ["string", "null"]},
            "previous": {"type": ["string", "null"]},
            "complete": {"type": "boolean", "description": "false: more match than were sorted"},
        },
        "required": ["results", "next", "previous", "complete"],
    }
    stored = {
        "type": "object",
        "required": ["id", "messages"],
        "description": "A Row as it was sent.",
    }
    return found | {"Trajectory": stored, "TrajectoryPage": page}


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's postprocessing hook."""
    result.setdefault("components", {}).setdefault("schemas", {}).update(components())
    return result
