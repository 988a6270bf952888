"""The failures most similar to one, from a limited number of candidates: reads only the ends of
indexes, no conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import F, Q
from django.db.models.fields.json import KeyTransform

from apps.failures.models import Failure, FailureState
from apps.failures.similar.scoring import Alike, Sketch, ranked

SHOWN = 6
WINDOW = 30  # candidates per state: the newest, and those just before and just after it in time
STATES = (FailureState.OPEN, FailureState.CONFIRMED)


def similar_to(failure: Failure, count: int = SHOWN) -> list[tuple[Failure, Alike]]:
    """Standing failures of the same cluster, then of the same mode; within each the most similar
    first.

    At most 6 · WINDOW of each are compared. Needs the failure's trajectory.
    """
    groups = [{"project": failure.project_id, "mode": failure.mode_id}]
    if failure.cluster_id:
        groups.insert(0, {"cluster": failure.cluster_id})
    found: dict[int, Alike] = {}
    for group in groups:
        if len(found) < count:
            rows = [row for row in _candidates(failure, group) if row["number"] not in found]
            ordered = ranked(
                _sketch(_row(failure)), [_sketch(row) for row in rows], count - len(found)
            )
            found |= {alike.id: alike for alike in ordered}
    shown = Failure.objects.select_related(
        "mode", "trajectory", "reserved_by", "assigned_to"
    ).in_bulk(found)
    return [(shown[pk], alike) for pk, alike in found.items() if pk in shown]


FIELDS = {
    "number": F("pk"),
    "finding": KeyTransform("0", "evidence"),
    "tools": F("trajectory__tool_names"),
    "preview": F("trajectory__preview"),
}


def _candidates(failure: Failure, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Input for `_sketch`, newest first."""
    pks = _near(failure, group)
    return list(Failure.objects.filter(pk__in=pks).order_by("-trajectory_id").values(**FIELDS))


def _near(failure: Failure, group: Mapping[str, Any]) -> set[int]:
    """The newest of the group, and its neighbours in time: failures at the same time are often
    similar.
    """
    rows = Failure.objects.filter(**group).exclude(pk=failure.pk)
    here = failure.trajectory_id
    windows = [(Q(), "-"), (Q(trajectory_id__lt=here), "-"), (Q(trajectory_id__gt=here), "")]
    parts = [
        rows.filter(where, state=state)
        .order_by(f"{way}trajectory_id")
        .values_list("pk", flat=True)[:WINDOW]
        for where, way in windows
        for state in STATES
    ]
    return set(parts[0].union(*parts[1:], all=True))


def _row(failure: Failure) -> dict[str, Any]:
    run = failure.trajectory
    finding = failure.evidence[0] if failure.evidence else None
    return {
        "number": failure.pk,
        "finding": finding,
        "tools": run.tool_names,
        "preview": run.preview,
    }


def _sketch(row: Mapping[str, Any]) -> Sketch:
    return Sketch.of(
        row["number"], tools=row["tools"], evidence=row["finding"], request=row["preview"]
    )
