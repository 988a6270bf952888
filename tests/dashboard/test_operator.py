"""The operator's page: over all projects, for superusers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import outbox
from apps.core.models import AuditEvent, Backup, Incident, Project, Role, Worker
from apps.core.tasks import back_up_now
from apps.core.watching import conditions, incidents, measures, own, probes
from apps.dashboard.operator import panels
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion
from tests.factories import make_adapter, make_endpoint, make_member, make_user
from tests.test_access import OPERATORS

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conditions, incidents):
        monkeypatch.setattr(module, "ask", lambda lane, work: work())
    monkeypatch.setattr(probes, "FRESH_S", 0.0)


@pytest.fixture
def operator(client: Client) -> Client:
    user = make_user("operator")
    user.is_superuser = True
    user.save()
    client.force_login(user)
    return client


ARGS: dict[str, list[Any]] = {
    "operator:mend": ["connections"],
    "operator:mute": [1],
    "operator:drain": [1],
}


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_to_others_it_does_not_exist(project: Project, name: str) -> None:
    url, owner = reverse(name, args=ARGS.get(name)), Client()
    owner.force_login(make_member(project, Role.OWNER))
    for method in ("get", "post"):
        assert getattr(owner, method)(url).status_code == 404
        answer = getattr(Client(), method)(url)
        assert answer.status_code == 302 and answer["Location"].startswith("/login/")
    assert "/operator/" not in owner.get(f"/p/{project.slug}/").content.decode()


def test_an_empty_installation_says_what_will_be_there(operator: Client) -> None:
    page = operator.get("/operator/").content.decode()
    empties = (
        "No workers",
        "No backups",
        "No jobs run or wait",
        "No model servers",
        "No base models",
    )
    for empty in empties:
        assert f"<b>{empty}</b>" in page
    assert operator.get("/operator/?x=1").status_code == 400
    assert 'href="/operator/"' in operator.get("/?all").content.decode()


def test_it_shows_machines_queues_servers_and_versions(
    operator: Client, project: Project, base: ModelVersion
) -> None:
    Worker.objects.create(
        name="train@gpu-1", queue="train", host="gpu-1", pid=7, memory_mb=2048, skew_s=1.5
    )
    server = make_endpoint(project).server
    measures.Computed().compute_due()
    page = operator.get("/operator/").content.decode()
    assert "train@gpu-1" in page and "2,048 MB" in page and "1.5 s" in page
    assert str(base) in page and "its folder names none" in page
    assert server.name in page and "PostgreSQL" in page and "trajectories_trajectory" in page


def test_a_button_mends_and_is_in_the_log(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    Worker.objects.create(name="eval@gone", queue="eval", host="gone", pid=7)
    Worker.objects.update(beat_at="2026-01-01T00:00:00Z")
    page = operator.get("/operator/").content.decode()
    assert "The worker eval@gone (process 7 on gone) has not been heard of." in page
    url = reverse("operator:mend", args=["worker_silent"])
    answer = operator.post(url, {"about": "eval@gone"}, follow=True)
    assert "Forgot the worker eval@gone." in answer.content.decode()
    assert not Worker.objects.exists()
    line = AuditEvent.objects.get(action="operator.mended")
    assert line.detail == {"label": "Forget", "of": "eval@gone"} and line.project is None
    for unknown in ("nothing", "schema"):  # the schema has no button
        assert operator.post(reverse("operator:mend", args=[unknown])).status_code == 404


def test_it_shows_backups_and_makes_one(
    operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Backup.objects.create(target="/b/one", finished_at=timezone.now(), size=2048)
    Backup.objects.create(target="/b/two", finished_at=timezone.now(), problem="The disk is full.")
    settings.FLYWHEEL_BACKUP_TARGET, posted = "/b", list[str]()
    monkeypatch.setattr(outbox, "post", lambda task, **_: posted.append(task))
    page = operator.get("/operator/").content.decode()
    for said in ("Every day at 03:00 UTC to", "2.0\xa0KB", "complete", "The disk is full."):
        assert said in page
    operator.post(reverse("operator:mend", args=["backup_late"]))
    assert posted == [back_up_now.name]


@pytest.mark.parametrize(
    "name", [one.name for one in conditions.declared() if one.button is not None]
)
def test_every_button_answers_for_what_is_not_there(operator: Client, name: str) -> None:
    answer = operator.post(reverse("operator:mend", args=[name]), {"about": "no/such:thing"})
    assert answer.status_code == 302


def test_idle_connections_are_ended(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this database, and never one's own."""
    with psycopg.connect(**_address(), autocommit=True) as idle, connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [idle.info.backend_pid])
        assert cursor.fetchone()
        monkeypatch.setattr(own, "IDLE", f"pid = {idle.info.backend_pid} OR pid = pg_backend_pid()")
        assert own._end_idle("", None) == "Ended 1 idle connections."
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
        cursor.execute("SELECT 1")


def _address() -> dict[str, Any]:
    wanted = connection.get_connection_params()
    return {key: wanted[key] for key in ("dbname", "user", "host") if key in wanted}


def test_a_muted_incident_alerts_nobody_for_a_day(operator: Client) -> None:
    row = Incident.objects.create(condition="disk_full", says="full", since=timezone.now())
    operator.post(reverse("operator:mute", args=[row.pk]))
    row.refresh_from_db()
    assert row.muted_until and row.alerted_at
    assert AuditEvent.objects.filter(action="operator.muted").count() == 1
    Incident.objects.update(ended_at=timezone.now())
    assert operator.post(reverse("operator:mute", args=[row.pk])).status_code == 404


def test_a_worker_is_drained_and_resumed(operator: Client) -> None:
    worker = Worker.objects.create(name="eval@host", queue="eval", host="host", pid=7)
    url = reverse("operator:drain", args=[worker.pk])
    operator.post(url)
    worker.refresh_from_db()
    assert worker.drained_at
    assert "drained" in operator.get("/operator/").content.decode()
    operator.post(url)
    worker.refresh_from_db()
    assert worker.drained_at is None
    actions = AuditEvent.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["operator.drained", "operator.resumed"]


def test_licenses_are_shown_with_what_was_made_from_a_base_and_where_it_answers(
    operator: Client, project: Project, base: ModelVersion, tmp_path: Path
) -> None:
    adapter = make_adapter(project, base, tmp_path)
    make_adapter(project, adapter, tmp_path)
    channel = Channel.objects.create(project=project, name="production", current=adapter)
    folder = Path(base.base)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (row,) = [row for row in panels.bases() if row.version == base]
    assert (row.license, row.made, row.channels) == ("apache-2.0", 2, [channel.name])
    page = operator.get("/operator/").content.decode()
    assert "apache-2.0" in page and base.get_absolute_url() in page
    folder.rename(tmp_path / "away")
    page = operator.get("/operator/").content.decode()
    assert "unknown: its folder is not on this machine" in page


def test_a_worker_of_another_version_and_todays_cost_are_shown(operator: Client) -> None:
    Worker.objects.create(name="eval@old", queue="eval", host="old", pid=7, version="0.0.9")
    page = operator.get("/operator/").content.decode()
    assert "version 0.0.9" in page and "not measured yet" in page
    measures.Computed().compute_due()
    page = operator.get("/operator/").content.decode()
    assert "Judges&#x27; budget" in page and "$0.00" in page and "trajectories_content" in page
