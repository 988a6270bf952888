"""Charts of one's own: the URL is the chart, dashboards keep charts in an order that people
change.
"""

from __future__ import annotations

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from apps.core.models import AuditEvent, Project, Role
from apps.dashboard import actions
from apps.dashboard.charts import SPEC, Spec
from apps.dashboard.models import Chart, Dashboard
from apps.trajectories import digest
from apps.trajectories.metrics import query
from tests.factories import (
    admin_of,
    key_headers,
    make_failed,
    make_member,
    make_project,
    make_trajectory,
)

pytestmark = pytest.mark.django_db


def client_of(project: Project, role: Role = Role.ENGINEER) -> Client:
    client = Client()
    client.force_login(make_member(project, role))
    return client


@pytest.fixture
def dashboard(project: Project) -> Dashboard:
    return actions.create_dashboard(project=project, name="Health", by=admin_of(project))


def add(dashboard: Dashboard, **asked: str) -> Chart:
    return actions.add_chart(dashboard=dashboard, spec=Spec.of(asked), by=None)


def titles_of(dashboard: Dashboard) -> list[str]:
    return [chart.title for chart in dashboard.charts.all()]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


@pytest.mark.proof
@given(
    st.dictionaries(
        st.sampled_from([*SPEC, "since", "from", "outcome", "q", "cost_min", "x"]), TEXT
    )
)
def test_whatever_a_url_says_is_a_chart_that_survives_saving(asked: dict[str, str]) -> None:
    spec = Spec.of(asked)
    saved = Chart(**spec.as_columns())
    again = Spec.of_chart(saved)
    assert again.as_columns() == spec.as_columns()
    assert Spec.of(QueryDict(saved.parameters).dict()).as_columns() == spec.as_columns()


def test_a_range_of_the_page_takes_the_place_of_the_charts_own() -> None:
    saved = Chart(
        **Spec.of(
            {"measure": "cost", "from": "2026-01-01", "to": "2026-02-01", "model": "m"}
        ).as_columns()
    )
    assert QueryDict(Spec.of_chart(saved).query).dict() == {
        "from": "2026-01-01",
        "to": "2026-02-01",
        "model": "m",
    }
    assert QueryDict(Spec.of_chart(saved, "7d").query).dict() == {"since": "7d", "model": "m"}
    assert Spec.of_chart(saved, "nonsense").query == Spec.of_chart(saved).query


def test_a_chart_is_made_from_its_url_and_saved(project: Project) -> None:
    make_failed(project, model="m1")
    make_trajectory(project, model="m2")
    digest.run()
    client = client_of(project)
    address = reverse("dashboard:explore", args=[project.slug])
    page = client.get(address, {"measure": "runs", "by": "model", "kind": "table"})
    assert page.status_code == 200 and "Save to dashboard" in page.content.decode()
    drawn = client.get(
        address, {"measure": "runs", "by": "model", "kind": "table"}, headers={"HX-Request": "true"}
    )
    assert [row["name"] for row in drawn.context["drawn"].rows] == ["m1", "m2"]
    asked = {
        "query": "measure=runs&by=model&outcome=failure",
        "title": "By model",
        "name": "Mine",
        "dashboard": "",
    }
    saved = client.post(reverse("dashboard:save_chart", args=[project.slug]), asked)
    chart = Chart.objects.get(dashboard__project=project)
    assert saved.url == reverse("dashboard:dashboard", args=[project.slug, chart.dashboard_id])
    assert (chart.title, chart.measure, chart.by) == ("By model", "runs", "model")
    assert QueryDict(chart.query).dict() == {"outcome": "failure", "since": "30d"}
    shown = client.get(reverse("dashboard:chart", args=[project.slug, chart.pk]))
    assert [one.name for one in shown.context["drawn"].answer.series] == ["m1"]
    client.post(
        reverse("dashboard:save_chart", args=[project.slug]),
        {"query": "measure=cost", "title": "Money", "chart": chart.pk},
    )
    chart.refresh_from_db()
    assert (chart.title, chart.measure, chart.by) == ("Money", "cost", "")


def test_charts_are_moved_duplicated_and_deleted(dashboard: Dashboard) -> None:
    first, second, third = (add(dashboard, title=name) for name in "abc")
    client = client_of(dashboard.project)

    def do(chart: Chart, what: str) -> list[str]:
        address = reverse("dashboard:change_chart", args=[dashboard.project.slug, chart.pk])
        assert client.post(address, {"do": what, "query": "since=7d"}).status_code == 302
        return titles_of(dashboard)

    assert do(third, "earlier") == ["a", "c", "b"]
    assert do(first, "earlier") == ["a", "c", "b"], "there is nothing before it"
    assert do(first, "later") == ["c", "a", "b"]
    assert do(first, "duplicate") == ["c", "a", "a", "b"]
    assert do(second, "delete") == ["c", "a", "a"]
    assert do(first, "nonsense") == ["c", "a", "a"]
    assert (
        AuditEvent.objects.filter(project=dashboard.project, action__startswith="chart.").count()
        == 7
    )


