"""The overview: the whole cycle at a glance. Its charts are fragments with their own URLs, loaded
after the page.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.models import Project
from apps.core.routes import RUNS, TOTALS, WHEN_EVALUATED, shows
from apps.core.timeouts import TooLong, patience
from apps.dashboard import releases
from apps.dashboard.checklist import checklist
from apps.dashboard.next_steps import Wheel, next_steps
from apps.dashboard.search import search as find
from apps.dashboard.stations import stations
from apps.dashboard.waiting import waiting_for
from apps.evals.models import EvalRun, EvalSetState
from apps.failures import rates
from apps.failures.models import Failure, FailureState
from apps.failures.outcomes import checks
from apps.promotion.models import Channel, Promotion, Verdict
from apps.reviews.actions import lock_states
from apps.training.models import TrainingRun
from apps.trajectories.metrics import figures, query
from apps.trajectories.pages import totals

SPANS = ("7d", "30d", "90d", "all")
USUAL = "30d"
CHARTS_MS = 4_000


@shows(TOTALS, WHEN_EVALUATED)
@project_view(query={"since": SPANS})
def home(request: HttpRequest, project: Project) -> HttpResponse:
    running = [
        *TrainingRun.objects.filter(project=project).active(),
        *EvalRun.objects.filter(project=project).active(),
    ]
    channel = project.channels.current().filter(name="production").select_related("current").first()
    wheel = read_wheel(project, channel, len(running))
    waiting = waiting_for(project, request.membership)  # type: ignore[attr-defined]
    return render(
        request,
        "dashboard/home.html",
        {
            "wheel": wheel,
            "steps": next_steps(wheel),
            "stations": stations(project, wheel, waiting),
            "waiting": waiting,
            "checklist": checklist(project),
            "running": running,
            "channel": channel,
            "since": span_of(request),
            "spans": SPANS,
            "buckets": buckets(project),
            "moves": (
                Promotion.objects.filter(channel__project=project).select_related(
                    "to_version", "by", "channel"
                )[:5]
            ),
        },
    )


def span_of(request: HttpRequest) -> str:
    since = request.GET.get("since", USUAL)
    return since if since in SPANS else USUAL


@project_view(query={"since": SPANS})
def failure_rate(request: HttpRequest, project: Project) -> HttpResponse:
    """By time and by version, with the promotions; it says how many runs have no known outcome."""
    since = span_of(request)
    context: dict[str, Any] = {"since": since, "figures": None}
    with suppress(TooLong), patience(CHARTS_MS):
        shown, moves = releases.rate_figures(project, rates.since_of(since))
        counted = query.totals(project, given_of(since)).total
        context |= {
            "figures": shown,
            "moves": [(move, releases.address_of(move, project)) for move in moves],
            "unknown": counted.unknown / counted.runs if counted.runs > 0 else None,
            "checked": checks.traffic(project, rates.since_of(since)),
        }
    return render(request, "dashboard/_failure_rate.html", context)


@project_view(query={"since": SPANS})
def performance(request: HttpRequest, project: Project) -> HttpResponse:
    """Traffic, latency and cost over time."""
    since, found = span_of(request), []
    moves = releases.promotions(project, rates.since_of(since))
    with suppress(TooLong), patience(CHARTS_MS):
        for measure, by in (("runs", "outcome"), ("latency", ""), ("run_cost", ""), ("cost", "")):
            answer = query.ask(project, given_of(since), measure, by)
            if any(one.whole.value for one in answer.series) and (
                drawn := figures.figure(answer, by)
            ):
                found.append(
                    (
                        f"{measure}-by-time",
                        releases.mark(drawn, moves, project) if measure != "runs" else drawn,
                    )
                )
    return render(request, "dashboard/_performance.html", {"figures": found, "since": since})


@shows(TOTALS, WHEN_EVALUATED)
@project_view()
def promotion_effect(request: HttpRequest, project: Project) -> HttpResponse:
    context: dict[str, Any] = {"effect": None, "too_long": True}
    with suppress(TooLong), patience(CHARTS_MS):
        context = {"effect": releases.effect(project), "days": releases.WINDOW.days}
        if context["effect"]:
            context["address"] = releases.address_of(context["effect"].move, project)
    return render(request, "dashboard/_effect.html", context)


def given_of(since: str) -> dict[str, str]:
    """The filters of the list for a span; days are whole, as those of the failure rate."""
    begin = rates.since_of(since)
    return {"from": begin.isoformat()} if begin else {}


def read_wheel(project: Project, channel: Channel | None, running: int) -> Wheel:
    live = channel.current_id if channel else None
    verifiers = project.verifiers.filter(environments__isnull=False).distinct()
    return Wheel(
        trajectories=totals.total(project, {}).n or int(project.trajectories.exists()),
        open_failures=Failure.objects.filter(project=project, state=FailureState.OPEN).count(),
        eval_sets=project.eval_sets.count(),
        frozen_sets=project.eval_sets.filter(state=EvalSetState.FROZEN).count(),
        evaluations=EvalRun.objects.filter(project=project, state="succeeded").count(),
        locked_verifiers=sum(lock.locked for lock in lock_states(verifiers).values()),
        adapters=project.model_versions.adapters().count(),
        running=running,
        waiting_reports=(
            project.gate_reports.filter(
                verdict=Verdict.PROMOTE, promotions=None, baseline__model_version=live
            ).count()
            if live
            else 0
        ),
    )


def buckets(project: Project) -> list[dict]:
    standing = Q(failures__project=project) & ~Q(failures__state=FailureState.DISMISSED)
    rows = (
        project.failure_modes.annotate(n=Count("failures", filter=standing))
        .filter(n__gt=0)
        .order_by("-n")
    )
    largest = max((row.n for row in rows), default=1)
    return [{"mode": row, "n": row.n, "share": 100 * row.n / largest} for row in rows]


@shows(RUNS)
@project_view(query={"q": None})
def search(request: HttpRequest, project: Project) -> HttpResponse:
    """The fragment of the command palette: what `q` finds."""
    text = request.GET.get("q", "")
    groups = find(project, request.membership, text)  # type: ignore[attr-defined]
    return render(request, "dashboard/_search.html", {"groups": groups, "text": text})
