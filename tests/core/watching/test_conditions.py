"""What is wrong, as each condition finds it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from django.conf import settings
from django.db import DatabaseError, OperationalError, connection
from django.test import Client
from django.utils import timezone
from psycopg.errors import TooManyConnections

from apps.core import lags
from apps.core.management.commands import doctor
from apps.core.models import Incident
from apps.core.watching import conditions, incidents, own, probes
from apps.core.watching.conditions import (
    NO_ANSWER,
    Checked,
    Condition,
    Finding,
    Lane,
    NoAnswer,
    Severity,
    Thread,
    Unknown,
    check_all,
    declared,
    named,
)
from apps.core.watching.incidents import Memory
from apps.core.watching.probes import part_json
from apps.trajectories import watched
from flywheel import embedded
from flywheel.logs import PROBES
from flywheel.postgres.full import is_full


def of(name: str, check: object, **more: object) -> Condition:
    return Condition(name, name, "Mend it.", check, **more)  # type: ignore[arg-type]


@pytest.mark.django_db
def test_nothing_is_wrong_with_a_well_installation() -> None:
    wrong = [
        (one.condition.name, one.findings, one.unknown)
        for one in check_all()
        if (one.findings or one.unknown) and not one.condition.name.startswith("disk")
    ]
    assert wrong == []


def test_every_condition_says_what_to_do() -> None:
    for one in declared():
        assert one.title[0].isupper() and not one.title.endswith(".")
        assert one.todo.endswith(".")


@pytest.mark.django_db
def test_where_the_database_is_away_its_other_conditions_are_unknown() -> None:
    def away() -> list[Finding]:
        raise DatabaseError("connection refused")

    root = of("root", away)
    other = of("other", lambda: [Finding("never asked")])
    machine = of("machine", lambda: [Finding("seen")], lane=Lane.MACHINE)
    first, second, third = check_all([root, other, machine])
    assert "connection refused" in first.findings[0].says and not first.unknown
    assert second.unknown == "The database does not answer." and not second.findings
    assert third.findings == [Finding("seen")]


FULL = (
    'connection failed: connection to server on socket "/run/.s.PGSQL.5432" failed: FATAL:  sorry,'
    " too many clients already"
)


@pytest.mark.django_db
def test_where_all_connections_are_used_they_are_the_fault() -> None:
    def refused() -> list[Finding]:
        raise OperationalError(FULL)

    root = of("root", refused, part="database")
    for conditions_of in (declared(), [one for one in declared() if one.part]):
        others = [one for one in conditions_of if one.name not in ("database", "connections")]
        checked = check_all([root, *others])
        assert checked[0].unknown and not checked[0].findings
        assert (checked[1].condition.name, checked[1].condition.part) == ("connections", "database")
        (finding,) = checked[1].findings
        assert finding.says == (
            "All connections that PostgreSQL allows are in use (too many clients already)."
        )
        of_database = [one for one in checked[2:] if one.condition.lane == Lane.DATABASE]
        assert len(of_database) > 3
        assert conditions.unknown(checked).keys() == {finding.says}, "one reason for all"
        part = part_json("database", checked, Memory().see(checked, timezone.now()))
        assert part["state"] == "down"
        assert [wrong["condition"] for wrong in part["wrong"]] == ["connections"]


@pytest.mark.django_db(transaction=True)
def test_who_looks_keeps_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    connection.close()
    assert check_all([of("root", lambda: [Finding("seen")])])[0].findings
    kept = connection.connection
    assert check_all([of("root", list)])[0].findings == []
    assert connection.connection is kept and not kept.closed


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "flywheel"',
        "FATAL:  no more connections allowed (max_client_conn)",
    ],
)
def test_a_server_without_connections_is_told_from_one_that_is_away(text: str) -> None:
    error = OperationalError(text)
    wrapped = DatabaseError("connection failed")
    wrapped.__cause__ = error
    assert is_full(error) and is_full(wrapped)
    assert is_full(TooManyConnections("by its SQLSTATE"))
    assert not is_full(OperationalError("connection refused"))


@pytest.mark.django_db
def test_a_check_that_fails_says_nothing_about_the_others() -> None:
    def broken() -> list[Finding]:
        raise KeyError("x")

    well = of("well", list)
    results = check_all([well, of("broken", broken), of("after", lambda: [Finding("seen")])])
    assert [bool(one.unknown) for one in results] == [False, True, False]
    assert results[2].findings


def test_who_asks_a_thread_that_hangs_does_not_wait_for_it() -> None:
    released, thread = threading.Event(), Thread("test")
    assert thread.ask(lambda: 1, 300) == 1
    with pytest.raises(NoAnswer):
        thread.ask(released.wait, 0)
    with pytest.raises(NoAnswer):
        thread.ask(lambda: 2, 300)  # at once, although it would wait long
    released.set()
    assert thread._done.wait(300)
    assert thread.ask(lambda: 3, 300) == 3
    with pytest.raises(ValueError, match="x"):
        thread.ask(lambda: int("x"), 300)


def test_what_cannot_be_checked_is_neither_found_nor_over() -> None:
    memory, one, began = Memory(), of("one", list), timezone.now()
    (found,) = memory.see([Checked(one, [Finding("a", "b")])], began)
    assert found.since == began
    assert memory.see([Checked(one, unknown=NO_ANSWER)], began) == []
    (again,) = memory.see([Checked(one, [Finding("a", "b")])], began + timedelta(minutes=1))
    assert again.since == began
    assert memory.see([Checked(one)], began) == []
    (new,) = memory.see([Checked(one, [Finding("a", "b")])], began + timedelta(minutes=2))
    assert new.since == began + timedelta(minutes=2)


@pytest.mark.django_db
def test_incidents_begin_and_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, memory, now = of("one", list, wait_s=60), Memory(), timezone.now()
    monkeypatch.setitem(conditions._declared, "one", one)

    def round_(findings: list[Finding], later_s: float, unknown: str = "") -> list[Incident]:
        at = now + timedelta(seconds=later_s)
        checked = [Checked(one, findings, unknown)]
        return incidents.store(checked, memory.see(checked, at), at)

    assert round_([Finding("a"), Finding("b", "c")], 0) == []
    assert round_([Finding("a")], 10)[0].about == "c"
    assert incidents.to_alert(now + timedelta(seconds=20)) == []
    assert round_([], 30, "unknown") == []
    (due,) = incidents.to_alert(now + timedelta(seconds=61))
    assert due.says == "a" and due.since == now
    assert incidents.to_alert(now + timedelta(seconds=62)) == []
    assert [row.pk for row in round_([], 70)] == [due.pk]
    assert round_([], 80) == []
    assert not Incident.objects.open().exists()


@pytest.mark.django_db
def test_what_is_wrong_with_a_machine_is_over_when_that_machine_says_so() -> None:
    one, now = of("disk", list, lane=Lane.MACHINE), timezone.now()
    Incident.objects.create(condition="disk", about="another-machine", says="full", since=now)
    assert incidents.store([Checked(one)], [], now) == []


def test_every_condition_has_a_section_in_the_documentation() -> None:
    text = Path(settings.BASE_DIR, "docs", "operations.md").read_text()
    headings = {line[4:] for line in text.splitlines() if line.startswith("### ")}
    assert headings == {one.name.replace("_", " ").capitalize() for one in declared()}


def test_the_backlog_of_a_judge_is_no_late_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = timezone.now() - timedelta(minutes=9)
    monkeypatch.setattr(lags, "_lags", {})
    lags.lag("judged", is_digest=False)(lambda: long_ago)
    lags.lag("classified")(lambda: None)
    assert list(watched.late()) == [] and lags.seconds()["judged"] >= 540
    lags.lag("classified")(lambda: long_ago)
    assert [finding.about for finding in watched.late()] == ["classified"]


@pytest.mark.django_db
def test_probes_quote_no_error_to_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the address and the account of a database."""

    def away() -> list[Finding]:
        raise DatabaseError('connection to "10.1.2.3" as user "flywheel" failed')

    database, disk = named("database"), of("disk", away, lane=Lane.MACHINE, part="disk")
    assert database is not None
    last = probes.Last(lambda: [replace(database, check=away), disk])
    monkeypatch.setattr(probes, "everything", last)
    answer = Client().get("/readyz")
    parts = answer.json()["parts"]
    assert answer.status_code == 503 and "10.1.2.3" not in answer.content.decode()
    assert parts["database"]["wrong"][0]["says"] == "The database does not answer."
    assert parts["disk"] == {"state": "unknown", "why": "It could not be checked."}
    assert all("10.1.2.3" in one.why for one in last.look()[0] if one.unknown)


