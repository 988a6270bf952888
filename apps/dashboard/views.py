from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from apps.core.access import project_view
from apps.core.models import Project, Role
from apps.dashboard.next_steps import Wheel, next_steps
from apps.evals.models import EvalRun, EvalSetState
from apps.failures.models import Failure, FailureState
from apps.promotion.models import Channel, Promotion, Verdict
from apps.reviews.actions import lock_states
from apps.training.models import TrainingRun
from apps.trajectories.pages import totals

FAILED_SHOWN = timedelta(days=7)


@project_view()
def home(request: HttpRequest, project: Project) -> HttpResponse:
    running = [*TrainingRun.objects.filter(project=project).active(), *EvalRun.objects.filter(project=project).active()]
    channel = Channel.objects.filter(project=project, name="production").select_related("current").first()
    wheel = read_wheel(project, channel, len(running))
    recent = timezone.now() - FAILED_SHOWN
    return render(
        request,
        "dashboard/home.html",
        {
            "wheel": wheel,
            "steps": next_steps(wheel),
            "running": running,
            "channel": channel,
            "outcomes": totals.trend(project, {"since": "30d"}, "outcome"),
            "buckets": buckets(project),
            "moves": Promotion.objects.filter(channel__project=project).select_related("to_version", "by", "channel")[
                :5
            ],
            "disabled_webhooks": project.webhooks.exclude(disabled_reason="")
            if request.membership.may(Role.OPERATOR)  # type: ignore[attr-defined]
            else [],
            "failed_jobs": [
                *TrainingRun.objects.filter(project=project, state="failed", finished_at__gte=recent)[:3],
                *EvalRun.objects.filter(project=project, state="failed", finished_at__gte=recent)[:3],
            ],
        },
    )


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
        waiting_reports=project.gate_reports.filter(
            verdict=Verdict.PROMOTE, promotions=None, baseline__model_version=live
        ).count()
        if live
        else 0,
    )


def buckets(project: Project) -> list[dict]:
    standing = Q(failures__project=project) & ~Q(failures__state=FailureState.DISMISSED)
    rows = project.failure_modes.annotate(n=Count("failures", filter=standing)).filter(n__gt=0).order_by("-n")
    largest = max((row.n for row in rows), default=1)
    return [{"mode": row, "n": row.n, "share": 100 * row.n / largest} for row in rows]
