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
from apps.trajectories.importers.shapes import as_text, first, text
from apps.trajectories.importers.turns import ANY, CONTENT_KEYS, role_of, role_text, speaker_of

MAX_COLUMNS = 300
MAX_VALUES = 40
MANY_NAMES = 12  # of speakers, from which one choice is offered for all others
Turn = tuple[str, str]


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
    """{roles: [{value, count, means, example: what it says first}], outcomes: [{value, count,
    means}]}, those of the mapping that the first records do
    not have included.
    """
    records = objects(head, mapping)
    turns = [turn for record in records for turn in _turns(record, mapping) if turn[0]]
    roles = Counter(name for name, _ in turns)
    said = {name: words for name, words in reversed(turns) if words}
    roles.update(dict.fromkeys(mapping.roles, 0))
    unknown = [name for name in roles if role_of(name, mapping.roles) is None]
    if len(unknown) > MANY_NAMES:
        roles[ANY] = sum(roles[name] for name in unknown)
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
            {
                "value": name,
                "count": count,
                "means": role_of(name, mapping.roles) or "",
                "example": said.get(name, ""),
            }
            for name, count in roles.most_common(MAX_VALUES)
        ],
        "outcomes": [
            {"value": name, "count": count, "means": means.get(name) or ""}
            for name, count in outcomes.most_common(MAX_VALUES)
        ],
    }


def who_asks(head: list[Record], mapping: Mapping) -> str:
    """Why a guess of who speaks is not to be trusted: in most of the first conversations nobody
    asks, or in none does anybody answer. "" if it is, or if roles are still to be mapped.
    """
    if mapping.layout == "pairs" or "question" in mapping.fields or "people" in mapping.fields:
        return ""
    talks = [talk for talk in _talks(objects(head, mapping), mapping) if talk]
    names = {name for talk in talks for name, _ in talk}
    if not names or any(role_of(name, mapping.roles) is None for name in names if name):
        return ""
    sides = [{role_of(name, mapping.roles) for name, _ in talk} for talk in talks]
    silent = [side for side in sides if "user" not in side]
    if (
        all(side == {"user"} for side in sides)
        and len(names) > 1
        and "answer" not in mapping.fields
    ):
        problem = "nobody answers"
    elif len(silent) * 2 > len(talks):
        problem = f"nobody asks in {len(silent)} of {len(talks)} conversations"
    else:
        return ""
    name, words = next((turn for talk in talks for turn in talk if all(turn)), ("", ""))
    return (
        f"Choose who the customer is and who the agent is: {problem}. For example, “{name}” says"
        f" “{words}”."
    )


def _talks(records: list[dict], mapping: Mapping) -> list[list[Turn]]:
    """The turns of each conversation."""
    if mapping.layout == "conversation":
        return [_turns(record, mapping) for record in records]
    path = Path(found) if (found := mapping.fields.get("conversation")) else None
    talks: dict[str, list[Turn]] = {}
    for record in records:
        name = as_text(path.get(record)) if path else ""
        talks.setdefault(name, []).extend(_turns(record, mapping))
    return list(talks.values())


def _turns(record: dict, mapping: Mapping) -> list[Turn]:
    """Who speaks, as the roles of a mapping have it, and the beginning of what is said."""
    inner, content = (
        Path(found) if (found := mapping.fields.get(name)) else None for name in ("role", "content")
    )
    if mapping.layout == "messages" and inner:
        turns = [record]
    elif mapping.layout == "conversation" and (path := mapping.fields.get("messages")):
        talk = loose(Path(path).get(record))
        if isinstance(talk, dict):  # as `turns` reads it
            talk = next((found for found in talk.values() if isinstance(found, list) and found), [])
        turns = [item for item in talk if isinstance(item, dict)] if isinstance(talk, list) else []
    else:
        turns = []
    return [
        (
            role_text(inner.get(item) if inner else speaker_of(item)),
            text(content.get(item) if content else first(item, *CONTENT_KEYS))[:80],
        )
        for item in turns
    ]
