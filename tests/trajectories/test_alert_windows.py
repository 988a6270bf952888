"""What alerts of many projects measure together is what each would measure by itself."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.core.models import Project
from apps.core.timeouts import TooLong
from apps.trajectories import alerts, score_rows, step_figures
from apps.trajectories.actions.alerts import NewAlert, add, check_all
from apps.trajectories.actions.scores import receive
from apps.trajectories.metrics import query
from apps.trajectories.models import Alert
from apps.trajectories.scores import Sent
from apps.trajectories.windows import Window
from tests.factories import admin_of, make_project, row
from tests.trajectories.test_steps import USER, calling, ingest, reply

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
LENGTHS = (timedelta(minutes=10), timedelta(minutes=95), timedelta(days=3, hours=5))
FILTERS = {
    alerts.RUNS: (
        (),
        (("outcome", "failure"),),
        (("tool", "pay"),),
        (("agent_version", "2"),),
        (("agent", "none"),),
    ),
    alerts.STEPS: (
        (),
        (("kind", "tool"),),
        (("kind", "tool"), ("name", "pay"), ("status", "error")),
        (("agent_version", "2"),),
        (("name", "none"),),
    ),
    alerts.SCORES: (
        (("name", "helpful"),),
        (("name", "helpful"), ("source", "code")),
        (("name", "helpful"), ("kind", "yes_no")),
        (("name", "none"),),
    ),
}


def fill(project: Project, every: timedelta) -> None:
    """Runs of two versions, every while before NOW, of which some failed."""
    rows = []
    for n in range(40):
        bad = n % 3 == 0
        rows.append(
            row(
                f"{project.slug}-{n}",
                started_at=(NOW - every * n - timedelta(seconds=1)).isoformat(),
                agent={"name": "support", "version": str(n % 2 + 1)},
                outcome={"status": "failure" if bad else "success"},
                latency_ms=100.0 * (n + 1),
                usage={"input_tokens": n, "output_tokens": 5, "cost_usd": 0.01 * n},
                messages=[
                    USER,
                    calling(("a", "pay" if n % 4 else "search", "{}")),
                    reply("a", "Error: declined" if bad else "paid"),
                ],
            )
        )
    ingest(project, *rows)
    sent = [Sent(run=f"{project.slug}-{n}", name="helpful", value=n / 40) for n in range(20)]
    sent += [Sent(run=f"{project.slug}-{n}", name="helpful", value=True) for n in range(20, 25)]
    receive(project=project, sent=sent)
    for n, score in enumerate(project.scores.order_by("pk")):
        score.created_at = NOW - every * n - timedelta(seconds=1)
        score.save()


@pytest.fixture
def projects(project: Project) -> list[Project]:
    other = make_project()
    fill(project, timedelta(minutes=7))
    fill(other, timedelta(hours=3))
    return [project, other]


@pytest.mark.parametrize("source", FILTERS, ids=lambda source: source.route)
def test_together_as_by_itself(projects: list[Project], source: alerts.Source) -> None:
    windows = [
        Window(project.pk, filters, NOW - length, NOW)
        for project in projects
        for filters in FILTERS[source]
        for length in LENGTHS
    ]
    together = source.read_together(windows)
    by_pk = {project.pk: project for project in projects}
    alone = {window: source.read(by_pk[window.project], window.given) for window in windows}
    assert list(together) == windows
    assert [_rounded(together[one]) for one in windows] == [_rounded(alone[one]) for one in windows]
    assert any(alone.values()) and len({str(value) for value in alone.values()}) > 5


def _rounded(measured: Any) -> Any:
    """The order in which PostgreSQL adds changes the last digits of a sum."""
    if not is_dataclass(measured):
        return measured
    known = {field.name: getattr(measured, field.name) for field in fields(measured)}
    return {name: round(v, 9) if isinstance(v, float) else v for name, v in known.items()}


def test_what_cannot_be_read_together_is_left_out(
    projects: list[Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_out(source: alerts.Source, *filters: tuple[str, str]) -> bool:
        window = Window(projects[0].pk, filters, NOW - LENGTHS[1], NOW)
        return window not in source.read_together([window])

    assert left_out(alerts.RUNS, ("session", "a"))
    assert left_out(alerts.RUNS, ("tool", "pay"), ("outcome", "failure"))
    assert left_out(alerts.STEPS, ("duration_min", "1"))
    assert left_out(alerts.SCORES, ("source", "code"))
    assert left_out(alerts.SCORES, ("name", "helpful"), ("run", "a"))
    assert not left_out(alerts.STEPS)
    monkeypatch.setattr(step_figures, "READ", 5)
    assert left_out(alerts.STEPS)


def test_hours_of_too_many_runs_are_counted_whole(
    projects: list[Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(projects[0].pk, (), NOW - timedelta(minutes=100), NOW)
    exact = query.totals_of([window])[window]
    monkeypatch.setattr(query, "PART", 2)
    rounded = query.totals_of([window])[window]
    assert rounded.runs > exact.runs
    assert rounded == query.totals(projects[0], window.given).total


def alert(project: Project, **more: Any) -> Alert:
    given = {"name": "a", "measure": "failure_rate", "line": 0.2, "at_least": 1} | more
    return add(project=project, by=admin_of(project), given=NewAlert(**given))


def test_what_takes_too_long_together_is_measured_one_by_one(
    projects: list[Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [alert(project, measure="step_error_rate", filters="kind=tool") for project in projects]

    def too_long(windows: Any) -> Any:
        raise TooLong

    measure = alerts.MEASURES["step_error_rate"]
    slow = replace(measure, source=replace(measure.source, read_together=too_long))
    monkeypatch.setitem(alerts.MEASURES, "step_error_rate", slow)
    assert check_all(NOW) == 2
    for one in made:
        one.refresh_from_db()
        assert one.state == "firing" and one.n


def test_filters_that_are_gone_keep_no_other_from_being_measured(
    projects: list[Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = (alert(project) for project in projects)
    Alert.objects.filter(pk=gone.pk).update(filters="colour=red")
    asked = []
    monkeypatch.setattr(score_rows, "whole", asked.append)
    assert check_all(NOW) == 1
    gone.refresh_from_db()
    other.refresh_from_db()
    assert (gone.state, gone.value, gone.checked_at) == ("ok", None, NOW)
    assert other.state == "firing" and not asked
