"""What runs were stored without, or what is odd about them: on a run's page, and of the latest
runs together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from apps.core.models import Project
from apps.trajectories import contents
from apps.trajectories.hints import not_captured
from apps.trajectories.models import Content, Trajectory

LATEST = 500  # runs that are looked into
SHOWN = 50
TAGS = {
    "missing-history": "Earlier messages are missing: they were not in what was sent.",
    "missing-answer": "An answer of the model is missing: its tokens were counted, but its text was"
    " not in what was sent.",
    "unread-messages": "Some objects among the messages do not say who speaks, so they were not"
    " read as messages. They are in the metadata.",
    "cut-off": "Some attributes broke off before their end: messages after that are missing.",
}
INDEX = re.compile(r"\[\d+\]")


class Notice(Struct):
    """What is missing or odd in so many of the latest runs; `path`: in which field of a row, and
    `tag`: what all such runs are tagged with, if anything.
    """

    text: str
    path: str = ""
    tag: str = ""
    runs: int = 0
    latest: UUID | None = None


class _Warned(Struct):
    """The start of a run's content, of which nothing else is read."""

    warnings: list[dict[str, str]] = []


def notices_of(row: Trajectory, metadata: dict[str, Any]) -> list[str]:
    """What is missing in what the run was read from."""
    if metadata.get("content_captured") is False:
        return [not_captured(metadata)]
    return [text for tag, text in TAGS.items() if tag in row.tags]


def by_kind(warnings: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The first warning of each kind as {path, text}, and how many `more` there are."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in warnings:
        kind = INDEX.sub("[]", one["path"]), one["warning"]
        shown = found.setdefault(kind, {"path": one["path"], "text": one["warning"], "more": -1})
        shown["more"] += 1
    return list(found.values())


def notices_of_latest(project: Project) -> list[Notice]:
    """The most frequent first."""
    rows = dict(project.trajectories.order_by("-pk").values_list("pk", "tags")[:LATEST])
    found: dict[tuple[str, str], Notice] = {}
    for pk, notices in _found(rows):
        for notice in {(one.path, one.text): one for one in notices}.values():
            kept = found.setdefault((notice.path, notice.text), notice)
            kept.runs += 1
            kept.latest = max(filter(None, (kept.latest, pk)))
    return sorted(found.values(), key=lambda notice: -notice.runs)[:SHOWN]


def _found(rows: dict[UUID, list[str]]) -> Iterator[tuple[UUID, list[Notice]]]:
    for pk, tags in rows.items():
        yield pk, [Notice(text, tag=tag) for tag, text in TAGS.items() if tag in tags]
    heads = Content.objects.filter(trajectory_id__among=list(rows), first=0)
    for pk, data in heads.values_list("trajectory_id", "data").iterator():
        head = msgspec.json.decode(contents.decompress(data), type=_Warned)
        yield (
            pk,
            [Notice(one["warning"], INDEX.sub("[]", one["path"])) for one in head.warnings],
        )
