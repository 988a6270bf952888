"""GET /metrics: who may read it, and what it says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from apps.core.models import Project
from apps.core.watching import disks, measures
from apps.failures.models import JudgeDay, Rubric
from apps.webhooks.models import Delivery, Webhook
from flywheel.metrics import door_of
from flywheel.version import VERSION
from tests.factories import key_headers, row

TOKEN = "0123456789abcdef0123456789abcdef"


def families(client: Client) -> dict[str, dict[tuple[str, ...], float]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.content
    return {
        family.name: {(s.name, *s.labels.values()): s.value for s in family.samples}
        for family in text_string_to_metric_families(answer.content.decode())
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("token", "proxies", "meta", "status"),
    [
        ("", 0, {}, 200),
        ("", 0, {"REMOTE_ADDR": "::1"}, 200),
        ("", 0, {"REMOTE_ADDR": "10.0.0.7"}, 401),
        ("", 0, {"REMOTE_ADDR": "10.0.0.7", "HTTP_AUTHORIZATION": "Bearer "}, 401),
        ("", 0, {"HTTP_X_FORWARDED_FOR": "127.0.0.1"}, 401),
        ("", 0, {"HTTP_FORWARDED": "for=127.0.0.1"}, 401),
        ("", 1, {}, 401),
        (TOKEN, 1, {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}, 200),
        (TOKEN, 0, {"REMOTE_ADDR": "10.0.0.7", "HTTP_AUTHORIZATION": f"Bearer {TOKEN}x"}, 401),
        (TOKEN, 0, {"REMOTE_ADDR": "10.0.0.7", "HTTP_AUTHORIZATION": "Bearer ä"}, 401),
    ],
)
def test_operators_and_this_machine_read_metrics(
    client: Client, settings: object, token: str, proxies: int, meta: dict[str, str], status: int
) -> None:
    settings.FLYWHEEL_METRICS_TOKEN = token  # type: ignore[attr-defined]
    settings.FLYWHEEL_PROXIES = proxies  # type: ignore[attr-defined]
    assert client.get("/metrics", **meta).status_code == status  # type: ignore[arg-type]


@pytest.mark.django_db
def test_it_says_what_is_measured_and_names_no_project(client: Client, project: Project) -> None:
    project.slug = "the-secret-project"
    project.save()
    before = families(client).get("flywheel_rows", {})
    sent = client.post(
        "/api/v1/trajectories/",
        row(name="a"),
        content_type="application/json",
        **key_headers(project),
    )
    assert sent.status_code == 201
    measures.Computed().compute_due()
    found = families(client)
    key = "flywheel_rows_total", "resent", "accepted"
    assert found["flywheel_rows"][key] == before.get(key, 0) + 1
    for one in measures.declared():
        assert found[one.name] or one.labels, one.name
        assert (
            found["flywheel_measure_age_seconds"][("flywheel_measure_age_seconds", one.name)] < 60
        )
    assert found["flywheel_database_bytes"][("flywheel_database_bytes",)] > 1e6
    assert found["flywheel_partitions"][("flywheel_partitions", "trajectories_trajectory")] >= 2
    assert found["flywheel_queue_length"][("flywheel_queue_length", "train")] >= 0
    assert found["flywheel_condition"][("flywheel_condition", "database", "critical")] == 0
    assert "secret-project" not in client.get("/metrics").content.decode()


@pytest.mark.parametrize(
    ("path", "door"),
    [
        ("/v1/traces", "otlp"),
        ("/api/public/ingestion", "langfuse"),
        ("/api/v1/trajectories/batch/", "trajectories"),
        ("/api/v1/models/", "api"),
        ("/v1/environments/x/seed", "environments"),
        ("/p/my-agent/failures/", "pages"),
    ],
)
def test_a_path_has_a_door(path: str, door: str) -> None:
    assert door_of(path) == door
    assert re.fullmatch("[a-z]+", door)


@pytest.mark.django_db
def test_each_disk_is_there_once_by_its_first_place(
    client: Client, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = {"data": 1, "spool": 1, "models": 2}
    for name in devices:
        (tmp_path / name).mkdir()
    settings.FLYWHEEL_DATA_DIR = tmp_path / "data"
    settings.FLYWHEEL_ENDPOINT_SPOOL = str(tmp_path / "spool")
    settings.FLYWHEEL_MODEL_FOLDERS = [str(tmp_path / "models"), str(tmp_path / "not-there")]
    settings.FLYWHEEL_ENVIRONMENTS_DIR = tmp_path / "not-there-either"
    stat = Path.stat

    def on_its_own(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        device = devices.get(path.name)
        return SimpleNamespace(st_dev=device, st_mode=found.st_mode) if device else found

    monkeypatch.setattr(Path, "stat", on_its_own)
    monkeypatch.setattr(disks, "wants_postgres", lambda: False)
    assert [(disk.place, disk.folder) for disk in disks.disks()] == [
        ("data", str(tmp_path / "data")),
        ("models", str(tmp_path / "models")),
    ]


@pytest.mark.django_db
def test_money_and_backlogs_are_measured(client: Client, project: Project) -> None:
    now = timezone.now()
    Rubric.objects.create(
        project=project, base_url="http://judge/v1", model="j", usd_per_day=7, is_on=True
    )
    JudgeDay.objects.create(project=project, day=now.date(), asked=3, usd=1.5)
    hook = Webhook.objects.create(
        project=project,
        url="https://example.com/",
        events=["evaluation.finished"],
        failing_since=now,
    )
    Delivery.objects.create(
        webhook=hook,
        event="evaluation.finished",
        subject="x",
        body="{}",
        due_at=now - timedelta(hours=1),
    )
    measures.Computed().compute_due()
    found = {
        (sample[0].removeprefix("flywheel_"), *sample[1:]): value
        for values in families(client).values()
        for sample, value in values.items()
    }
    assert found["judge_usd_today",] == 1.5 and found["judge_budget_usd_today",] == 7
    assert found["webhooks", "failing"] == 1 and found["webhooks", "enabled"] == 0
    assert found["webhook_due",] == 1 and found["webhook_oldest_seconds",] > 3000
    assert found["database_table_bytes", "trajectories_trajectory"] > 0
    assert found["database_table_bytes", "core"] > 0
    assert found["info", VERSION] == 1
    assert found["managed_server_hours_today",] == 0 and found["runs_usd_today",] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/metrics"])
def test_what_watches_asks_by_the_address_of_a_machine(path: str) -> None:
    """Prometheus and balancers name no host of ALLOWED_HOSTS; pages want one."""
    ask = Client(headers={"host": "web:8000"}, raise_request_exception=False).get
    assert ask(path).status_code == 200
    assert ask("/accounts/login/").status_code == 400
