from __future__ import annotations

from django.contrib import messages
from django.db.models import Count, Max, Min, Q
from django.db.models.functions import Trunc
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.charts import bars, time_unit
from apps.core.intervals import wilson
from apps.core.models import Project, Role
from apps.core.paging import page_of
from apps.failures import actions
from apps.failures.models import Failure, FailureState


@project_view()
def listing(request: HttpRequest, project: Project) -> HttpResponse:
    failures = Failure.objects.filter(project=project).select_related("mode", "trajectory")
    mode, state = request.GET.get("mode", ""), request.GET.get("state", "")
    shown = failures.filter(mode__slug=mode) if mode else failures
    shown = shown.filter(state=state) if state in FailureState.values else shown.standing()
    return render(
        request,
        "failures/list.html",
        {
            "buckets": buckets(project),
            "page": page_of(request, shown),
            "mode": mode,
            "states": FailureState.choices,
            "versions": by_version(project),
            "trend": trend(project),
            "total": project.trajectories.count(),
        },
    )


def buckets(project: Project) -> list[dict]:
    """Each mode with its count, its share of all trajectories and the interval of that."""
    total = project.trajectories.count()
    counted = ~Q(failures__state=FailureState.DISMISSED)
    rows = project.failure_modes.annotate(
        n=Count("failures", filter=counted), open=Count("failures", filter=Q(failures__state=FailureState.OPEN))
    )
    result = []
    for row in rows:
        low, high = wilson(row.n, total)
        result.append(
            {"mode": row, "n": row.n, "open": row.open, "rate": row.n / total if total else 0, "low": low, "high": high}
        )
    return sorted(result, key=lambda bucket: -bucket["n"])


def by_version(project: Project) -> list[dict]:
    failed = Q(failure__isnull=False) & ~Q(failure__state=FailureState.DISMISSED)
    rows = project.trajectories.values("agent_name", "agent_version").annotate(
        n=Count("pk"), failed=Count("pk", filter=failed)
    )
    return [
        row | {"rate": row["failed"] / row["n"], "interval": wilson(row["failed"], row["n"])}
        for row in rows.order_by("agent_name", "agent_version")[:50]
    ]


def trend(project: Project) -> dict | None:
    standing = Failure.objects.filter(project=project).standing()
    unit = time_unit(**standing.aggregate(first=Min("trajectory__started_at"), last=Max("trajectory__started_at")))
    rows = (
        standing.annotate(at=Trunc("trajectory__started_at", unit))
        .values("at", "mode__name")
        .annotate(n=Count("pk"))
        .order_by("at")
    )
    series: dict[str, tuple[list, list]] = {}
    for row in rows:
        xs, ys = series.setdefault(row["mode__name"], ([], []))
        xs.append(row["at"].isoformat())
        ys.append(row["n"])
    return bars(series, f"Failures by the {unit}", stacked=True, height=240) if series else None


@require_POST
@project_view(Role.MEMBER)
def classify(request: HttpRequest, project: Project) -> HttpResponse:
    counts = actions.classify_project(project=project, by=request.user)
    messages.success(request, f"Looked at {counts['looked']} trajectories; {counts['found']} failed.")
    return redirect("failures:list", project.slug)


@project_view()
def triage(request: HttpRequest, project: Project) -> HttpResponse:
    """The next open case: the safety-relevant and severe first."""
    case = next_case(project)
    if case is None:
        messages.success(request, "Nothing is left to triage.")
        return redirect("failures:list", project.slug)
    return redirect("failures:case", project.slug, case.pk)


def next_case(project: Project) -> Failure | None:
    return (
        Failure.objects.filter(project=project, state=FailureState.OPEN)
        .order_by("-mode__safety_relevant", "mode__position", "pk")
        .first()
    )


@project_view()
def case(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    failure = get_object_or_404(
        Failure.objects.select_related("mode", "trajectory", "decided_by"), project=project, pk=pk
    )
    similar = (
        Failure.objects.filter(project=project, mode=failure.mode)
        .exclude(pk=pk)
        .select_related("trajectory")
        .only("pk", "state", "trajectory__preview", "trajectory__external_id", "project")[:8]
    )
    return render(
        request,
        "failures/case.html",
        {
            "failure": failure,
            "row": failure.trajectory,
            "modes": enumerate(project.failure_modes.all(), 1),
            "similar": similar,
            "left": Failure.objects.filter(project=project, state=FailureState.OPEN).count(),
        },
    )


@require_POST
@project_view(Role.MEMBER)
def decide(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    failure = get_object_or_404(Failure, project=project, pk=pk)
    mode = None
    if slug := request.POST.get("mode"):
        mode = get_object_or_404(project.failure_modes, slug=slug)
    state = FailureState.DISMISSED if "dismiss" in request.POST else FailureState.CONFIRMED
    actions.decide(failure=failure, by=request.user, mode=mode, state=state)
    return redirect("failures:triage", project.slug)


@require_POST
@project_view(Role.MEMBER)
def undo(request: HttpRequest, project: Project) -> HttpResponse:
    failure = actions.undo(project=project, by=request.user)
    if failure is None:
        messages.info(request, "There is nothing to undo.")
        return redirect("failures:list", project.slug)
    messages.success(request, "Your last decision is taken back.")
    return redirect("failures:case", project.slug, failure.pk)
