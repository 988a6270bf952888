"""Runs of one session together, and two runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from apps.core.access import project_view
from apps.core.http import uuid_of
from apps.core.models import Project
from apps.core.routes import RUNS, shows
from apps.core.timeouts import TooLong, patience
from apps.trajectories.actions.store import find
from apps.trajectories.filters import OF_LISTS, apply_filters, without
from apps.trajectories.models import Trajectory
from apps.trajectories.pages.columns import duration, money
from apps.trajectories.pages.comparison import align
from apps.trajectories.pages.listing import LIST_MS
from apps.trajectories.pages.parts import Reader
from apps.trajectories.shown import runs_shown
from workers.lib.prices import Cost, total_cost

WINDOW, PAGE = 5_000, 50  # runs that are looked at for a page, and sessions of it
MOST_RUNS = 200  # of a session's page
NARROW = (
    "pk",
    "session_id",
    "user_id",
    "agent_name",
    "started_at",
    "outcome_status",
    "cost_usd",
    "cost_basis",
    "preview",
)


NUMBERS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Latency", "latency_ms", duration),
    ("Tokens in", "input_tokens", "{:,}".format),
    ("of these cached", "cache_read_tokens", "{:,}".format),
    ("of these written to a cache", "cache_write_tokens", "{:,}".format),
    ("Tokens out", "output_tokens", "{:,}".format),
    ("of these reasoning", "reasoning_tokens", "{:,}".format),
    ("Cost", "cost_usd", money),
    ("Messages", "message_count", "{:,}".format),
    ("Reward", "outcome_reward", "{:.3g}".format),
)


@dataclass
class Session:
    """Runs of a session among those looked at; the newest comes first."""

    id: str
    last: datetime
    first: datetime
    user: str
    agent: str
    runs: int = 0
    costs: list[Cost] = field(default_factory=list)
    preview: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def cost(self) -> Cost:
        return total_cost(self.costs)

    @property
    def counts(self) -> list[tuple[str, int]]:
        return self.outcomes.most_common()


@shows(RUNS)
@project_view(query=OF_LISTS | {"before": UUID})
def sessions(request: HttpRequest, project: Project) -> HttpResponse:
    given = request.GET
    rows = apply_filters(project.trajectories.all(), given).exclude(session_id="").order_by("-pk")
    if before := uuid_of(given.get("before")):
        rows = rows.filter(pk__lt=before)
    try:
        with patience(LIST_MS):
            looked = list(rows.values_list(*NARROW)[:WINDOW])
    except TooLong:
        looked = []
    found, last = group(looked)
    runs_shown(
        project, [run[0] for run in looked], to=request.user, where="sessions", previews=True
    )
    context = {
        "sessions": found,
        "looked": len(looked),
        "before": last
        if len(looked) == WINDOW or last != (looked[-1][0] if looked else None)
        else None,
        "query": without(given, "before"),
    }
    return render(request, "trajectories/sessions.html", context)


def group(rows: list[tuple]) -> tuple[list[Session], UUID | None]:
    """The newest sessions, and the last run before the first session that has no room."""
    found: dict[str, Session] = {}
    last = None
    full = False
    for pk, name, user, agent, started, outcome, usd, basis, preview in rows:
        if name not in found and len(found) == PAGE:
            full = True
        if not full:
            last = pk
        if name not in found:
            if full:
                continue
            found[name] = Session(name, started, started, user, agent)
        session = found[name]
        session.runs += 1
        session.first, session.preview = min(session.first, started), preview
        session.costs.append(Cost(usd, basis))
        session.outcomes[outcome] += 1
    return list(found.values()), last


@shows(RUNS)
@project_view(query={"id": None})
def session(request: HttpRequest, project: Project) -> HttpResponse:
    name = request.GET.get("id", "")
    if not name:
        return redirect("trajectories:sessions", project.slug)
    rows = (
        apply_filters(project.trajectories.all(), {"session": name})
        .order_by("pk")
        .prefetch_related("failure__mode")
    )
    found = list(rows[: MOST_RUNS + 1])
    runs = found[:MOST_RUNS]
    runs_shown(project, [run.pk for run in runs], to=request.user, where="session", previews=True)
    for before, run in pairwise(runs):
        run.before = before.pk
    return render(
        request,
        "trajectories/session.html",
        {
            "name": name,
            "runs": runs,
            "more": len(found) > MOST_RUNS,
            "outcomes": Counter(run.outcome_status for run in runs).items(),
            "cost": total_cost(run.cost for run in runs),
            "tokens": sum((run.input_tokens or 0) + (run.output_tokens or 0) for run in runs),
            "latency": sum(run.latency_ms or 0 for run in runs),
        },
    )


@shows(RUNS)
@project_view(query={"a": None, "b": None})
def compare(request: HttpRequest, project: Project) -> HttpResponse:
    a, b = (_run(request, project, side) for side in "ab")
    runs_shown(
        project, [run.pk for run in (a, b) if run], to=request.user, where="two runs side by side"
    )
    context: dict[str, Any] = {
        "a": a,
        "b": b,
        "asked": {side: request.GET.get(side, "") for side in "ab"},
    }
    if a and b:
        readers = Reader(a), Reader(b)
        turns = [reader.turns(0, None) if reader.firsts else [] for reader in readers]
        pairs = align(*turns)
        same = next((n for n, pair in enumerate(pairs) if not pair.same), len(pairs))
        same = same if same > 1 else 0  # what both begin with is folded
        context |= {
            "pairs": pairs[same:],
            "opening": pairs[:same],
            "turns": len(pairs),
            "differing": sum(not pair.same for pair in pairs),
            "cut": any(len(reader.firsts) > 1 for reader in readers),
            "only_a": [name for name in a.tool_names if name not in b.tool_names],
            "only_b": [name for name in b.tool_names if name not in a.tool_names],
            "numbers": [number(a, b, *asked) for asked in NUMBERS],
        }
    return render(request, "trajectories/compare.html", context)


def number(
    a: Trajectory, b: Trajectory, title: str, name: str, words: Callable[[Any], str]
) -> dict[str, Any]:
    """One line of the table: both values in words, and what B has more."""
    values = getattr(a, name), getattr(b, name)
    change = ""
    if None not in values and values[0] != values[1]:
        more = values[1] - values[0]
        change = f"{'+' if more > 0 else '−'}{words(abs(more))}"
    texts = ["–" if value is None else words(value) for value in values]
    return {
        "title": title,
        "a": texts[0],
        "b": texts[1],
        "change": change,
        "differs": values[0] != values[1],
    }


def _run(request: HttpRequest, project: Project, side: str) -> Trajectory | None:
    """By our id or the client's; says so where there is none."""
    text = request.GET.get(side, "").strip()
    if not text:
        return None
    pk = uuid_of(text)
    found = (project.trajectories.filter(pk=pk).first() if pk else None) or find(project, text)
    if found is None:
        messages.error(request, f"There is no trajectory “{text[:80]}” here.")
    return found
