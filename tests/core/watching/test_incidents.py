"""Each incident is seen on /readyz, in metrics, on the operator's page and by the doctor, and
operators are sent it, once, and when it is over.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.core import mail
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from redis.backoff import NoBackoff
from redis.retry import Retry

from apps.core import schema
from apps.core.models import Incident, JobState, Project, Worker
from apps.core.watching import disks, incidents, measures, own, undelivered, watcher
from apps.core.watching.alerts import try_out
from apps.core.watching.told import CLAIM, Told
from apps.promotion.policies import channel_of
from apps.registry.models import Health, Server, ServerProbe
from apps.trajectories import partitions
from apps.trajectories.models import Arrival
from flywheel import alive
from tests.factories import make_endpoint, make_user

Patch = pytest.MonkeyPatch


@dataclass
class Planted:
    """An incident: its condition, the part of /readyz that is down, and how it is planted."""

    condition: str
    plant: Callable[[Project, Patch], None]
    part: str = ""
    about: str = ""


def worker(project: Project, patch: Patch) -> None:
    Worker.objects.create(name="default@1.host", queue="default", host="host", pid=7)
    Worker.objects.update(beat_at=timezone.now() - timedelta(minutes=1))


def no_worker(project: Project, patch: Patch) -> None:
    alive.client().delete(alive.KEY.format("eval"))


def no_beat(project: Project, patch: Patch) -> None:
    alive.client().delete(alive.KEY.format(alive.BEAT))


def no_broker(project: Project, patch: Patch) -> None:
    once = Retry(NoBackoff(), 0)
    nowhere = redis.Redis(unix_socket_path="/nonexistent/valkey.sock", retry=once)
    patch.setattr(alive, "client", lambda: nowhere)


def few_connections(project: Project, patch: Patch) -> None:
    patch.setattr(own, "FEW_CONNECTIONS", 0.0)


def no_partitions(project: Project, patch: Patch) -> None:
    patch.setattr(partitions, "missing_ahead", lambda: [timezone.now()])


def other_schema(project: Project, patch: Patch) -> None:
    patch.setitem(schema._digests(), "core.0001_initial", "of another version")


def server_down(project: Project, patch: Patch) -> None:
    version = make_endpoint(project, name="live")
    channel = channel_of(project)
    type(channel).objects.filter(pk=channel.pk).update(current=version)
    Server.objects.filter(pk=version.server_id).update(
        health=Health.DOWN, health_detail="timed out"
    )


def poisoned(project: Project, patch: Patch) -> None:
    lost = {"state": JobState.FAILED, "attempt": 3, "max_attempts": 3}
    server = make_endpoint(project).server
    ServerProbe.objects.create(
        project=project, server=server, name="x", finished_at=timezone.now(), **lost
    )


def disk(used: int) -> Callable[[Project, Patch], None]:
    def plant(project: Project, patch: Patch) -> None:
        usage = SimpleNamespace(used=used * 2**30, free=(100 - used) * 2**30)
        patch.setattr(disks.shutil, "disk_usage", lambda path: usage)

    return plant


def skewed(project: Project, patch: Patch) -> None:
    Worker.objects.create(name="eval@host", queue="eval", host="host", pid=7, skew_s=-600)


def late(project: Project, patch: Patch) -> None:
    Arrival.objects.create(project=project, at=timezone.now() - timedelta(minutes=10))


INCIDENTS = [
    Planted("worker_silent", worker, about="default@1.host"),
    Planted("queue_unserved", no_worker, "queues", "eval"),
    Planted("beat_silent", no_beat, "beat"),
    Planted("broker", no_broker, "broker"),
    Planted("connections", few_connections),
    Planted("schema", other_schema, "schema"),
    Planted("server_down", server_down, "servers"),
    Planted("job_poisoned", poisoned),
    Planted("disk_full", disk(96), "disk"),
    Planted("disk_nearly_full", disk(90)),
    Planted("clock_skew", skewed, about="host"),
    Planted("partition_missing", no_partitions),
    Planted("digest_late", late, "digest", "digested"),
]


@pytest.fixture
def operator(client: Client, settings: Any, monkeypatch: Patch) -> Client:
    monkeypatch.setattr(measures.Computed, "compute_due", lambda self: None)
    settings.FLYWHEEL_MAIL = True
    settings.FLYWHEEL_OPERATOR_MAIL = ["operator@example.com"]
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    user = make_user()
    user.is_superuser = True
    user.save()
    client.force_login(user)
    return client


@contextmanager
def later(patch: Patch, seconds: float) -> Iterator[None]:
    with patch.context() as moved:
        at = timezone.now() + timedelta(seconds=seconds)
        moved.setattr(watcher.timezone, "now", lambda: at)
        yield


@pytest.mark.more(rows=2)
@pytest.mark.django_db
@pytest.mark.parametrize("planted", INCIDENTS, ids=lambda planted: planted.condition)
def test_an_incident_is_seen_everywhere(
    operator: Client, project: Project, monkeypatch: Patch, planted: Planted
) -> None:
    disk(50)(project, monkeypatch)
    watching = watcher.Watcher()
    watching.look()
    assert mail.outbox == []
    with monkeypatch.context() as patch:
        planted.plant(project, patch)

        watching.look()
        with later(monkeypatch, 30):
            watching.look()
        with later(monkeypatch, 40):
            watching.look()
        (sent,) = [one for one in mail.outbox if planted.condition in told_of(one)]
        assert sent.to == ["operator@example.com"] and "What to do" in sent.body
        row = Incident.objects.open().get(condition=planted.condition)
        assert row.alerted_at and planted.about in row.about

        ready = operator.get("/readyz")
        parts, warnings = ready.json()["parts"], ready.json()["warnings"]
        assert ready.status_code == (503 if planted.part else 200), parts
        assert operator.get("/readyz?parts=schema").json().keys() == {"ready", "parts"}
        (found,) = parts[planted.part]["wrong"] if planted.part else warnings
        assert found["condition"] == planted.condition and found["since"] and found["todo"]
        assert project.slug not in ready.content.decode()

        text = operator.get("/metrics").content.decode()
        (family,) = [
            one for one in text_string_to_metric_families(text) if one.name == "flywheel_condition"
        ]
        values = {sample.labels["condition"]: sample.value for sample in family.samples}
        assert values[planted.condition] == 1

        page = operator.get("/operator/").content.decode()
        assert f"operations.md#{planted.condition.replace('_', '-')}" in page
        assert f"/operator/incidents/{row.pk}/mute/" in page

        out = StringIO()
        try:
            call_command("doctor", json=True, stdout=out)
        except SystemExit as end:
            assert end.code == 1
        assert planted.condition in {
            one["condition"] for one in json.loads(out.getvalue())["wrong"]
        }

    Worker.objects.all().delete()
    Arrival.objects.all().delete()
    Server.objects.update(health=Health.HEALTHY)
    ServerProbe.objects.all().delete()
    for name in ("eval", alive.BEAT):
        alive.say(name)
    mail.outbox.clear()
    watching.look()
    assert not Incident.objects.open().exists()
    assert any(one.subject.startswith("[Flywheel] Over: ") for one in mail.outbox)


@pytest.mark.django_db
def test_what_to_do_about_another_schema_is_said_in_the_words_of_a_start(
    project: Project, monkeypatch: Patch
) -> None:
    other_schema(project, monkeypatch)
    with pytest.raises(CommandError) as refused:
        schema.require_migratable()
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)
    (title,) = [line for line in out.getvalue().splitlines() if "another schema" in line]
    lines = out.getvalue().partition(title)[2].splitlines()[1:4]
    assert str(refused.value) in lines[0] and "name another database" in lines[0]
    assert "prepare" not in "".join(lines)


def told_of(message: Any) -> set[str]:
    from apps.core.watching.conditions import declared

    return {one.name for one in declared() if one.title in message.subject + message.body}


@pytest.mark.django_db
def test_it_says_which_processes_have_most_connections(monkeypatch: Patch) -> None:
    few_connections(None, monkeypatch)  # type: ignore[arg-type]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL application_name = 'flywheel-test'")
        (finding,) = own.few_connections()
    assert re.search(
        r"^\d+ of \d+ connections are in use, most by: .*1 flywheel-test", finding.says
    )


@contextmanager
def database_away(monkeypatch: Patch) -> Iterator[None]:
    def away(*given: Any, **options: Any) -> None:
        raise OperationalError("The database server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(watcher, "connection", SimpleNamespace(close=lambda: None))
        patch.setattr(connection, "cursor", away)
        patch.setattr(incidents, "store", away)
        yield


@pytest.fixture
def no_claims() -> Iterator[None]:
    """Of another test's alerts."""

    def forget() -> None:
        for name in alive.client().scan_iter(CLAIM.format("*", "*")):
            alive.client().delete(name)

    forget()
    yield
    forget()


