"""The editor of a mapping as a form: its fields are `field.NAME`, its lists of values two columns of inputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from apps.trajectories.importers.mapping import BY_LAYOUT, NEEDED, Mapping
from apps.trajectories.importers.shapes import number

ROLES = (
    ("user", "User"),
    ("assistant", "Agent"),
    ("tool", "Tool result"),
    ("system", "System prompt"),
    ("skip", "Leave out"),
)
LAYOUTS = (
    ("conversation", "a whole conversation"),
    ("messages", "one message"),
    ("pairs", "a question with its answer"),
)
OURS = dict(ROLES)
USUAL = ("id", "outcome", "score", "started_at", "agent_name", "agent_version")  # shown even where nothing fits


@dataclass(frozen=True)
class Input:
    """A field in the editor. `is_column`: its value is one of the file's columns, else a path or a fixed text."""

    name: str
    label: str
    about: str
    value: str
    example: str
    needed: bool
    is_column: bool


def inputs(preview: dict[str, Any], top: Collection[str] = ()) -> dict[str, Any]:
    """{all, shown, more, chosen: of the fields in `more`, paths: those that are no column}.

    Shown are the needed, chosen and usual fields, or those named in `top`, which were shown before: no field moves while a mapping is edited.
    """
    mapping, examples = preview["mapping"], {column["name"]: column["example"] for column in preview["columns"]}
    fields, layout = mapping.get("fields", {}), mapping["layout"]
    found = [
        Input(field.name, field.label, field.about, value := fields.get(field.name, ""), examples.get(value, ""),
              field.name in NEEDED[layout], value in examples)
        for field in BY_LAYOUT[layout]
    ]  # fmt: skip
    shown = [
        field for field in found if field.needed or (field.name in top if top else field.value or field.name in USUAL)
    ]
    more = [field for field in found if field not in shown]
    return {
        "all": found,
        "shown": shown,
        "more": more,
        "chosen": [field for field in more if field.value],
        "paths": [field for field in found if field.value and not field.is_column],
    }


def read(given: QueryDict) -> Mapping:
    """The mapping that a person sees. What a form cannot say is left out; whether it can be used is checked later."""
    layout = given.get("layout", "")
    mapping = Mapping(layout if layout in BY_LAYOUT else "conversation")  # type: ignore[arg-type]
    for field in BY_LAYOUT[mapping.layout]:
        if path := given.get(f"path.{field.name}", "").strip() or given.get(f"field.{field.name}", "").strip():
            mapping.fields[field.name] = path
    mapping.records = given.get("records", "").strip()
    for value, means in zip(given.getlist("outcome_value"), given.getlist("outcome_means"), strict=False):
        if means in ("success", "failure"):
            getattr(mapping, means).append(value.strip().lower())
    for value, means in zip(given.getlist("role_value"), given.getlist("role_means"), strict=False):
        if means in OURS:
            mapping.roles[value.strip().lower()] = means  # type: ignore[assignment]
    mapping.threshold = number(given.get("threshold", "").strip() or None)
    mapping.totals = "last" if given.get("totals") == "last" else "sum"
    mapping.dates = dates if (dates := given.get("dates", "")) in ("day", "month") else ""  # type: ignore[assignment]
    mapping.keep_rest = "keep_rest" in given
    return mapping
