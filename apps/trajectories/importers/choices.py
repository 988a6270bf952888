"""What a person chooses from when they map a file: its columns, and the values of roles and
outcomes in its first records.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from apps.trajectories.importers.guess import Columns
from apps.trajectories.importers.mapping import Mapping, meaning_of, outcome_text
from apps.trajectories.importers.paths import Path, loose
from apps.trajectories.importers.records import Record
from apps.trajectories.importers.shapes import as_text, text
from apps.trajectories.importers.turns import role_of, speaker_of

MAX_COLUMNS = 300
MAX_VALUES = 40


def objects(head: list[Record], mapping: Mapping) -> list[dict]:
    """The records of a mapping among the first ones of the file."""
    found: list[Any] = [record for _, record in head if isinstance(record, dict)]
    if mapping.records:
        path = Path(mapping.records)
        inside = [path.get(record) for record in found]
        found = [item for items in inside if isinstance(items, list) for item in items]
    return [record for record in found if isinstance(record, dict)]


def fits(mapping: Mapping, head: list[Record], columns: list[str]) -> bool:
    """Whether each column and path of a mapping is in a file with these first records and this
    header.
    """
    records = objects(head, mapping)
    paths = [Path(text) for text in mapping.fields.values() if not text.startswith("=")]
    return bool(records) and all(
        path.text in columns or any(path.get(record) is not None for record in records)
        for path in paths
    )


def has_blanks(records: list[dict], mapping: Mapping) -> bool:
    """Whether the column that tells conversations apart is empty in some of these records, and not
    in the first.
    """
    path = Path(found) if (found := mapping.fields.get("conversation")) else None
    values = [path.get(record) in (None, "") for record in records] if path else []
    return any(values) and not values[0]


def columns_of(head: list[Record], mapping: Mapping, header: list[str]) -> list[dict[str, str]]:
    """[{name, example}] of the columns, also those in the header that are empty, and of what is
    nested in some of them.
    """
    values = {name: [] for name in header} | Columns(objects(head, mapping)).values
    return [
        {"name": name, "example": as_text(next(iter(said), ""))[:120]}
        for name, said in list(values.items())[:MAX_COLUMNS]
    ]


def values_of(head: list[Record], mapping: Mapping) -> dict[str, list[dict[str, Any]]]:
    """{roles, outcomes}: [{value, count, means}], those of the mapping that the first records do
    not have included.
    """
    records = objects(head, mapping)
    roles = Counter(said.lower() for record in records for said in _roles(record, mapping) if said)
    roles.update(dict.fromkeys(mapping.roles, 0))
    outcomes: Counter[str] = Counter()
    if path := mapping.fields.get("outcome"):
        outcomes.update(outcome_text(Path(path).get(record)) for record in records)
    outcomes.update(dict.fromkeys((*mapping.success, *mapping.failure, *mapping.unknown), 0))
    outcomes.pop("", None)
    plain = not mapping.success and not mapping.failure and mapping.threshold is None
    means = (
        {name: meaning_of(name) for name in outcomes if plain and name not in mapping.unknown}
        | dict.fromkeys(mapping.failure, "failure")
        | dict.fromkeys(mapping.success, "success")
    )
    return {
        "roles": [
            {"value": name, "count": count, "means": role_of(name, mapping.roles) or ""}
            for name, count in roles.most_common(MAX_VALUES)
        ],
        "outcomes": [
            {"value": name, "count": count, "means": means.get(name) or ""}
            for name, count in outcomes.most_common(MAX_VALUES)
        ],
    }


def _roles(record: dict, mapping: Mapping) -> list[str]:
    if mapping.layout == "messages" and (path := mapping.fields.get("role")):
        return [text(Path(path).get(record)).strip()]
    if mapping.layout != "conversation" or not (path := mapping.fields.get("messages")):
        return []
    talk = loose(Path(path).get(record))
    inner = Path(found) if (found := mapping.fields.get("role")) else None
    if isinstance(talk, dict):  # as `turns` reads it
        talk = next((found for found in talk.values() if isinstance(found, list) and found), [])
    turns = [item for item in talk if isinstance(item, dict)] if isinstance(talk, list) else []
    return [text(inner.get(item) if inner else speaker_of(item)).strip() for item in turns]
