"""Custom charts, and dashboards of them."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from apps.core.access import project_view
from apps.core.forms import whole
from apps.core.models import Project, Role
from apps.core.query import KEY, Query, refuse_invalid
from apps.core.routes import RUNS, shows
from apps.dashboard import actions
from apps.dashboard.charts import SPEC, Spec, draw
from apps.dashboard.models import Chart, Dashboard
from apps.trajectories.filters import EXPOSED, OF_LISTS, SINCE, active, without
from apps.trajectories.metrics import figures, query
from apps.trajectories.metrics.cells import titles
from apps.trajectories.models import Outcome
from apps.trajectories.pages.listing import facets

LARGE, SPANS = 340, (*SINCE, "all")
OF_CHART: Query = OF_LISTS | SPEC | {"chart": KEY, "dashboard": KEY}


def _dashboard(project: Project, pk: int) -> Dashboard:
    return get_object_or_404(
        Dashboard.objects.select_related("project", "created_by"), project=project, pk=pk
    )


def _chart(project: Project, pk: int) -> Chart:
    return get_object_or_404(
        Chart.objects.select_related("dashboard__project"), dashboard__project=project, pk=pk
    )


@project_view()
def dashboards(request: HttpRequest, project: Project) -> HttpResponse:
    rows = project.dashboards.select_related("created_by").prefetch_related("charts")
    return render(request, "dashboard/dashboards.html", {"dashboards": rows})


@project_view(query={"since": SPANS})
def dashboard(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """The charts are loaded as fragments. `since` in the URL overrides their own time ranges."""
    row, since = _dashboard(project, pk), request.GET.get("since", "")
    charts = [(chart, Spec.of_chart(chart, since)) for chart in row.charts.all()]
    context = {
        "dashboard": row,
        "charts": charts,
        "since": since,
        "spans": SPANS,
        "most": actions.MAX_CHARTS,
    }
    return render(request, "dashboard/dashboard.html", context)


@shows(RUNS)
@project_view(query={"since": SPANS})
def chart(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = _chart(project, pk)
    spec = Spec.of_chart(row, request.GET.get("since", ""))
    drawn = draw(project, spec, to=request.user)
    return render(request, "dashboard/_chart.html", {"drawn": drawn, "id": f"chart-{row.pk}"})


@shows(RUNS)
@project_view(query=OF_CHART)
def explore(request: HttpRequest, project: Project) -> HttpResponse:
    """The chart that the URL asks for, with a form that changes it, and another one that keeps
    it.
    """
    spec = Spec.of(request.GET)
    if request.htmx:  # type: ignore[attr-defined]
        context = {
            "drawn": draw(project, spec, to=request.user, height=LARGE),
            "id": "explored",
            "query": spec.query,
        }
        return render(request, "dashboard/_explored.html", context)
    editing = Chart.objects.filter(
        dashboard__project=project, pk=whole(request.GET.get("chart"))
    ).first()
    given = QueryDict(request.GET.urlencode(), mutable=True)
    given.setdefault("since", spec.filters.get("since", ""))
    context = {
        "spec": spec,
        "measures": titles(),
        "groups": query.BY,
        "kinds": figures.KINDS,
        "buckets": query.UNITS,
        "given": given,
        "query": without(request.GET, "chart", "dashboard"),
        "chips": [(chip, without(request.GET, chip.name)) for chip in active(request.GET)],
        "hidden_filters": sum(chip.name not in EXPOSED for chip in spec.chips),
        "outcomes": Outcome.choices,
        "since": SINCE,
        "all_time": "all",
        "facets": facets(project, request.GET),
        "modes": project.failure_modes.values_list("slug", "name"),
        "dashboards": project.dashboards.all(),
        "into": whole(request.GET.get("dashboard")),
        "editing": editing,
    }
    return render(request, "dashboard/explore.html", context)


def _back_with(request: HttpRequest, error: Exception, address: str) -> HttpResponse:
    messages.error(request, str(error))
    return HttpResponseRedirect(address)


@require_POST
@project_view(Role.ENGINEER)
def save_chart(request: HttpRequest, project: Project) -> HttpResponse:
    """Into a dashboard, a new one if a name is given, or over the chart that is being edited."""
    given, by = request.POST, request.user
    asked = QueryDict(given.get("query", ""), mutable=True)
    asked["title"] = given.get("title", "")
    refuse_invalid(asked, OF_CHART, by_form=True)
    spec = Spec.of(asked.dict())
    back = f"{reverse('dashboard:explore', args=[project.slug])}?{asked.urlencode()}"
    try:
        if (pk := whole(given.get("chart"))) is not None and "copy" not in given:
            row = _chart(project, pk)
            actions.change_chart(chart=row, spec=spec, by=by)
            target = row.dashboard
        elif (pk := whole(given.get("dashboard"))) is not None:
            target = _dashboard(project, pk)
            actions.add_chart(dashboard=target, spec=spec, by=by)
        else:
            target = actions.create_dashboard(project=project, name=given.get("name", ""), by=by)
            actions.add_chart(dashboard=target, spec=spec, by=by)
    except actions.DashboardError as error:
        return _back_with(request, error, back)
    messages.success(request, f"Saved to “{target}”.")
    return redirect("dashboard:dashboard", project.slug, target.pk)


@require_POST
@project_view(Role.ENGINEER)
def create(request: HttpRequest, project: Project) -> HttpResponse:
    try:
        row = actions.create_dashboard(
            project=project, name=request.POST.get("name", ""), by=request.user
        )
    except actions.DashboardError as error:
        return _back_with(request, error, reverse("dashboard:dashboards", args=[project.slug]))
    return redirect("dashboard:dashboard", project.slug, row.pk)


@require_POST
@project_view(Role.ENGINEER)
def rename(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = _dashboard(project, pk)
    try:
        actions.rename_dashboard(dashboard=row, name=request.POST.get("name", ""), by=request.user)
    except actions.DashboardError as error:
        messages.error(request, str(error))
    return redirect("dashboard:dashboard", project.slug, pk)


@require_POST
@project_view(Role.ENGINEER)
def duplicate(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    try:
        copy = actions.duplicate_dashboard(dashboard=_dashboard(project, pk), by=request.user)
    except actions.DashboardError as error:
        return _back_with(request, error, reverse("dashboard:dashboard", args=[project.slug, pk]))
    return redirect("dashboard:dashboard", project.slug, copy.pk)


@require_POST
@project_view(Role.ENGINEER)
def delete(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    row = _dashboard(project, pk)
    actions.delete_dashboard(dashboard=row, by=request.user)
    messages.success(request, f"Dashboard “{row}” deleted.")
    return redirect("dashboard:dashboards", project.slug)


@require_POST
@project_view(Role.ENGINEER)
def change_chart(request: HttpRequest, project: Project, pk: int) -> HttpResponse:
    """Moves, duplicates or deletes it."""
    row, by, what = _chart(project, pk), request.user, request.POST.get("do")
    try:
        if what in ("earlier", "later"):
            actions.move_chart(chart=row, earlier=what == "earlier", by=by)
        elif what == "duplicate":
            actions.duplicate_chart(chart=row, by=by)
        elif what == "delete":
            actions.delete_chart(chart=row, by=by)
            messages.success(request, f"Chart “{row}” deleted.")
    except actions.DashboardError as error:
        messages.error(request, str(error))
    query = QueryDict(request.POST.get("query", "")).urlencode()
    address = reverse("dashboard:dashboard", args=[project.slug, row.dashboard_id])
    return HttpResponseRedirect(
        f"{address}?{query}#chart-{pk}" if query else f"{address}#chart-{pk}"
    )