def subjects() -> list[str]:
    return [one.subject.removeprefix("[Flywheel] ") for one in mail.outbox]


@pytest.mark.django_db
@pytest.mark.usefixtures("no_claims")
def test_where_the_database_is_away_operators_are_alerted_all_the_same(
    operator: Client, monkeypatch: Patch
) -> None:
    """Once, and once more when it is over."""
    disk(50)(None, monkeypatch)  # type: ignore[arg-type]
    watching = watcher.Watcher()
    with database_away(monkeypatch):
        watching.look()
        watching.look()
        (sent,) = mail.outbox
        assert sent.subject == "[Flywheel] Critical: The database does not answer"
        ready = operator.get("/readyz")
        assert ready.status_code == 503
        parts = ready.json()["parts"]
        assert parts["database"]["state"] == "down" and parts["schema"]["state"] == "unknown"
        assert parts["broker"] == {"state": "ok"}
        assert (
            'condition="database",severity="critical"} 1.0'
            in operator.get("/metrics").content.decode()
        )
    watching.look()
    watching.look()
    assert [one.subject for one in mail.outbox[1:]] == [
        "[Flywheel] Over: The database does not answer"
    ]


@pytest.mark.django_db
@pytest.mark.usefixtures("no_claims")
def test_what_was_sent_while_the_database_was_away_is_not_sent_again(
    operator: Client, monkeypatch: Patch, tmp_path: Path
) -> None:
    disk(50)(None, monkeypatch)  # type: ignore[arg-type]
    told = tmp_path / "told.json"
    with database_away(monkeypatch):
        watcher.Watcher(Told(told)).look()
        watcher.Watcher(Told(told)).look()  # the next process of this machine
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "another")
            watcher.Watcher(Told(tmp_path / "of another machine.json")).look()
    assert subjects() == ["Critical: The database does not answer"]
    again = watcher.Watcher(Told(told))
    again.look()
    again.look()
    assert subjects()[1:] == ["Over: The database does not answer"]
    with database_away(monkeypatch):
        again.look()
    assert len(mail.outbox) == 3, "another time is another incident"


