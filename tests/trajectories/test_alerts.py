"""Alerts fire, are told, silenced and recover."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role, Stage
from apps.notifications.models import Notification
from apps.trajectories.actions.alerts import (
    AlertError,
    NewAlert,
    add,
    check_all,
    edit,
    silence,
)
from apps.trajectories.actions.scores import receive
from apps.trajectories.models import Alert, AlertChange
from apps.trajectories.scores import Sent
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Delivery
from tests.factories import admin_of, make_key, make_member, row
from tests.trajectories.test_steps import USER, calling, ingest, reply

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def send(project: Project, at: datetime, failed: int, fine: int, **more: Any) -> None:
    """Runs of which a tool call and the outcome failed, or not."""
    rows = []
    for n in range(failed + fine):
        bad = n < failed
        text = "Error: declined" if bad else "paid"
        rows.append(
            row(
                f"{at:%d-%H-%M}-{n}",
                started_at=at.isoformat(),
                outcome={"status": "failure" if bad else "success"},
                messages=[USER, calling(("a", "pay", "{}")), reply("a", text)],
                **more,
            )
        )
    ingest(project, *rows)


def alert(project: Project, **more: Any) -> Alert:
    given = {"name": "a", "measure": "failure_rate", "line": 0.2, "at_least": 5} | more
    return add(project=project, by=admin_of(project), given=NewAlert(**given))


def kinds() -> list[str]:
    return list(AlertChange.objects.order_by("pk").values_list("kind", flat=True))


def subjects() -> list[str]:
    found = Notification.objects.filter(topic__startswith="alert.")
    return sorted(set(found.values_list("subject", flat=True)))


def test_it_fires_and_recovers(project: Project) -> None:
    by = admin_of(project)
    create_webhook(project=project, url="https://hooks.example.com/", events=["alert.fired"], by=by)
    one = alert(project)
    send(project, NOW - 10 * MINUTE, failed=3, fine=7)
    assert check_all(NOW) == 1 and check_all(NOW + MINUTE) == 0
    one.refresh_from_db()
    assert one.state == "firing" and one.value == pytest.approx(0.3) and one.n == 10
    change = one.changes.get()
    assert sorted(change.runs) == [f"20-12-20-{n}" for n in range(3)]
    assert subjects() == ["Alert “a” fired: Failure rate of runs 30.0%, above 20.0% (n = 10)"]
    sent = json.loads(Delivery.objects.get(event="alert.fired").body)["data"]
    assert sent["n"] == 10 and sorted(sent["runs"]) == sorted(change.runs)
    send(project, NOW + 2 * MINUTE, failed=0, fine=20)
    assert check_all(NOW + 3 * MINUTE) == 1
    assert kinds() == ["fired", "recovered"] and "“a” recovered" in subjects()[1]
    one.refresh_from_db()
    assert one.state == "ok"


def test_without_data_it_stops_firing_says_so_and_recovers(project: Project) -> None:
    by, one = admin_of(project), alert(project, window_minutes=30)
    create_webhook(
        project=project, url="https://hooks.example.com/", events=["alert.no_data"], by=by
    )
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    assert check_all(NOW) == 1
    states = []
    for minute in (15, 25, 54, 55, 56):  # the runs leave the window, then another one passes
        check_all(NOW + minute * MINUTE)
        one.refresh_from_db()
        states.append((one.state, one.unmeasured_since is not None))
    assert states == [
        ("firing", False),
        ("firing", True),
        ("firing", True),
        ("no_data", True),
        ("no_data", True),
    ]
    change = one.changes.first()
    said = "Failure rate of runs: too little to measure for 30 minutes (0 of at least 5)"
    assert (change.kind, change.said) == ("no_data", said)
    assert f"Alert “a” has no data: {said} (n = 0)" in subjects()
    assert Delivery.objects.filter(event="alert.no_data").count() == 1
    send(project, NOW + 60 * MINUTE, failed=0, fine=10)
    assert check_all(NOW + 61 * MINUTE) == 1
    one.refresh_from_db()
    assert (one.state, one.unmeasured_since, one.told) == ("ok", None, False)
    assert kinds() == ["fired", "no_data", "recovered"] and len(subjects()) == 3


def test_what_is_as_bad_after_a_time_without_data_fires_again(project: Project) -> None:
    one = alert(project, window_minutes=30, for_minutes=5)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    for minute in (0, 5, 25, 60):
        check_all(NOW + minute * MINUTE)
    send(project, NOW + 70 * MINUTE, failed=10, fine=0)
    assert check_all(NOW + 71 * MINUTE) == 1
    assert kinds() == ["fired", "no_data", "fired"]
    told = Notification.objects.filter(topic="alert.fired").values("key").distinct()
    assert told.count() == 2
    edit(alert=one, by=admin_of(project), given=NewAlert(name="a", measure="cost", line=9.0))
    one.refresh_from_db()
    assert (one.state, one.unmeasured_since, one.points.count()) == ("ok", None, 0)


@pytest.mark.proof
def test_one_that_never_had_data_says_so_and_no_more(project: Project) -> None:
    one = alert(project)
    send(project, NOW - 10 * MINUTE, failed=0, fine=3)
    assert [check_all(NOW + minute * MINUTE) for minute in (0, 60)] == [0, 0]
    one.refresh_from_db()
    assert one.state == "no_data" and not kinds() and not subjects()
    send(project, NOW + 61 * MINUTE, failed=0, fine=10)
    assert check_all(NOW + 62 * MINUTE) == 0
    one.refresh_from_db()
    assert one.state == "ok" and not kinds()


def test_a_number_of_runs_always_has_data(project: Project) -> None:
    one = alert(project, measure="runs", condition="below", line=1.0)
    assert check_all(NOW) == 1 and check_all(NOW + 200 * MINUTE) == 0
    one.refresh_from_db()
    assert one.state == "firing" and one.unmeasured_since is None


@pytest.mark.proof
def test_its_chart_leads_to_what_was_measured(project: Project, client: Client) -> None:
    one = alert(project, window_minutes=60)
    send(project, NOW - 10 * MINUTE, failed=0, fine=10)
    send(project, NOW + 5 * MINUTE, failed=10, fine=0)
    for minute in (0, 3, 5, 6, 80):  # 5 minutes apart, and when something changed
        check_all(NOW + minute * MINUTE)
    points = list(one.points.values_list("at", "value", "n"))
    assert points == [
        (NOW, 0.0, 10),
        (NOW + 5 * MINUTE, 0.0, 10),
        (NOW + 6 * MINUTE, 0.5, 20),
        (NOW + 80 * MINUTE, None, 0),
    ]
    client.force_login(make_member(project, Role.VIEWER))
    page = client.get(reverse("trajectories:alert", args=[project.slug, one.pk]))
    line, measured = page.context["figure"]["data"]
    assert (line["name"], set(line["y"])) == ("Above 20.0%", {0.2})
    assert measured["y"] == [0.0, 0.0, 0.5, None]
    assert measured["marker"]["color"][2] != measured["marker"]["color"][0]
    rows = [client.get(link).context["page"]["rows"] for link in measured["meta"]["links"]]
    assert list(map(len, rows)) == [10, 10, 20, 0]
    assert page.content.decode().count(">Rows</a>") == 4


def test_too_little_says_nothing(project: Project) -> None:
    alert(project, at_least=11)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    assert check_all(NOW) == 0 and not kinds()


def test_what_is_off_or_archived_is_not_checked(project: Project) -> None:
    alert(project, enabled=False)
    alert(project, name="on")
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    Project.objects.filter(pk=project.pk).update(stage=Stage.ARCHIVED)
    assert check_all(NOW) == 0
    Project.objects.filter(pk=project.pk).update(stage=Stage.ACTIVE)
    assert check_all(NOW) == 1


def test_it_fires_only_after_a_time(project: Project) -> None:
    alert(project, for_minutes=3)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    assert [check_all(NOW + n * MINUTE) for n in range(5)] == [0, 0, 0, 1, 0]


def test_what_fires_in_silence_is_told_after_it(project: Project) -> None:
    one = alert(project)
    silence(alert=one, by=admin_of(project), minutes=60)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    assert check_all(NOW) == 1 and not subjects()
    silence(alert=one, by=admin_of(project), minutes=0)
    assert check_all(NOW + MINUTE) == 0 and len(subjects()) == 1
    silence(alert=one, by=admin_of(project), minutes=60)
    send(project, NOW + MINUTE, failed=0, fine=90)
    assert check_all(NOW + 2 * MINUTE) == 1 and len(subjects()) == 1


def test_a_tools_errors_and_a_score(project: Project) -> None:
    alert(project, name="tool", measure="step_error_rate", filters="kind=tool&name=pay")
    alert(project, name="other", measure="step_error_rate", filters="kind=tool&name=search")
    alert(project, name="slow", measure="latency_p95", line=500.0, condition="below")
    alert(
        project, name="score", measure="score", filters="name=helpful", condition="below", line=0.5
    )
    send(project, NOW - 10 * MINUTE, failed=4, fine=4, latency_ms=100.0)
    receive(
        project=project,
        sent=[Sent(run=f"20-12-20-{n}", name="helpful", value=n / 10) for n in range(8)],
    )
    project.scores.update(created_at=NOW - MINUTE)
    assert check_all(NOW) == 3
    firing = {one.name: one.changes.get() for one in Alert.objects.filter(state="firing")}
    assert sorted(firing) == ["score", "slow", "tool"]
    assert sorted(firing["tool"].runs) == [f"20-12-20-{n}" for n in range(4)]
    assert firing["score"].runs[0] == "20-12-20-0" and firing["score"].value < 0.5


@pytest.mark.proof
def test_its_usual_range(project: Project) -> None:
    one = alert(project, name="usual", condition="unusual", line=None)
    for day in range(1, 7):
        send(project, NOW - timedelta(days=day, minutes=10), failed=1 + day % 2, fine=10)
    send(project, NOW - 10 * MINUTE, failed=2, fine=10)
    assert check_all(NOW) == 0
    one.refresh_from_db()
    assert 0 <= one.low < 1 / 6 < one.high < 0.6
    send(project, NOW + 5 * MINUTE, failed=40, fine=0)
    assert check_all(NOW + 10 * MINUTE) == 1
    assert "usually" in one.changes.get().said


def test_without_enough_days_nothing_is_unusual(project: Project) -> None:
    alert(project, condition="unusual", line=None)
    send(project, NOW - timedelta(days=1, minutes=10), failed=0, fine=10)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    assert check_all(NOW) == 0


@pytest.mark.parametrize(
    ("more", "field", "says"),
    [
        ({"line": None}, "line", "Give the line"),
        ({"filters": "tool_name=a"}, "filters", "Did you mean “tool”?"),
        ({"filters": "since=1h"}, "filters", "Unknown filter “since”"),
        ({"measure": "score"}, "filters", "Name the score"),
        ({"measure": "step_p95", "filters": "kind=toll"}, "filters", "must be one of model"),
        ({"measure": "score", "filters": "name=%00"}, "filters", "cannot be stored"),
        ({"line": 10}, "line", "0.1 is 10%"),
        ({"measure": "step_error_rate", "line": -0.1}, "line", "0.1 is 10%"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    project: Project, more: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(AlertError, match=says.replace("?", r"\?")) as error:
        alert(project, **more)
    assert error.value.field == field


def test_one_that_fails_keeps_no_other_from_being_checked(project: Project) -> None:
    broken = alert(project, measure="score", filters="name=a", condition="below")
    other = alert(project, name="b", line=0.1)
    Alert.objects.filter(pk=broken.pk).update(measure="gone")
    send(project, NOW - 10 * MINUTE, failed=5, fine=5)
    assert check_all(NOW) == 1
    other.refresh_from_db()
    broken.refresh_from_db()
    assert (other.state, other.checked_at, broken.checked_at) == ("firing", NOW, NOW)


def test_an_edit_begins_anew(project: Project) -> None:
    one = alert(project)
    send(project, NOW - 10 * MINUTE, failed=10, fine=0)
    check_all(NOW)
    edit(alert=one, by=admin_of(project), given=NewAlert(name="a", measure="cost", line=9.0))
    one.refresh_from_db()
    assert (one.state, one.told, one.crossing_since) == ("ok", False, None)
    with pytest.raises(AlertError, match="already exists"):
        alert(project)


@pytest.mark.proof
def test_by_api_and_page(project: Project, client: Client) -> None:
    headers = {"Authorization": f"Bearer {make_key(project)}"}
    body = {"name": "pay fails", "measure": "step_error_rate", "filters": "name=pay", "line": 0.1}
    made = Client(headers=headers).post(
        "/api/v1/alerts/", json.dumps(body | {"at_least": 1}), content_type="application/json"
    )
    assert made.status_code == 201, made.content
    send(project, NOW - 10 * MINUTE, failed=3, fine=1)
    check_all(NOW)
    (listed,) = Client(headers=headers).get("/api/v1/alerts/").json()["results"]
    assert listed["state"] == "firing" and listed["value"] == 0.75
    changes = Client(headers=headers).get(f"/api/v1/alerts/{listed['id']}/changes/").json()
    assert changes["results"][0]["kind"] == "fired"
    client.force_login(make_member(project, Role.ENGINEER))
    assert b"pay fails" in client.get(reverse("trajectories:alerts", args=[project.slug])).content
    page = client.get(reverse("trajectories:alert", args=[project.slug, listed["id"]]))
    text = page.content.decode()
    assert "Error rate of steps 75.0%, above 10.0%" in text and "20-12-20-0" in text
    rows = reverse("trajectories:steps", args=[project.slug])
    assert f"{rows}?name=pay&amp;from=2026-11-20T11%3A30%3A00Z" in text
    saved = client.post(
        reverse("trajectories:alert_edit", args=[project.slug, listed["id"]]),
        body | {"condition": "above", "window_minutes": 30, "for_minutes": 0, "at_least": 5},
    )
    assert saved.status_code == 302, saved.content
    assert Alert.objects.get().window_minutes == 30


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("route", "query", "measure", "filters"),
    [
        ("steps", "kind=tool&status=error&since=7d", "step_error_rate", "kind=tool&status=error"),
        ("steps", "kind=tool&measure=p95&by=name", "step_p95", "kind=tool"),
        ("scores", "name=helpful&from=2026-11-01", "score", "name=helpful"),
        ("list", "agent_version=7&sort=-cost", "failure_rate", "agent_version=7"),
    ],
)
def test_a_list_leads_to_an_alert_on_what_it_shows(
    project: Project, client: Client, route: str, query: str, measure: str, filters: str
) -> None:
    client.force_login(make_member(project, Role.ENGINEER))
    address = reverse(f"trajectories:{route}", args=[project.slug])
    link = client.get(f"{address}?{query}").context["new_alert"]
    assert link in unescape(client.get(f"{address}?{query}").content.decode())
    initial = client.get(link).context["form"].initial
    assert (initial["measure"], initial["filters"]) == (measure, filters)
    client.force_login(make_member(project, Role.VIEWER))
    assert "Add an alert" not in client.get(f"{address}?{query}").content.decode()


def test_a_name_turns_nothing_round(project: Project) -> None:
    alert(project, name="a\u202eb")
    send(project, NOW - 10 * MINUTE, failed=3, fine=7)
    check_all(NOW)
    (subject,) = subjects()
    assert subject.startswith("Alert “\u2068a\u202eb\u202c\u2069” fired: Failure rate")