@pytest.mark.parametrize("path", PROBES)
def test_probes_are_only_read(path: str) -> None:
    """Whoever can have Flywheel POST somewhere (a webhook) does not read them by that."""
    answer = Client().post(path)
    assert answer.status_code == 405 and "GET" in answer["Allow"]


# What an operator could not see


def test_what_could_not_be_checked_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor looks again for a while, and does not end as if all were well."""
    critical, warning = (
        of("critical", lambda: []),
        of("warning", lambda: [], severity=Severity.WARNING),
    )
    looked: list[int] = []

    def check_all() -> list[Checked]:
        looked.append(1)
        return answers[min(len(looked), len(answers)) - 1]

    monkeypatch.setattr(doctor, "check_all", check_all)
    monkeypatch.setattr(doctor, "PAUSE_S", 0.0)
    slow = [Checked(critical, unknown=NO_ANSWER)]
    answers = [slow, slow, [Checked(critical)]]
    assert doctor.ends_with(doctor.check_patiently()) == 0 and len(looked) == 3
    monkeypatch.setattr(doctor, "PATIENCE_S", 0.0)
    answers = [slow]
    assert doctor.ends_with(doctor.check_patiently()) == doctor.UNKNOWN
    answers = [[Checked(warning, unknown=NO_ANSWER), Checked(critical)]]
    assert doctor.ends_with(doctor.check_patiently()) == 0
    answers = [[*slow, Checked(critical, [Finding("Broken.")])]]
    assert doctor.ends_with(doctor.check_patiently()) == doctor.WRONG


def test_a_stopped_service_is_named_with_what_lets_it_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = embedded.Layout.of(tmp_path)
    monkeypatch.setattr(embedded, "data_dir", lambda: tmp_path)
    monkeypatch.setattr(embedded, "wants_broker", lambda: True)
    layout.broker_pid.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["sleep", "600"]) as service:
        try:
            layout.broker_pid.write_text(f"{service.pid}\n")
            assert "Valkey" not in embedded.stopped()
            service.send_signal(signal.SIGSTOP)
            os.waitpid(service.pid, os.WUNTRACED)
            assert embedded.stopped()["Valkey"] == service.pid
            monkeypatch.setattr(own.alive, "client", lambda: SimpleNamespace(ping=refused))
            (found, *_) = check_all([broker := replace(named("broker"))])
            assert [one.says for one in found.findings] == [
                f"Valkey (process {service.pid} on {socket.gethostname()}) is stopped."
                f" “kill -CONT {service.pid}” lets it go on."
            ]
            assert found.condition == broker
        finally:
            service.kill()


def refused() -> None:
    raise redis.ConnectionError("Error 11 connecting to unix socket")


def test_who_is_alive_is_unknown_until_they_had_time_to_say_so_again() -> None:
    """A broker that was frozen holds marks that expired meanwhile."""
    answering = own.Answering()
    answering.require_said()
    for _ in range(2):
        with suppress(redis.ConnectionError), answering:
            refused()
    with answering:
        pass
    with pytest.raises(Unknown, match=r"who is alive has \d+ s more"):
        answering.require_said()
    answering.again_at = 0.0
    with answering:
        pass
    answering.require_said()


def test_a_foreign_program_with_most_connections_is_to_be_stopped() -> None:
    users = [("reporting-tool", 91, 120), ("flywheel-web", 6, 120), ("psql", 1, 120)]
    assert list(own._foreign(users)) == [(91, "reporting-tool")]
    assert not list(own._foreign([("flywheel-web", 60, 120), ("psql", 1, 120)]))
