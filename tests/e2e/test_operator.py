"""The operator's page, empty and full, stands every check."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from playwright.sync_api import expect

from apps.core.actions import create_project
from apps.core.models import Incident, JobState, Worker
from apps.core.watching import conditions, measures, probes
from apps.core.watching.conditions import Lane
from apps.registry.models import Health, Server, ServerProbe
from tests.e2e.checks import LOOKED_AT, wrong_with
from tests.e2e.conftest import log_in
from tests.factories import make_endpoint


def fill(user: Any) -> None:
    """Two machines, a job, servers, and something wrong of each kind of row."""
    now = timezone.now()
    project = create_project(slug="support-agent", name="Support agent", by=user)
    for number, (queue, host) in enumerate(
        [("default", "web-1"), ("ingest", "web-1"), ("train", "gpu-1"), ("eval", "gpu-1")]
    ):
        Worker.objects.create(
            name=f"{queue}@1.{host}",
            queue=queue,
            host=host,
            pid=100 + number,
            memory_mb=350 * (number + 1),
            skew_s=0.02 if host == "web-1" else -8.5,
            drained_at=now if queue == "eval" else None,
        )
    Worker.objects.filter(queue="ingest").update(beat_at=now - timedelta(minutes=3))
    version = make_endpoint(project, name="live")
    Server.objects.filter(pk=version.server_id).update(
        health=Health.DOWN, health_detail="No answer within 10 s.", checked_at=now
    )
    ServerProbe.objects.update(state=JobState.RUNNING, worker="gpu-1:103")
    ServerProbe.objects.create(
        project=project,
        server=version.server,
        name="Probe of live",
        state=JobState.FAILED,
        attempt=3,
        finished_at=now,
    )
    Incident.objects.create(
        condition="broker",
        says="Timeout connecting to server",
        since=now - timedelta(hours=2),
        ended_at=now - timedelta(hours=1),
    )
    measures.Computed().compute_due()


@pytest.fixture
def operator(user: Any, page: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(probes, "FRESH_S", 0.0)
    user.is_superuser = True
    user.save()
    log_in(page)
    yield page
    conditions.ask(
        Lane.DATABASE, lambda: connection.close()
    )  # else nobody can drop the tests' database


def test_the_operators_page_stands_every_check(operator: Any, user: Any) -> None:
    assert wrong_with(operator, "/operator/", 0) == []
    expect(operator.locator("main")).to_contain_text("No jobs run or wait")
    fill(user)
    assert wrong_with(operator, "/operator/", LOOKED_AT) == []
    expect(operator.locator("main")).to_contain_text("A worker stopped answering")
    row = operator.locator("tr", has_text="ingest@1.web-1").first
    row.get_by_role("button", name="Forget").click()
    expect(operator.locator("main")).to_contain_text("Forgot the worker ingest@1.web-1.")
