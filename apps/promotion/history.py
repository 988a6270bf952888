"""The history of a channel in one order: moves, failed deployments, freezes, policies, archiving.
Read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.core.actor import FLYWHEEL
from apps.core.models import AuditEvent, JobState, object_name
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion

MODEL = ModelVersion._meta.label_lower
ARCHIVING = {
    "object.archived": ("archived", "Archived"),
    "object.unarchived": ("unarchived", "Unarchived"),
    "channel.restored": ("restored", "Served again"),
}


@dataclass(frozen=True)
class Entry:
    """`kind` is a badge, `who` and the names in `title` are those of that time; `row` is the
    object, for links.
    """

    at: datetime
    kind: str
    title: str
    who: str
    why: str = ""
    row: Any = None
    proof: list[dict] = field(default_factory=list)


def entries_of(channel: Channel) -> list[Entry]:
    """The newest first."""
    found = [
        _move(row)
        for row in channel.promotions.select_related(
            "by", "gate_report", "from_version", "to_version"
        )
    ]
    ended = channel.deployments.filter(
        state__in=(JobState.FAILED, JobState.CANCELLED)
    ).select_related("version")
    for row in ended:
        how = "was stopped" if row.state == JobState.CANCELLED else "failed"
        title = f"{row.name} {how}"
        found.append(
            Entry(
                row.finished_at,
                row.state,
                title,
                row.spec.get("by", ""),
                row.error or row.reason,
                row,
                row.outcomes,
            )
        )
    for row in channel.freezes.all():
        until = f" until {row.until:%Y-%m-%d %H:%M} UTC" if row.until else ""
        found.append(Entry(row.at, "frozen", f"Frozen{until}", row.by_name, row.reason))
        if row.lifted_at:
            found.append(Entry(row.lifted_at, "unfrozen", "Freeze lifted", row.lifted_by_name))
    for row in AuditEvent.objects.filter(
        about__contains=[object_name(channel)], action__in=ARCHIVING
    ):
        kind, title = ARCHIVING[row.action]
        if version := row.detail.get("name", "") if row.target_type == MODEL else "":
            title = f"{title} {version}"
        found.append(Entry(row.at, kind, title, row.actor_label, row.detail.get("reason", "")))
    for row in channel.policies.select_related("by"):
        who = row.by.get_username() if row.by else "command line"
        found.append(Entry(row.at, "policy", f"Policy version {row.version}", who, row.reason))
    return sorted(found, key=lambda entry: entry.at, reverse=True)


def _move(row: Any) -> Entry:
    title = f"{row.from_name} → {row.to_name}" if row.from_name else row.to_name
    return Entry(row.at, row.kind, title, row.by_name or FLYWHEEL, row.reason, row, row.proof)
