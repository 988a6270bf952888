"""Figures say what they lack: runs that have just arrived, and what nobody reported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.actions import store
from apps.trajectories.actions.alerts import NewAlert, add, check_all
from apps.trajectories.metrics.figures import short
from apps.trajectories.models import Arrival
from tests.factories import admin_of, make_key, make_member, row

pytestmark = pytest.mark.django_db
FIGURES = ("steps/metrics/?by=kind", "metrics/?measure=tokens", "scores/metrics/")


@pytest.fixture
def agent(project: Project) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_key(project)}"})


def told(agent: Client, path: str) -> dict[str, Any]:
    return agent.get(f"/api/v1/{path}").json()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("path", FIGURES)
def test_figures_say_that_runs_are_not_counted_yet(
    project: Project, agent: Client, path: str
) -> None:
    store.ingest(project=project, rows=[row("one"), row("two")])
    found = told(agent, path)
    assert not found["complete"] and found["uncounted_runs"] == 2
    assert "2 runs have just arrived and may be missing." in found["note"]
    digest.run()
    found = told(agent, path)
    assert found["complete"] and found["uncounted_runs"] == 0 and "arrived" not in found["note"]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("page", ["steps_chart", "scores_chart", "sums"])
def test_pages_say_it_too(project: Project, client: Client, page: str) -> None:
    store.ingest(project=project, rows=[row("one")])
    client.force_login(make_member(project))
    address = reverse(f"trajectories:{page}", args=[project.slug])
    assert "just arrived and may be missing" in " ".join(
        client.get(address).content.decode().split()
    )
    digest.run()
    assert b"just arrived" not in client.get(address).content


def test_what_could_not_be_digested_stays_missing(project: Project, agent: Client) -> None:
    store.ingest(project=project, rows=[row("one")])
    Arrival.objects.update(problem="no")
    digest.run()
    assert told(agent, FIGURES[0])["uncounted_runs"] == 1


def test_tokens_and_money_that_nobody_reported_are_unknown(project: Project, agent: Client) -> None:
    spans = [
        {"kind": "llm", "name": "chat", "input_tokens": 7, "duration_ms": 2},
        {"kind": "tool", "name": "search", "duration_ms": 1},
    ]
    one = row("one", metadata={"steps": spans}, usage={"input_tokens": 7, "output_tokens": 1})
    store.ingest(project=project, rows=[one, row("two", agent={"name": "other"}, usage={})])
    digest.run()
    groups = told(agent, FIGURES[0])["groups"]
    assert {group["value"]: group["tokens"] for group in groups}["tool"] is None
    for measure in ("tokens", "input_tokens", "reasoning_tokens", "cost"):
        (series,) = told(agent, f"metrics/?measure={measure}&agent=other")["series"]
        assert series["whole"]["value"] is None, measure
    whole = told(agent, "metrics/?measure=tokens")["series"][0]["whole"]
    assert whole["value"] == 8


def test_an_alert_takes_no_backlog_for_silence(project: Project) -> None:
    now = timezone.now()
    given = NewAlert(name="few", measure="runs", condition="below", line=2, window_minutes=5)
    alert = add(project=project, by=admin_of(project), given=given)
    began = now - timedelta(minutes=4)
    store.ingest(
        project=project,
        rows=[row(f"run-{n}", started_at=began.isoformat()) for n in range(3)],
    )
    digest.run()
    later = now + timedelta(minutes=3)
    store.ingest(project=project, rows=[row("four", started_at=later.isoformat())])
    Arrival.objects.update(at=now)  # and waits since then
    assert check_all(later) == 0
    alert.refresh_from_db()
    assert alert.state == "ok" and alert.value == 3
    check_all(now + timedelta(minutes=6))  # nothing of its window is known
    alert.refresh_from_db()
    assert alert.value is None and alert.unmeasured_since


def test_a_name_turns_no_figure_round() -> None:
    assert short("sh\u202eex") == "\u2068sh\u202eex\u202c\u2069" and short("search") == "search"
