"""Writes of dashboards and their charts."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F, Max

from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project
from apps.dashboard.charts import Spec
from apps.dashboard.models import Chart, Dashboard

MAX_NAME, MAX_DASHBOARDS, MAX_CHARTS, MAX_QUERY = 80, 100, 24, 4_000


class DashboardError(Rejected):
    """What cannot be saved; the message is for the person."""


@transaction.atomic
def create_dashboard(*, project: Project, name: str, by: Any) -> Dashboard:
    """Raises DashboardError."""
    Project.objects.select_for_update().get(
        pk=project.pk
    )  # two at once would both be the last that fits, or have one name
    name = _free_name(project, name)
    if project.dashboards.count() >= MAX_DASHBOARDS:
        raise DashboardError(f"This project has {MAX_DASHBOARDS} dashboards. Delete one first.")
    dashboard = Dashboard.objects.create(project=project, name=name, created_by=by)
    audit("dashboard.created", project=project, by=by, target=dashboard, name=name)
    return dashboard


@transaction.atomic
def rename_dashboard(*, dashboard: Dashboard, name: str, by: Any) -> None:
    """Raises DashboardError."""
    Project.objects.select_for_update().get(pk=dashboard.project_id)
    before, dashboard.name = dashboard.name, _free_name(dashboard.project, name, but=dashboard.pk)
    dashboard.save(update_fields=["name"])
    audit(
        "dashboard.renamed",
        project=dashboard.project,
        by=by,
        target=dashboard,
        before=before,
        name=dashboard.name,
    )


@transaction.atomic
def duplicate_dashboard(*, dashboard: Dashboard, by: Any) -> Dashboard:
    """With all its charts. Raises DashboardError."""
    taken = set(dashboard.project.dashboards.values_list("name", flat=True))
    stem = dashboard.name[: MAX_NAME - 12]
    names = [
        f"{stem} (copy)",
        *(f"{stem} (copy {number})" for number in range(2, MAX_DASHBOARDS + 2)),
    ]
    copy = create_dashboard(
        project=dashboard.project, name=next(name for name in names if name not in taken), by=by
    )
    charts = list(dashboard.charts.all())
    for chart in charts:
        chart.pk, chart.dashboard = None, copy
    Chart.objects.bulk_create(charts)
    return copy


@transaction.atomic
def delete_dashboard(*, dashboard: Dashboard, by: Any) -> None:
    audit(
        "dashboard.deleted", project=dashboard.project, by=by, target=dashboard, name=dashboard.name
    )
    dashboard.delete()


@transaction.atomic
def add_chart(*, dashboard: Dashboard, spec: Spec, by: Any) -> Chart:
    """At the end. Raises DashboardError."""
    Dashboard.objects.select_for_update().get(pk=dashboard.pk)
    if dashboard.charts.count() >= MAX_CHARTS:
        raise DashboardError(
            f"A dashboard holds {MAX_CHARTS} charts. Delete one, or create another dashboard."
        )
    last = dashboard.charts.aggregate(last=Max("position"))["last"] or 0
    chart = Chart.objects.create(dashboard=dashboard, position=last + 1, **_columns(spec))
    audit(
        "chart.added",
        project=dashboard.project,
        by=by,
        target=dashboard,
        chart=str(chart),
        dashboard=str(dashboard),
    )
    return chart


@transaction.atomic
def change_chart(*, chart: Chart, spec: Spec, by: Any) -> None:
    """Raises DashboardError."""
    Chart.objects.filter(pk=chart.pk).update(**_columns(spec))
    audit(
        "chart.changed",
        project=chart.dashboard.project,
        by=by,
        target=chart.dashboard,
        chart=str(chart),
        dashboard=str(chart.dashboard),
    )


@transaction.atomic
def duplicate_chart(*, chart: Chart, by: Any) -> Chart:
    """Beside the first. Raises DashboardError."""
    Dashboard.objects.select_for_update().get(pk=chart.dashboard_id)
    if chart.dashboard.charts.count() >= MAX_CHARTS:
        raise DashboardError(
            f"A dashboard holds {MAX_CHARTS} charts. Delete one, or create another dashboard."
        )
    chart.refresh_from_db(fields=["position"])
    Chart.objects.filter(dashboard=chart.dashboard_id, position__gt=chart.position).update(
        position=F("position") + 1
    )
    audit(
        "chart.added",
        project=chart.dashboard.project,
        by=by,
        target=chart.dashboard,
        chart=str(chart),
        dashboard=str(chart.dashboard),
    )
    chart.pk, chart.position = None, chart.position + 1
    chart.save(force_insert=True)
    return chart


@transaction.atomic
def move_chart(*, chart: Chart, earlier: bool, by: Any) -> bool:
    """Changes places with the one before or after it. False if there is none."""
    dashboard = Dashboard.objects.select_for_update().get(pk=chart.dashboard_id)
    chart.refresh_from_db(fields=["position"])
    side = {"position__lt": chart.position} if earlier else {"position__gt": chart.position}
    other = dashboard.charts.filter(**side).order_by("-position" if earlier else "position").first()
    if other is None:
        return False
    Chart.objects.filter(pk=chart.pk).update(position=other.position)
    Chart.objects.filter(pk=other.pk).update(position=chart.position)
    audit(
        "chart.moved",
        project=dashboard.project,
        by=by,
        target=dashboard,
        chart=str(chart),
        dashboard=str(dashboard),
    )
    return True


@transaction.atomic
def delete_chart(*, chart: Chart, by: Any) -> None:
    audit(
        "chart.deleted",
        project=chart.dashboard.project,
        by=by,
        target=chart.dashboard,
        chart=str(chart),
        dashboard=str(chart.dashboard),
    )
    chart.delete()


def _columns(spec: Spec) -> dict[str, str]:
    columns = spec.as_columns()
    if len(columns["query"]) > MAX_QUERY:
        raise DashboardError("These filters are too long to save.")
    return columns


def _free_name(project: Project, name: str, but: int | None = None) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= MAX_NAME:
        raise DashboardError(f"Enter a name of at most {MAX_NAME} characters.")
    if project.dashboards.filter(name=name).exclude(pk=but).exists():
        raise DashboardError(f"A dashboard named “{name}” already exists. Choose another name.")
    return name
