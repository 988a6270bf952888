"""A canary or shadow on its page: started from a report's or a channel's page, followed and ended
here.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import lines
from apps.core.errors import Rejected
from apps.core.forms import query_of
from apps.core.http import uuid_of
from apps.core.models import Project, Role
from apps.failures.models import Failure
from apps.promotion.conditions import PromotionError
from apps.promotion.forms import CanaryForm
from apps.promotion.freezing import freeze_of
from apps.promotion.models import Channel, GateReport, Trial, TrialAnswer, TrialSession
from apps.promotion.trials import actions, looks
from apps.promotion.trials.deciding import Reading, held_up, intake_paused
from apps.promotion.trials.plans import Plan, Step
from apps.promotion.trials.readings import reading_of, rules_of
from apps.promotion.trials.starting import forecast_of
from apps.trajectories.models import Trace, Trajectory, TrajectoryKey
from workers.lib.messages import content_text

FAILED_SHOWN = 20
SAID_SHOWN = 600  # characters
MAX_PERCENT = 90
SIDES = (
    ("requests", "Requests", 1.0, ",.0f", ""),
    ("answered", "Answered", 100.0, ".1f", " %"),
    ("ms_p50", "Latency, median", 1.0, ",.0f", " ms"),
    ("ms_p95", "Latency, 95th percentile", 1.0, ",.0f", " ms"),
    ("first_ms_p50", "First token, median", 1.0, ",.0f", " ms"),
    ("tokens", "Tokens per request", 1.0, ",.0f", ""),
    ("cost_usd", "Cost per 1,000 requests", 1000.0, ",.2f", " $"),
)


def _channel(project: Project, name: str) -> Channel:
    return get_object_or_404(
        Channel.objects.select_related("project", "current"), project=project, name=name
    )


def _trial(project: Project, name: str, pk: UUID) -> Trial:
    rows = Trial.objects.filter(project=project, channel__name=name)
    return get_object_or_404(
        rows.select_related("channel__project", "version", "baseline", "gate_report", "deployment"),
        pk=pk,
    )


@project_view()
def trial(request: HttpRequest, project: Project, name: str, pk: UUID) -> HttpResponse:
    """While it is active the page polls its fragment every few seconds."""
    row = _trial(project, name, pk)
    fragment = (
        "promotion/_trial.html" if request.headers.get("HX-Request") else "promotion/trial.html"
    )
    return render(request, fragment, shown_of(row) | {"channel": row.channel})


def shown_of(row: Trial) -> dict[str, Any]:
    reading = reading_of(row) if row.started_at else Reading()
    sides = row.report.get("sides") or looks.sides_of(row)
    return {
        "trial": row,
        "freeze": freeze_of(row.channel) if row.is_active else None,
        "reading": reading,
        "harmed": max(0.0, reading.harmed),
        "held_up": held_up(rules_of(row), reading) if row.is_running else "",
        "paused": intake_paused(rules_of(row), reading) if row.is_running else "",
        "steps": [_step(row, number, step, reading) for number, step in enumerate(row.steps)],
        "figure": _chart(row),
        "sides": _sides(row, sides),
        "failed": _failed(row),
    }


def _step(row: Trial, number: int, step: dict[str, Any], reading: Reading) -> dict[str, Any]:
    if number != row.step or not row.started_at:
        return step | {"state": "done" if number < row.step else "next"}
    percent = min(100, int(100 * reading.sessions / step["min_sessions"]))
    return step | {"state": "now", "sessions": reading.sessions, "percent": percent}


def _chart(row: Trial) -> dict[str, Any] | None:
    """The difference in success over time, between its bounds, in points."""
    points = [point for point in row.looks if point.get("success", {}).get("gap") is not None]
    if len(points) < 2:
        return None
    times = [point["at"][:19] for point in points]
    series = {
        label: (times, [round(100 * point["success"][name], 2) for point in points])
        for name, label in (("gap", "difference"), ("low", "lower bound"), ("high", "upper bound"))
    }
    return lines(series, "Success: candidate − current, in points", x="", height=260)


def _sides(row: Trial, sides: dict[str, Any]) -> list[tuple[str, str, str]]:
    def text(lane: str, name: str, factor: float, form: str, unit: str) -> str:
        value = sides.get(lane, {}).get(name)
        return "–" if value is None else f"{value * factor:{form}}{unit}"

    return [
        (label, text("current", name, *form), text(row.lane, name, *form))
        for name, label, *form in SIDES
    ]  # type: ignore[arg-type]


def _failed(row: Trial) -> list[dict[str, Any]]:
    """The newest sessions of the candidate that count as failed, each with a run to open."""
    rows = TrialSession.objects.filter(
        trial=row, lane=row.lane, counts=True, success=False
    ).order_by("-ended_at")
    found = list(rows[:FAILED_SHOWN])
    units, traces = [one.unit for one in found], [one.trace_id for one in found]
    answers = {
        one.trace_id: one
        for one in row.answers.filter(unit__in=units, trace_id__in=traces, lane=row.lane)
    }
    served = {
        one.span_id: one.trace_id
        for one in row.answers.filter(
            span_id__in=[one.shadow_of for one in answers.values() if one.shadow_of]
        )
    }
    shown = []
    for one in found:
        shadow = answers.get(one.trace_id)
        trace = served.get(shadow.shadow_of, "") if shadow and shadow.shadow_of else one.trace_id
        shown.append({"session": one, "trace": trace, "said": _shadow_text(shadow)})
    runs = _runs(row, [one["trace"] for one in shown])
    modes = dict(
        Failure.objects.filter(trajectory__in=[run.pk for run in runs.values()])
        .standing()
        .values_list("trajectory_id", "mode__name")
    )
    for one in shown:
        run = one["run"] = runs.get(one["trace"])
        one["mode"] = modes.get(run.pk) if run else None
        one["said"] = one["said"] or (run.outcome_reason[:SAID_SHOWN] if run else "")
    return shown


def _shadow_text(answer: TrialAnswer | None) -> str:
    """What a shadow said and called, why it gave no answer, and the modes found: its page is the
    only place that shows it.
    """
    said = answer.said if answer else {}
    parts = [said.get("problem", "")]
    for message in said.get("messages", []):
        calls = message.get("tool_calls")
        parts += [
            content_text(message.get("content"), ""),
            json.dumps(calls, ensure_ascii=False) if calls else "",
        ]
    return " ".join(filter(None, [*parts, *(f"({mode})" for mode in said.get("modes", []))]))[
        :SAID_SHOWN
    ]


def _runs(row: Trial, traces: list[str]) -> dict[str, Trajectory]:
    """The run of each trace: the candidate's own if the trace has one (if both answered a request
    it has two).
    """
    found = Trace.objects.filter(project=row.project_id, trace_id__in=traces)
    names = {trace.trace_id: trace.runs for trace in found}
    keys = TrajectoryKey.objects.filter(
        project=row.project_id, external_id__in=[name for runs in names.values() for name in runs]
    )
    rows = Trajectory.objects.filter(pk__in=keys.values("trajectory_id"))
    by_name = {
        one.external_id: one
        for one in rows.only("external_id", "agent_version", "preview", "outcome_reason")
    }
    candidate = str(row.version)
    of = {
        trace: [by_name[name] for name in runs if name in by_name] for trace, runs in names.items()
    }
    return {
        trace: max(runs, key=lambda run: run.agent_version == candidate)
        for trace, runs in of.items()
        if runs
    }


@project_view(Role.ENGINEER, query=query_of(CanaryForm) | {"report": UUID})
def new(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    """The plan of a canary and what it may cost, before it starts; every change of the plan shows
    it again.
    """
    channel = _channel(project, name)
    report = get_object_or_404(
        GateReport.objects.select_related("candidate__model_version"),
        project=project,
        channel=channel,
        pk=uuid_of(request.GET.get("report", "")),
    )
    form = CanaryForm(
        request.GET if "steps" in request.GET else CanaryForm.DEFAULTS | {"report": report.pk}
    )
    forecast, problem = None, ""
    if form.is_valid():
        try:
            forecast = forecast_of(channel, form.plan())
        except PromotionError as error:
            problem = str(error)
    return render(
        request,
        "promotion/trial_new.html",
        {
            "channel": channel,
            "report": report,
            "form": form,
            "forecast": forecast,
            "limit": form.cleaned_data.get("max_harmed") if form.is_bound else None,
            "problem": problem,
        },
    )


@require_POST
@project_view(Role.ENGINEER)
def begin(request: HttpRequest, project: Project, name: str) -> HttpResponse:
    row, asked = _channel(project, name), request.POST
    report = GateReport.objects.filter(project=project, pk=uuid_of(asked.get("report", ""))).first()
    number = asked.get("version", "")
    version = (
        project.model_versions.filter(pk=int(number)).first()
        if number.isdecimal() and len(number) < 19
        else None
    )
    kind = Trial.Kind.SHADOW if asked.get("kind") == "shadow" else Trial.Kind.CANARY
    try:
        made = actions.begin(
            channel=row,
            kind=kind,
            by=request.user,
            reason=asked.get("reason", ""),
            gate_report=report,
            version=version,
            then=Trial.Then.PROMOTE if asked.get("then") == "promote" else Trial.Then.HOLD,
            plan=_plan(request),
        )
    except (Rejected, PermissionDenied) as error:
        messages.error(request, str(error))
        return redirect("promotion:channel", project.slug, name)
    return redirect(made)


def _plan(request: HttpRequest) -> Plan | None:
    """From the form of a canary, or one that asks for a share in percent; None for a form without
    either. Raises PromotionError.
    """
    if "steps" in request.POST:
        form = CanaryForm(request.POST)
        if not form.is_valid():
            raise PromotionError(" ".join(text for texts in form.errors.values() for text in texts))
        return form.plan()
    share = request.POST.get("share")
    if share is None:
        return None
    if not (
        share.isascii() and share.isdigit() and len(share) < 10 and 1 <= int(share) <= MAX_PERCENT
    ):
        raise PromotionError(f"The share must be a whole percentage from 1 to {MAX_PERCENT}.")
    return Plan(steps=[Step(share=int(share) / 100, min_sessions=200)])


@require_POST
@project_view(Role.ENGINEER)
def stop(request: HttpRequest, project: Project, name: str, pk: UUID) -> HttpResponse:
    return _change(request, _trial(project, name, pk), actions.stop)


@require_POST
@project_view(Role.ENGINEER)
def advance(request: HttpRequest, project: Project, name: str, pk: UUID) -> HttpResponse:
    return _change(request, _trial(project, name, pk), actions.advance)


def _change(request: HttpRequest, row: Trial, action: Any) -> HttpResponse:
    try:
        action(trial=row, by=request.user, reason=request.POST.get("reason", ""))
    except (Rejected, PermissionDenied) as error:
        messages.error(request, str(error))
    return redirect(row)
