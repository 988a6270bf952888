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
from apps.trajectories.instrumentation import content_hint, scope_of, tools_hint
from apps.trajectories.models import Arrival, Content, Outcome, Trace, Trajectory
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


def not_captured(metadata: dict) -> str:
    """What to do about spans without text, as far as it is known of their instrumentation."""
    hint = content_hint(metadata)
    if hint:
        return f"The spans have no text. Turn it on: {hint}"
    return "The spans have no text: the instrumentation does not record it, or is told not to."


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
    parts = Content.objects.filter(trajectory_id__among=[row.pk for row in rows], first=0)
    heads = dict(parts.values_list("trajectory_id", "data"))
    latest: dict[str, Trajectory] = {}
    for row in rows:
        metadata = contents.unpack(heads[row.pk])["metadata"] if row.pk in heads else {}
        name = scope_of(metadata) or metadata.get("format") or "REST"
        latest.setdefault(str(name), row)
    return [Source(name, row, parts_of(row)) for name, row in list(latest.items())[:SOURCES]]


def parts_of(row: Trajectory) -> list[Part]:
    """What Flywheel can use of a trajectory, the most useful first."""
    content = row.content
    defined = tools_hint(content["metadata"])
    calls = sum(len(message.get("tool_calls") or []) for message in content["messages"])
    answered = sum(message.get("role") == "tool" for message in content["messages"])
    tokens = (row.input_tokens or 0) + (row.output_tokens or 0)
    captured = content["metadata"].get("content_captured", True) and any(
        message.get("content") for message in content["messages"]
    )
    return [
        Part("Text", "captured" if captured else "", not_captured(content["metadata"])),
        Part(
            "Messages",
            f"{row.message_count:,}" if row.message_count else "",
            "Send “messages” in OpenAI chat form.",
        ),
        Part(
            "Outcome",
            row.outcome_status if row.outcome_status != Outcome.UNKNOWN else "",
            "Send outcome.status (success or failure), now or later as feedback. Without it,"
            " failures are found only by rules, the judge or people.",
        ),
        Part(
            "Agent",
            row.agent_name,
            "Send agent.name (OpenTelemetry: service.name) to distinguish agents.",
        ),
        Part(
            "Version",
            row.agent_version,
            "Send agent.version (OpenTelemetry: service.version) to see which release caused a"
            " regression.",
        ),
        Part(
            "Tools",
            f"{len(content['tools']):,} definitions" if content["tools"] else "",
            "Send “tools”, the tool definitions given to the model, so that calls can be checked"
            f" against them.{f' Turn it on: {defined}' if defined else ''}",
        ),
        Part(
            "Tool calls",
            f"{calls:,}, {answered:,} with a result" if calls else "",
            "None in this run. If the agent calls tools, send them as tool_calls, and their results"
            " as messages of role “tool”.",
        ),
        Part("Model", row.model, "Send “model”, to compare models."),
        Part(
            "Tokens",
            f"{tokens:,}" if tokens else "",
            "Send usage.input_tokens and usage.output_tokens.",
        ),
        Part(
            "Latency",
            f"{row.latency_ms:,.0f} ms" if row.latency_ms is not None else "",
            "Send “latency_ms”.",
        ),
        Part(
            "Cost",
            cost(row.cost),
            "Computed from the tokens where the model's price is known (Models → Prices);"
            " a cost that is sent as usage.cost_usd wins.",
        ),
        Part(
            "Session",
            row.session_id,
            "Send “session_id” (OpenTelemetry: session.id or gen_ai.conversation.id), to read a"
            " conversation's runs together.",
        ),
    ]
