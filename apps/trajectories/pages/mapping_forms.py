"""The editor of a mapping as a form: its fields are `field.NAME`, its lists of values two columns
of inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from apps.trajectories.importers.mapping import BY_LAYOUT, NEEDED, NUMBERS, Mapping
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
FEW = 10  # messages that one conversation may well have
# in the select of a field: “use the path or constant below”, which no column can be named
BY_PATH = "="
GROUPING = ("conversation", "order")
USUAL = (
    "id",
    "outcome",
    "score",
    "started_at",
    "agent_name",
    "agent_version",
)  # shown even where nothing fits


@dataclass(frozen=True)
class Input:
    """A field in the editor. `is_column`: its value is one of the file's columns, else a path or a
    fixed text.
    """

    name: str
    label: str
    about: str
    value: str
    example: str
    needed: bool
    is_column: bool


def inputs(
    preview: dict[str, Any], top: Collection[str] = (), adding: tuple[str, str] = ("", "")
) -> dict[str, Any]:
    """{all, shown, more, chosen: of the fields in `more`, paths: those that are no column, adding:
    the field and the path of a new one, where one of them is still open, missing: whether a needed
    field has no column, grouped: whether rows are joined to conversations, one_conversation: all of
    them to one, blanks: whether the column of the conversation has empty cells, summed: whether
    rows of one conversation have numbers to be added up}.

    Shown are the needed, chosen and usual fields, or those named in `top`, which were shown before:
    no field moves while a mapping is edited.
    """
    mapping, examples = (
        preview["mapping"],
        {column["name"]: column["example"] for column in preview["columns"]},
    )
    fields, layout = mapping.get("fields", {}), mapping["layout"]
    found = [
        Input(
            field.name,
            field.label,
            field.about,
            value := fields.get(field.name, ""),
            examples.get(value, ""),
            field.name in NEEDED[layout],
            value in examples,
        )
        for field in BY_LAYOUT[layout]
    ]
    usual = USUAL + (GROUPING if layout == "messages" else ())
    shown = [
        field
        for field in found
        if field.needed or (field.name in top if top else field.value or field.name in usual)
    ]
    grouped = layout == "messages" or "conversation" in fields
    more = [field for field in found if field not in shown]
    return {
        "all": found,
        "shown": shown,
        "more": more,
        "chosen": [field for field in more if field.value],
        "grouped": grouped,
        "missing": any(field.needed and not field.value for field in found),
        "one_conversation": (
            layout == "messages"
            and "conversation" not in fields
            and preview.get("records", 0) > FEW
        ),
        "blanks": (
            grouped
            and "conversation" in fields
            and (preview.get("blanks") or mapping.get("fill_down"))
        ),
        "summed": bool(fields.keys() & set(NUMBERS)) and grouped,
        "adding": adding if not all(adding) else ("", ""),
        "paths": [field for field in found if field.value and not field.is_column],
    }


def read(given: QueryDict) -> Mapping:
    """The mapping that a person sees. What a form cannot say is left out; whether it can be used is
    checked later.
    """
    layout = given.get("layout", "")
    mapping = Mapping(layout if layout in BY_LAYOUT else "conversation")  # type: ignore[arg-type]
    for field in BY_LAYOUT[mapping.layout]:
        if path := _path(given, field.name):
            mapping.fields[field.name] = path
    name, path = new_path(given)
    if path and name in {field.name for field in BY_LAYOUT[mapping.layout]}:
        mapping.fields[name] = path
    mapping.records = given.get("records", "").strip()
    for value, means in zip(
        given.getlist("outcome_value"), given.getlist("outcome_means"), strict=False
    ):
        if means in ("success", "failure", "unknown"):
            getattr(mapping, means).append(value.strip().lower())
    for value, means in zip(given.getlist("role_value"), given.getlist("role_means"), strict=False):
        if means in OURS:
            mapping.roles[value.strip().lower()] = means  # type: ignore[assignment]
    mapping.threshold = number(given.get("threshold", "").strip() or None)
    mapping.totals = "last" if given.get("totals") == "last" else "sum"
    mapping.dates = dates if (dates := given.get("dates", "")) in ("day", "month") else ""  # type: ignore[assignment]
    mapping.keep_rest, mapping.fill_down = "keep_rest" in given, "fill_down" in given
    return mapping


def new_path(given: QueryDict) -> tuple[str, str]:
    """The field and the path or constant that are being added to the mapping."""
    return given.get("path_for", ""), given.get("path_new", "").strip()


def _path(given: QueryDict, name: str) -> str:
    """The column, path or constant of a field; "" for none.

    A field shown with a path (`by_path`) has two inputs that agreed: the one that was changed since
    decides.
    """
    column, path = given.get(f"field.{name}", "").strip(), given.get(f"path.{name}", "").strip()
    if column == BY_PATH:
        return path
    return column if name in given.getlist("by_path") else path or column
