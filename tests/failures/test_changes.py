"""New versions and models against what was before them: when they began, the rates, the difference
and its interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.diagnose import classify_project
from apps.failures.changes import Change, changes, marked
from apps.failures.rates import Rate
from apps.trajectories import digest
from tests.factories import make_failed, make_member, make_project, make_trajectory
from tests.shared import copied, once

AT = datetime(2026, 1, 1, tzinfo=UTC)


def change(before: tuple[int, int], after: tuple[int, int]) -> Change:
    return Change(AT, "version", "2", Rate("1", *before), Rate("2", *after))


@pytest.mark.parametrize(
    ("before", "after", "interval", "verdict"),
    [
        # Newcombe (1998), table II, (a) and (c): 56/70 against 48/80, and 6/7 against 2/7.
        ((48, 80), (56, 70), (0.0524, 0.3339), "worse"),
        ((2, 7), (6, 7), (0.0582, 0.8062), "worse"),
        ((56, 70), (48, 80), (-0.3339, -0.0524), "better"),
        ((5, 56), (0, 29), (-0.1926, 0.0381), "unclear"),
        ((0, 10), (0, 10), (-0.2775, 0.2775), "unclear"),
    ],
)
def test_the_difference_has_newcombes_interval(
    before: tuple[int, int], after: tuple[int, int], interval: tuple[float, float], verdict: str
) -> None:
    made = change(before, after)
    assert made.interval == pytest.approx(interval, abs=1e-4) and made.verdict == verdict


def test_without_runs_there_is_no_difference() -> None:
    made = change((0, 0), (3, 4))
    assert made.difference is None and made.verdict == "unclear" and made.difference_text == ""


def began(days: float, name: str) -> Change:
    return Change(AT + timedelta(days=days), "version", name, Rate("", 0, 0), Rate("", 0, 0))


def test_marks_that_are_close_share_a_name_and_none_hides_another() -> None:
    figure = {
        "layout": {},
        "data": [{"x": [AT.isoformat(), (AT + timedelta(days=10)).isoformat()]}],
    }
    layout = marked(figure, [began(9, "4"), began(1, "<b>1"), began(1, "2"), began(3, "3")])[
        "layout"
    ]
    assert len(layout["shapes"]) == 3
    assert [(note["text"], note["xanchor"]) for note in layout["annotations"]] == [
        ("‹b›1, 2, 3", "left"),
        ("4", "right"),
    ]


def ran(
    project: Project,
    days: int,
    version: str,
    model: str = "m",
    failed: bool = False,
    agent: str = "a",
) -> None:
    make = make_failed if failed else make_trajectory
    at = (timezone.now() - timedelta(days=days)).isoformat()
    make(
        project,
        agent={"name": agent, "version": version},
        model=model,
        started_at=at,
        outcome={"status": "success"},
    )


def made_project(_: Path) -> Project:
    project = make_project()
    for failed in (True, True, False):
        ran(project, 9, "1", failed=failed)
    for failed in (True, False):
        ran(project, 5, "2", failed=failed)
    ran(project, 3, "2", model="n")
    ran(project, 2, "1", failed=True)  # an old version, still in service
    classify_project(project=project)
    digest.run()
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def test_each_new_version_and_model_is_set_against_the_one_before(project: Project) -> None:
    model, version = changes(project, None)
    assert (version.kind, version.name) == ("version", "2")
    assert (version.before.failed, version.before.n, version.after.failed, version.after.n) == (
        3,
        4,
        1,
        3,
    )
    assert (model.kind, model.name, model.before.name, model.before.n, model.after.n) == (
        "model",
        "n",
        "m",
        6,
        1,
    )


def test_only_changes_of_the_time_that_is_shown(project: Project) -> None:
    (model,) = changes(project, timezone.now() - timedelta(days=4))
    assert model.name == "n" and (model.before.n, model.after.n) == (1, 1)
    assert changes(project, timezone.now() - timedelta(hours=1)) == []


def test_agents_are_apart_and_named(project: Project) -> None:
    ran(project, 4, "7", agent="b")
    digest.run()
    assert [item.name for item in changes(project, None)] == ["a n", "a 2"]


def test_the_charts_have_the_marks_and_the_table(project: Project) -> None:
    client = Client()
    client.force_login(make_member(project))
    page = client.get(reverse("failures:charts", args=[project.slug]), {"since": "30d"})
    assert [item.name for item in page.context["changes"]] == ["n", "2"]
    figure = dict(page.context["figures"])["rate-by-time"]
    assert len(figure["layout"]["shapes"]) == 2
    assert [note["text"] for note in figure["layout"]["annotations"]] == [
        "2, n"
    ]  # two days apart in a week
    assert 'id="changes" hx-swap-oob="true"' in page.content.decode()
    assert b"-41.7 pp" in page.content and b"New versions and models" in page.content


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (0, "less than 1 h ago"),
        (59, "less than 1 h ago"),
        (60, "less than 2 h ago"),
        (130, "1 to 2 h ago"),
        (35 * 60 + 5, "34 to 35 h ago"),
        (36 * 60, "2 d ago"),
    ],
)
def test_a_version_of_which_only_the_hour_is_known_has_no_age_in_minutes(
    minutes: int, said: str
) -> None:
    """The list says of the same run how long ago it started."""
    hour = timezone.now() - timedelta(minutes=minutes, seconds=1)
    change = began(0, "2")
    shown = render_to_string(
        "failures/_case_charts.html",
        {"changes": [replace(change, at=hour)], "figures": [], "project": Project(slug="p")},
    )
    assert f">{said}</time>" in shown


def test_without_a_change_there_is_no_table(db: None) -> None:
    project = make_project()
    ran(project, 2, "1", failed=True)
    ran(project, 1, "1")
    classify_project(project=project)
    digest.run()
    assert (
        changes(project, None) == []
        and "shapes" not in dict(rates.figures(project, None))["rate-by-time"]["layout"]
    )


def test_where_nothing_failed_there_is_nothing_to_draw(db: None) -> None:
    project = make_project()
    ran(project, 2, "1")
    ran(project, 1, "1")
    digest.run()
    assert list(rates.figures(project, None)) == []