def test_a_dashboard_is_duplicated_with_its_charts_renamed_and_deleted(
    dashboard: Dashboard,
) -> None:
    add(dashboard, title="a", measure="cost")
    project, client = dashboard.project, client_of(dashboard.project)
    for name in ("Health (copy)", "Health (copy 2)"):
        client.post(reverse("dashboard:duplicate", args=[project.slug, dashboard.pk]))
        assert titles_of(project.dashboards.get(name=name)) == ["a"]
    client.post(
        reverse("dashboard:rename", args=[project.slug, dashboard.pk]), {"name": "  Well   being "}
    )
    dashboard.refresh_from_db()
    assert dashboard.name == "Well being"
    said = client.post(
        reverse("dashboard:rename", args=[project.slug, dashboard.pk]),
        {"name": "Health (copy)"},
        follow=True,
    )
    assert "A dashboard named “Health (copy)” already exists" in said.content.decode()
    client.post(reverse("dashboard:delete", args=[project.slug, dashboard.pk]))
    assert project.dashboards.count() == 2


@pytest.mark.parametrize("name", ["", " ", "x" * 81])
def test_a_dashboard_needs_a_name(project: Project, name: str) -> None:
    said = client_of(project).post(
        reverse("dashboard:create", args=[project.slug]), {"name": name}, follow=True
    )
    assert "Enter a name of at most" in said.content.decode() and not project.dashboards.exists()


def test_there_is_a_most_of_charts_and_dashboards(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_CHARTS", 1)
    monkeypatch.setattr(actions, "MAX_DASHBOARDS", 1)
    chart = add(dashboard, title="a")
    for refused in (
        lambda: add(dashboard, title="b"),
        lambda: actions.duplicate_chart(chart=chart, by=None),
        lambda: actions.create_dashboard(project=dashboard.project, name="Other", by=None),
        lambda: actions.duplicate_dashboard(dashboard=dashboard, by=None),
    ):
        with pytest.raises(actions.DashboardError):
            refused()
    with pytest.raises(actions.DashboardError, match="too long"):
        actions.change_chart(chart=chart, spec=Spec.of({"q": "x" * 5000}), by=None)


def test_viewers_look_and_change_nothing(dashboard: Dashboard) -> None:
    chart, project = add(dashboard, title="a"), dashboard.project
    client = client_of(project, Role.REVIEWER)
    for name, args in (
        ("dashboards", []),
        ("dashboard", [dashboard.pk]),
        ("chart", [chart.pk]),
        ("explore", []),
    ):
        page = client.get(reverse(f"dashboard:{name}", args=[project.slug, *args]))
        assert page.status_code == 200 and "Add chart" not in page.content.decode()
    assert (
        client.post(reverse("dashboard:delete", args=[project.slug, dashboard.pk])).status_code
        == 403
    )
    stranger = client_of(make_project())
    for name, pk in (("dashboard", dashboard.pk), ("chart", chart.pk)):
        assert (
            stranger.get(reverse(f"dashboard:{name}", args=[project.slug, pk])).status_code == 404
        )
    elsewhere = make_project()
    foreign = client_of(elsewhere)
    assert (
        foreign.get(reverse("dashboard:chart", args=[elsewhere.slug, chart.pk])).status_code == 404
    )
    given = {"query": "measure=runs", "chart": chart.pk}
    assert (
        foreign.post(reverse("dashboard:save_chart", args=[elsewhere.slug]), given).status_code
        == 404
    )


@pytest.mark.proof
def test_the_api_gives_the_same_figures(project: Project) -> None:
    make_failed(project, model="m1", latency_ms=100)
    make_trajectory(project, model="m2", outcome={"status": "unknown"})
    digest.run()
    client = Client(**key_headers(project))  # type: ignore[arg-type]
    answer = client.get(
        "/api/v1/metrics/", {"measure": "failure_rate", "by": "model", "since": "24h"}
    ).json()
    asked = query.ask(project, {"since": "24h"}, "failure_rate", "model")
    assert (answer["runs"], answer["unknown_outcomes"], answer["complete"], answer["bucket"]) == (
        2,
        1,
        True,
        "hour",
    )
    assert [(one["name"], one["whole"]["value"]) for one in answer["series"]] == [
        (one.name, one.whole.value) for one in asked.series
    ]
    assert "50.0% of the runs have no known outcome" in answer["note"]
    for wrong in (
        {},
        {"measure": "nonsense"},
        {"measure": "runs", "by": "x"},
        {"measure": "runs", "bucket": "year"},
    ):
        refused = client.get("/api/v1/metrics/", wrong)
        problem = "must be one of" if "measure" in wrong else "is required"
        assert refused.status_code == 400 and problem in refused.json()["error"]