@pytest.mark.django_db
@pytest.mark.usefixtures("no_claims")
def test_what_the_database_knows_is_not_sent_again_once_it_is_away(
    operator: Client, monkeypatch: Patch, tmp_path: Path
) -> None:
    disk(96)(None, monkeypatch)  # type: ignore[arg-type]
    told = tmp_path / "told.json"
    watcher.Watcher(Told(told)).look()
    with database_away(monkeypatch):
        watcher.Watcher(Told(told)).look()
    again = watcher.Watcher(Told(told))
    again.look()
    assert [one.partition(" (")[0] for one in subjects()] == [
        "Critical: A disk is full",
        "Critical: The database does not answer",
        "Over: The database does not answer",
    ]
    disk(50)(None, monkeypatch)  # type: ignore[arg-type]
    again.look()
    again.look()
    assert len(mail.outbox) == 4 and "Over: A disk is full" in subjects()[3]


@pytest.mark.django_db
def test_an_alert_that_could_not_be_sent_is_sent_again(
    operator: Client, project: Project, monkeypatch: Patch
) -> None:
    disk(96)(project, monkeypatch)
    watching = watcher.Watcher()
    with monkeypatch.context() as patch:
        patch.setattr("django.core.mail.EmailMessage.send", _refused)
        watching.look()
    assert mail.outbox == []
    watching.look()
    watching.look()
    assert len(mail.outbox) == 1


def _refused(*given: Any, **options: Any) -> int:
    raise OSError("no mail server")


def doctor() -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("doctor", stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_that_operators_are_not_reached_is_a_condition(
    operator: Client, project: Project, monkeypatch: Patch, settings: Any, data_dir: Path
) -> None:
    settings.FLYWHEEL_DATA_DIR = data_dir
    disk(96)(project, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("django.core.mail.EmailMessage.send", _refused)
        watcher.Watcher().look()
        said = doctor()
        assert "Operators are not reached" in said
        assert "The last alert could not be sent by mail: no mail server." in said
        assert try_out() == "Not sent by mail: no mail server."
        since = undelivered.ways()["mail"][0]
        assert try_out() and undelivered.ways()["mail"][0] == since
    page = operator.get("/operator/").content.decode()
    assert "Send a test alert" in page
    assert try_out() == "Sent by mail." and "This is a test" in mail.outbox[-1].body
    assert "Operators are not reached" not in doctor()


def test_a_test_says_that_nobody_is_alerted(settings: Any, data_dir: Path) -> None:
    settings.FLYWHEEL_DATA_DIR, settings.FLYWHEEL_MAIL = data_dir, False
    settings.FLYWHEEL_OPERATOR_WEBHOOK = ""
    assert "Nobody is alerted" in try_out()
