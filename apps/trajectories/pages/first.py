"""The page that waits for a project's first trajectory: how to send one, then what arrived and what
is missing in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.http import progress
from apps.core.models import Project
from apps.core.scopes import Scope
from apps.trajectories import contents
from apps.trajectories.hints import hints_of
from apps.trajectories.instrumentation import scope_of
from apps.trajectories.models import (
    Arrival,
    Content,
    Outcome,
    Trace,
    Trajectory,
    UploadedTrajectory,
)
from apps.trajectories.pages.columns import cost

KEYS = 5  # that may send and were used last
LATEST = 50  # runs, among which one of each instrumentation is looked for
SOURCES = 6


@dataclass(frozen=True)
class Part:
    """One thing that a trajectory may have: what arrived, or what to do where it did not."""

    name: str
    value: str
    todo: str

    @property
    def arrived(self) -> bool:
        return bool(self.value)


@dataclass(frozen=True)
class Source:
    """The latest run of one instrumentation, and what it has and lacks."""

    name: str
    row: Trajectory
    parts: list[Part]

    @property
    def lacks(self) -> list[Part]:
        return [part for part in self.parts if not part.arrived]


@project_view()
def page(request: HttpRequest, project: Project) -> HttpResponse:
    return render(request, "trajectories/first.html", waiting(project))


@project_view()
def status(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment that is asked for until a trajectory is there; then the whole page is loaded
    again.
    """
    context = waiting(project)
    return progress(request, "trajectories/_first.html", context, runs=context["row"] is None)


def waiting(project: Project) -> dict:
    sources = _sources(project)
    row = sources[0].row if sources else None
    return {
        "keys": (
            project.api_keys.live()
            .filter(scopes__contains=[Scope.INGEST])
            .order_by(F("last_used_at").desc(nulls_last=True))[:KEYS]
        ),
        "row": row,
        "parts": sources[0].parts if sources else [],
        "sources": sources,
        "assembling": 0 if row else Trace.objects.filter(project=project, problem="").count(),
        "set_aside": sum(
            kind.objects.set_aside().filter(project=project).count() for kind in (Arrival, Trace)
        ),
    }


def _sources(project: Project) -> list[Source]:
    """The latest run of each instrumentation among the latest runs, the newest first."""
    rows = list(project.trajectories.order_by("-pk")[:LATEST])
    keys = [row.pk for row in rows]
    parts = Content.objects.filter(trajectory_id__among=keys, first=0)
    heads = dict(parts.values_list("trajectory_id", "data"))
    of_files = dict(
        UploadedTrajectory.objects.filter(trajectory_id__among=keys).values_list(
            "trajectory_id", "upload__format"
        )
    )
    latest: dict[str, Trajectory] = {}
    for row in rows:
        metadata = contents.unpack(heads[row.pk])["metadata"] if row.pk in heads else {}
        name = scope_of(metadata) or metadata.get("format")
        way = f"Import: {of_files[row.pk]}" if row.pk in of_files else "REST"
        latest.setdefault(str(name or way), row)
    return [
        Source(name, row, parts_of(row, is_of_file=row.pk in of_files))
        for name, row in list(latest.items())[:SOURCES]
    ]


def parts_of(row: Trajectory, *, is_of_file: bool) -> list[Part]:
    """What Flywheel can use of a trajectory, the most useful first."""
    content = row.content
    hints = hints_of(content["metadata"], is_of_file=is_of_file)
    calls = sum(len(message.get("tool_calls") or []) for message in content["messages"])
    answered = sum(message.get("role") == "tool" for message in content["messages"])
    defined = len(content["tools"])
    tokens = (row.input_tokens or 0) + (row.output_tokens or 0)
    captured = content["metadata"].get("content_captured", True) and any(
        message.get("content") for message in content["messages"]
    )
    values = {
        "Text": "captured" if captured else "",
        "Messages": f"{row.message_count:,}" if row.message_count else "",
        "Outcome": row.outcome_status if row.outcome_status != Outcome.UNKNOWN else "",
        "Agent": row.agent_name,
        "Version": row.agent_version,
        "Tools": f"{defined:,} definition{'' if defined == 1 else 's'}" if defined else "",
        "Tool calls": f"{calls:,}, {answered:,} with a result" if calls else "",
        "Model": row.model,
        "Tokens": f"{tokens:,}" if tokens else "",
        "Latency": f"{row.latency_ms:,.0f} ms" if row.latency_ms is not None else "",
        "Cost": cost(row.cost),
        "Session": row.session_id,
    }
    return [Part(name, value, hints[name]) for name, value in values.items()]
