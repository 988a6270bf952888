"""The pages of trajectories: what they show, to whom, and how little they read for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from apps.core.models import AuditEvent, Project, Role
from apps.failures.actions.diagnose import classify_project
from apps.trajectories import digest
from apps.trajectories.actions import bulk
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import BulkChange, HourlyCount, SavedView, Trajectory
from apps.trajectories.pages import listing, totals
from apps.trajectories.pages import sessions as sessions_page
from apps.trajectories.pages.columns import money
from apps.trajectories.pages.listing import UNDO
from tests.factories import (
    admin_of,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    make_trajectory,
    row,
)

pytestmark = pytest.mark.django_db
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


@pytest.fixture
def viewer(project: Project) -> Client:
    return as_role(project, Role.VIEWER)


@pytest.fixture
def member(project: Project) -> Client:
    return as_role(project, Role.ENGINEER)


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(admin_of(project))
    return client


def as_role(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_member(project, role))
    return client


def url(project: Project, name: str = "list", *args: Any, **query: Any) -> str:
    return reverse(f"trajectories:{name}", args=[project.slug, *args], query=query or None)


def send(project: Project, *rows: dict) -> list[Trajectory]:
    done = ingest(project=project, rows=rows)
    assert not done.rejected, done.rejected
    digest.run()
    by_name = {item.external_id: item for item in project.trajectories.all()}
    return [by_name[item["id"]] for item in rows]


def names(client: Client, project: Project, **query: Any) -> list[str]:
    answer = client.get(url(project, **query))
    assert answer.status_code == 200
    return [item.external_id for item, _ in answer.context["table"]]


# The list


def test_filters_stand_in_the_url_and_as_chips(project: Project, viewer: Client) -> None:
    send(
        project,
        row(
            name="a",
            outcome={"status": "failure", "label": "late"},
            tags=["vip"],
            latency_ms=5000,
            session_id="s/1",
            user_id="u",
        ),
        row(
            name="b",
            agent={"name": "other", "version": "9"},
            model="m",
            workload="w",
            usage={"cost_usd": 2.5},
        ),
        row(
            name="c",
            call={"tool": "files.share", "args": {"to": "zebra"}},
            started_at="2026-01-01T10:00:00Z",
        ),
    )
    for query, found in (
        ({"outcome": "failure"}, ["a"]),
        ({"agent": "other"}, ["b"]),
        ({"agent_version": "9"}, ["b"]),
        ({"model": "m"}, ["b"]),
        ({"workload": "w"}, ["b"]),
        ({"tool": "files.share"}, ["c"]),
        ({"tag": "vip"}, ["a"]),
        ({"label": "late"}, ["a"]),
        ({"session": "s/1"}, ["a"]),
        ({"user": "u"}, ["a"]),
        ({"cost_min": 1}, ["b"]),
        ({"latency_min": 4}, ["a"]),
        ({"tokens_min": 121}, []),
        ({"messages_min": 3}, ["c"]),
        ({"q": "zebra"}, ["c"]),
        ({"q": "a"}, ["a"]),
        ({"from": "2026-01-01", "to": "2026-01-01"}, ["c"]),
        ({"to": "2026-01-01T09:00"}, []),
        ({"since": "1h"}, ["b", "a"]),
        ({"tag": "vip", "outcome": "success"}, []),
        ({"since": "", "cost_min": "", "cursor": ""}, ["b", "a", "c"]),
    ):
        assert names(viewer, project, **query) == found, query
    page = viewer.get(url(project, tag="vip", cost_max="3", outcome="failure")).content.decode()
    assert "Cost in $ ≤ 3" in page and "More filters (2)" in page
    assert 'href="?tag=vip&amp;outcome=failure"' in page  # the chip takes away its own filter


def test_a_failure_mode_narrows(project: Project, viewer: Client) -> None:
    failed = make_failed(project)
    make_trajectory(project)
    classify_project(project=project)
    failed = Trajectory.objects.get(pk=failed.pk)
    assert names(viewer, project, mode=failed.failure.mode.slug) == [failed.external_id]
    assert failed.failure.mode.name in viewer.get(url(project)).content.decode()


@pytest.mark.proof
def test_columns_are_chosen_in_the_url(project: Project, viewer: Client) -> None:
    send(project, row(name="a", usage={"cost_usd": 0.0123}))
    assert "$0.0123" not in viewer.get(url(project)).content.decode()
    page = viewer.get(url(project, cols="cost,id,bogus"))
    assert [column.key for column in page.context["columns"]] == ["id", "cost"]
    assert "$0.0123" in page.content.decode()
    assert len(viewer.get(url(project, cols="bogus")).context["columns"]) > 3


@pytest.mark.proof
def test_the_list_asks_as_much_for_fifty_rows_as_for_two(project: Project, viewer: Client) -> None:
    for item in (make_failed(project), make_failed(project)):
        assert item
    classify_project(project=project)
    digest.run()
    viewer.get(url(project))
    with CaptureQueriesContext(
        connection,
    ) as few:
        viewer.get(url(project))
    send(project, *(row(tags=["t"], outcome={"status": "failure"}) for _ in range(60)))
    classify_project(project=project)
    with CaptureQueriesContext(connection) as many:
        assert len(viewer.get(url(project)).context["table"]) == 50
    assert len(many) == len(few) <= 20, [query["sql"][:80] for query in many]
    assert not any("trajectories_content" in query["sql"] for query in many)
    assert sum("evals_task" in query["sql"] for query in many) == 1  # which of them are held out


def test_pages_go_both_ways_and_keep_the_filters(project: Project, viewer: Client) -> None:
    send(
        project,
        *(
            row(
                name=f"r{n:03d}",
                tags=["t"],
                started_at=f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z",
            )
            for n in range(70)
        ),
    )
    first = viewer.get(url(project, tag="t"))
    second = viewer.get(url(project, tag="t", cursor=first.context["page"]["next"]))
    assert [item.external_id for item, _ in second.context["table"]] == [
        f"r{n:03d}" for n in range(19, -1, -1)
    ]
    assert "tag=t" in second.content.decode() and second.context["page"]["previous"]


def test_empty_lists_say_what_to_do(project: Project, viewer: Client) -> None:
    assert (
        reverse("trajectories:first", args=[project.slug])
        in viewer.get(url(project)).content.decode()
    )
    assert "No matches" in viewer.get(url(project, tag="x")).content.decode()


def test_a_list_that_reads_too_much_says_so(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")

    monkeypatch.setattr("apps.trajectories.pages.listing.LIST_MS", 30)
    monkeypatch.setattr("apps.trajectories.pages.listing.page_of", slow)
    assert "Query too broad" in viewer.get(url(project, cost_min=1)).content.decode()


# Counts and charts


def test_counts_come_from_the_roll_ups_where_they_can(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(project, *(row(outcome={"status": "failure"}, tags=["t"]) for _ in range(3)), row())
    monkeypatch.setattr(totals, "COUNTED", 2)

    def text(**query: Any) -> str:
        return viewer.get(url(project, "count", **query)).content.decode()

    assert ">4<" in text() and ">3<" in text(outcome="failure", agent_version="1")
    assert ">2+<" in text(tag="t") and ">2+<" in text(since="24h") and ">0<" in text(tag="no")


def test_a_count_that_takes_too_long_is_given_up(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def order_by(self) -> Slow:
            return self

        def __getitem__(self, _: Any) -> Slow:
            return self

        def count(self) -> int:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(5)")
            return 0

    monkeypatch.setattr(totals, "apply_filters", lambda *_: Slow())
    monkeypatch.setattr(totals, "COUNT_MS", 30)
    assert ">many<" in viewer.get(url(project, "count", tag="t")).content.decode()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("measure", "title"),
    [
        ("outcome", "Trajectories"),
        ("cost", "Cost"),
        ("tokens", "Tokens"),
        ("latency", "Mean latency"),
    ],
)
def test_the_trend_is_drawn_from_the_roll_ups(
    project: Project, viewer: Client, measure: str, title: str
) -> None:
    now = datetime.now(UTC)
    send(
        project,
        *(
            row(started_at=(now - timedelta(days=n)).isoformat(), usage={"cost_usd": 1.0})
            for n in range(5)
        ),
    )
    Trajectory.objects.all().delete()  # not read
    page = viewer.get(url(project, "trend", measure=measure, tag="t")).content.decode()
    assert f"{title} per day" in page and "not filtered by: tag" in page
    assert "per hour" in viewer.get(url(project, "trend", since="24h")).content.decode()
    assert (
        "No data in this period"
        in viewer.get(url(project, "trend", agent_version="77")).content.decode()
    )


def test_a_clock_that_runs_years_ahead_does_not_squeeze_the_trend(
    project: Project, viewer: Client
) -> None:
    now = datetime.now(UTC)
    send(
        project,
        row(started_at=now.isoformat()),
        row(started_at=(now + timedelta(days=3000)).isoformat()),
    )
    page = viewer.get(url(project, "trend")).content.decode()
    assert "per hour" in page and str(now.year + 8) not in page


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (None, ""),
        (0, "$0.0000"),
        (0.00001, "< $0.0001"),
        (0.0123, "$0.0123"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money_is_never_rounded_to_nothing(usd: float | None, shown: str) -> None:
    assert money(usd) == shown


# Many at once


def ids(*rows: Trajectory) -> str:
    return ",".join(str(item.pk) for item in rows)


def test_tag_and_untag_with_undo(project: Project, member: Client) -> None:
    a, b = send(project, row(name="a", tags=["x"]), row(name="b"))
    member.post(
        url(project, "bulk"), {"do": "tag", "tag": " x ", "ids": ids(a, b), "query": "since=24h"}
    )
    assert names(member, project, tag="x") == ["b", "a"]
    assert (
        "Tagged 1 trajectory: “x”." in member.get(url(project)).content.decode()
    )  # a had it before
    assert project.facets.get(kind="tag", value="x").trajectories == 1 and digest.run()
    assert project.facets.get(kind="tag", value="x").trajectories == 2
    member.post(url(project, "bulk_undo"))
    assert names(member, project, tag="x") == ["a"]
    member.post(url(project, "bulk"), {"do": "untag", "tag": "x", "ids": ids(a, b)})
    assert names(member, project, tag="x") == []
    assert list(
        AuditEvent.objects.filter(action__startswith="trajectories.").values_list(
            "action", flat=True
        )
    ) == [
        "trajectories.untag",
        "trajectories.undone",
        "trajectories.tag",
    ]


def test_outcomes_are_set_and_taken_back(project: Project, member: Client) -> None:
    a, b, c = send(
        project, row(name="a", outcome={"status": "failure"}), row(name="b"), row(name="c")
    )
    answer = member.post(
        url(project, "bulk"),
        {"do": "outcome", "outcome": "success", "ids": ids(a, b), "query": "tag=x&cursor=1"},
    )
    assert answer["Location"].endswith("?tag=x")
    assert names(member, project, outcome="success") == ["b", "a"]
    digest.run()
    counted = HourlyCount.objects.filter(project=project).values_list(
        "outcome_status", "trajectories"
    )
    assert {status: n for status, n in counted if n} == {"success": 2, "unknown": 1}
    assert a.revisions.get().cause == "edited" and not c.revisions.exists()
    b.refresh_from_db()
    member.post(url(project, "bulk"), {"do": "outcome", "outcome": "bogus", "ids": ids(a)})
    Trajectory.objects.filter(pk=b.pk).update(outcome_status="failure")  # changed since: it stays
    member.post(url(project, "bulk_undo"))
    assert {item.external_id: item.outcome_status for item in project.trajectories.all()} == {
        "a": "failure",
        "b": "failure",
        "c": "unknown",
    }
    member.post(url(project, "bulk_undo"))
    assert "Nothing to undo" in member.get(url(project)).content.decode()


def test_a_resent_row_does_not_undo_a_tag(project: Project, member: Client) -> None:
    sent = row(name="a", started_at="2026-01-01T00:00:00Z")
    (a,) = send(project, sent)
    member.post(url(project, "bulk"), {"do": "tag", "tag": "kept", "ids": ids(a)})
    assert ingest(project=project, rows=[sent]).duplicates == 1
    a.refresh_from_db()
    assert a.tags == ["kept"]


def test_all_that_match_up_to_a_limit(
    project: Project, member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(
        project,
        *(row(name=f"r{n}", model="m", started_at=f"2026-01-01T00:00:0{n}Z") for n in range(4)),
        row(name="other"),
    )
    monkeypatch.setattr("apps.trajectories.pages.listing.LIMIT", 3)
    member.post(
        url(project, "bulk"),
        {"do": "tag", "tag": "t", "all": "1", "query": "model=m", "ids": "ignored"},
    )
    assert names(member, project, tag="t") == ["r3", "r2", "r1"]


@pytest.mark.proof
def test_a_change_of_more_than_a_page_is_taken_back_once(project: Project, member: Client) -> None:
    send(project, *(row(name=f"r{n}") for n in range(listing.PAGE + 10)))
    member.post(url(project, "bulk"), {"do": "tag", "tag": "t", "all": "1", "query": ""})
    assert f"Tagged {listing.PAGE + 10} trajectories" in member.get(url(project)).content.decode()
    change = BulkChange.objects.get()
    member.post(url(project, "bulk_undo"))
    assert not project.trajectories.filter(tags__contains=["t"]).exists()
    assert ">Undo <" not in member.get(url(project)).content.decode()
    assert bulk.undo(project=project, change=change, by=change.by) == 0


def test_another_person_s_change_is_not_offered(
    project: Project, member: Client, admin: Client
) -> None:
    (one,) = send(project, row())
    member.post(url(project, "bulk"), {"do": "tag", "tag": "t", "ids": ids(one)})
    session = admin.session
    session[UNDO] = BulkChange.objects.get().pk
    session.save()
    admin.post(url(project, "bulk_undo"))
    assert project.trajectories.get().tags == ["t"]


def test_changes_of_long_ago_are_forgotten(project: Project, member: Client) -> None:
    (one,) = send(project, row())
    member.post(url(project, "bulk"), {"do": "tag", "tag": "t", "ids": ids(one)})
    assert bulk.forget_changes() == 0
    BulkChange.objects.update(created_at=timezone.now() - bulk.KEPT - timedelta(hours=1))
    assert bulk.forget_changes() == 1


def test_only_an_owner_deletes_and_confirms_the_number(
    project: Project, member: Client, admin: Client
) -> None:
    a, b = send(project, row(name="a"), row(name="b"))
    given = {"do": "delete", "ids": ids(a, b)}
    assert member.post(url(project, "bulk"), given | {"confirm": "2"}).status_code == 403
    asked = admin.post(url(project, "bulk"), given | {"confirm": "1"})
    assert "Delete 2 trajectories?" in asked.content.decode() and project.trajectories.count() == 2
    admin.post(url(project, "bulk"), given | {"confirm": "2"})
    digest.run()
    assert (
        not project.trajectories.exists()
        and not HourlyCount.objects.filter(trajectories__gt=0).exists()
    )


def test_what_is_not_ones_own_is_not_touched(
    project: Project, member: Client, viewer: Client
) -> None:
    (foreign,) = send(make_project(), row(name="foreign"))
    (own,) = send(project, row(name="own"))
    member.post(url(project, "bulk"), {"do": "tag", "tag": "t", "ids": f"{ids(foreign, own)},"})
    assert list(Trajectory.objects.filter(tags__contains=["t"])) == [own]
    assert (
        viewer.post(url(project, "bulk"), {"do": "tag", "tag": "u", "ids": ids(own)}).status_code
        == 403
    )
    lines = b"".join(
        viewer.post(url(project, "export"), {"ids": ids(foreign, own)}).streaming_content
    ).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["own"]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"do": "tag", "tag": "", "ids": str(UUID(int=1))},
        {"do": "zzz", "all": "1"},
        {"do": "tag", "tag": "x" * 81, "all": "1"},
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    project: Project, member: Client, given: dict
) -> None:
    send(project, row())
    assert member.post(url(project, "bulk"), given).status_code == 302
    assert "note error" in member.get(url(project)).content.decode()
    assert not AuditEvent.objects.filter(action__startswith="trajectories.").exists()


# Files


def test_an_export_has_what_the_filters_leave(project: Project, viewer: Client) -> None:
    send(project, row(name="a", tags=["t"]), row(name="b"))
    lines = b"".join(viewer.get(url(project, "export", tag="t")).streaming_content).splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a"]
    assert viewer.get(url(project, "export", format="exe")).status_code == 400


def test_what_is_held_out_is_no_sft_example(project: Project, viewer: Client) -> None:
    a, _ = send(
        project,
        *(row(name=name, request=f"Do {name}", outcome={"status": "success"}) for name in "ab"),
    )
    task = make_eval_set(project, frozen=False).tasks.filter(split="holdout").first()
    type(task).objects.filter(pk=task.pk).update(trajectory=a.pk)
    lines = b"".join(
        viewer.get(url(project, "export", format="sft")).streaming_content
    ).splitlines()
    assert len(lines) == 1 and b"Do b" in lines[0]


# Saved views


def test_views_are_saved_shared_and_deleted(
    project: Project, member: Client, admin: Client, viewer: Client
) -> None:
    given = {"name": "Slow ones", "query": "latency_min=5&cursor=x&cols=id,cost&q="}
    answer = member.post(url(project, "save_view"), given)
    view = SavedView.objects.get()
    assert view.query == "cols=id%2Ccost&latency_min=5" and answer["Location"].endswith(view.query)
    assert "Slow ones" in member.get(answer["Location"]).content.decode()
    assert "Slow ones" not in admin.get(url(project)).content.decode()
    member.post(url(project, "save_view"), given | {"shared": "on"})
    assert SavedView.objects.count() == 1
    assert "Slow ones" in viewer.get(url(project)).content.decode()
    other = as_role(project, Role.ENGINEER)
    assert (
        other.post(url(project, "delete_view", view.pk)).status_code == 302
        and SavedView.objects.exists()
    )
    admin.post(url(project, "delete_view", view.pk))
    assert not SavedView.objects.exists()


def test_a_view_needs_a_name_and_a_private_one_is_not_there_for_others(
    project: Project, member: Client, admin: Client
) -> None:
    refused = member.post(url(project, "save_view"), {"name": " ", "query": "outcome=failure"})
    assert not SavedView.objects.exists() and refused["Location"].endswith(
        "?outcome=failure"
    )  # the filters stay
    admin.post(url(project, "save_view"), {"name": "mine", "query": ""})
    assert member.post(url(project, "delete_view", SavedView.objects.get().pk)).status_code == 404


# One trajectory


def test_the_detail_shows_calls_beside_replies_and_wrong_arguments(
    project: Project, viewer: Client
) -> None:
    (good, bad) = send(
        project,
        row(name="good", call={"tool": "tickets.close", "args": {"id": 1234}}),
        row(name="bad", call={"tool": "tickets.close", "args": {"id": [1]}}),
    )
    page = viewer.get(url(project, "detail", good.pk)).content.decode()
    assert page.count('class="turn ') == 2 and 'id="m2"' in page and 'class="problem"' not in page
    assert 'class="problem"' in viewer.get(url(project, "detail", bad.pk)).content.decode()


@pytest.mark.proof
def test_nothing_that_an_agent_says_is_markup(project: Project, viewer: Client) -> None:
    (item,) = send(
        project,
        row(
            name=HOSTILE,
            request=HOSTILE,
            agent={"name": HOSTILE, "version": HOSTILE},
            model=HOSTILE,
            workload=HOSTILE,
            session_id=HOSTILE,
            user_id=HOSTILE,
            tags=[HOSTILE],
            outcome={"status": "failure", "label": HOSTILE, "reason": HOSTILE},
            call={"tool": HOSTILE, "args": {HOSTILE: HOSTILE}},
            tools=[{"function": {"name": HOSTILE}}, {"name": [HOSTILE]}],
            interventions=[
                {
                    "kind": "edit",
                    "by": HOSTILE,
                    "note": HOSTILE,
                    "after": {HOSTILE: HOSTILE},
                    "message_index": 1,
                }
            ],
            metadata={
                HOSTILE: HOSTILE,
                "steps": [
                    {
                        "name": HOSTILE,
                        "kind": HOSTILE,
                        "start_ms": 0,
                        "duration_ms": 1,
                        "error": HOSTILE,
                    }
                ],
            },
        ),
    )
    everything = "outcome,failure,tools,agent,version,model,workload,tags,label,session,user,id"
    for address in (
        url(project, cols=everything),
        url(project, q=HOSTILE, tag=HOSTILE, model=HOSTILE),
        url(project, "detail", item.pk),
        url(project, "sessions"),
        url(project, "session", id=HOSTILE),
        url(project, "compare", a=item.pk, b=item.pk),
        url(project, "compare", a=HOSTILE),
        url(project, "trend", tag=HOSTILE),
        url(project, "count", tag=HOSTILE),
    ):
        page = viewer.get(address).content.decode()
        assert "<script>alert" not in page and "<img" not in page, address
    assert viewer.get(url(project, "raw", item.pk))["Content-Type"] == "application/json"


@pytest.mark.proof
def test_messages_of_any_shape_are_shown(project: Project, viewer: Client) -> None:
    (item,) = send(
        project,
        {
            "id": "odd",
            "messages": [
                {
                    "role": "tool",
                    "content": [
                        None,
                        5,
                        {"type": "image_url", "image_url": "https://evil.test/x.png"},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [],
                    "tool_calls": [{"function": {"name": "x", "arguments": "{"}}],
                    "reasoning": "hm",
                },
                {"role": "function", "name": "x", "content": "x" * 200_000},
            ],
            "tools": [{"function": {"name": "x", "parameters": {"$ref": "http://evil.test/"}}}, {}],
            "metadata": {"steps": {"a": 1}},
        },
    )
    page = viewer.get(url(project, "detail", item.pk)).content.decode()
    assert (
        "not loaded" in page
        and 'src="https://evil' not in page
        and "140,000 more characters" in page
    )
    assert viewer.get(url(project, "raw", item.pk, message=2)).json()["content"] == "x" * 200_000
    assert viewer.get(url(project, "raw", item.pk, message=3)).status_code == 404


def long_run(count: int) -> dict:
    messages = [{"role": "user", "content": "Begin."}]
    for n in range(1, count, 2):
        messages.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": f"c{n}", "function": {"name": "step", "arguments": {"n": n}}}
                ],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n}"})
    return row(name="long", tools=[]) | {
        "messages": messages,
        "interventions": [{"kind": "edit", "message_index": 401, "note": "here"}],
    }


@pytest.mark.proof
def test_a_long_run_comes_in_parts_with_every_message_once(
    project: Project, viewer: Client
) -> None:
    (item,) = send(project, long_run(1000))
    with CaptureQueriesContext(connection) as asked:
        page = viewer.get(url(project, "detail", item.pk)).content.decode()
    assert (
        len(asked) <= 23 and page.count('hx-trigger="revealed"') == 5 and "result 999" not in page
    )
    seen = page
    for first in (200, 400, 600, 800, 1000):
        seen += viewer.get(url(project, "part", item.pk, first)).content.decode()
    found = [int(text.split('"')[0]) for text in seen.split('data-m="')[1:]]
    assert sorted(found) == list(range(1001))
    assert (
        "no reply" not in seen
        and "does not match an earlier tool call" not in seen
        and seen.count("<b>Edit</b>") == 1
    )
    assert viewer.get(url(project, "part", item.pk, 7)).status_code == 404
    raw = json.loads(b"".join(viewer.get(url(project, "raw", item.pk)).streaming_content))
    assert len(raw["messages"]) == 1001 and raw["id"] == "long" and raw["interventions"]


def test_newer_and_older_stay_within_the_filters(project: Project, viewer: Client) -> None:
    a, _, c = send(
        project,
        *(
            row(name=name, tags=tags, started_at=f"2026-01-0{day}T00:00:00Z")
            for day, (name, tags) in enumerate([("a", ["t"]), ("b", []), ("c", ["t"])], 1)
        ),
    )
    context = viewer.get(url(project, "detail", c.pk, tag="t")).context
    assert (context["newer"], context["older"]) == (None, a.pk)


def test_people_give_feedback(project: Project, member: Client, viewer: Client) -> None:
    (item,) = send(project, row(name="a", call={"tool": "tickets.close", "args": {"id": 1}}))
    address = url(project, "feedback", item.pk)
    assert viewer.post(address, {"outcome": "failure"}).status_code == 403
    member.post(address, {})
    assert not item.revisions.exists()
    member.post(
        address,
        {
            "outcome": "failure",
            "comment": "wrong ticket",
            "corrected": '{"tool": "x", "args": {}}',
            "message_index": "1",
        },
    )
    item = Trajectory.objects.get(pk=item.pk)
    assert item.outcome_status == "failure"
    assert (
        item.interventions[-1]["after"] == {"tool": "x", "args": {}}
        and item.interventions[-1]["message_index"] == 1
    )
    page = member.get(url(project, "detail", item.pk)).content.decode()
    assert "wrong ticket" in page and "History" in page
    number = item.revisions.get().pk
    assert (
        "outcome_status" in viewer.get(url(project, "revision", item.pk, number)).content.decode()
    )
    assert AuditEvent.objects.get(action="trajectory.feedback").target_id == str(item.pk)


def test_a_waterfall_where_there_are_times(project: Project, viewer: Client) -> None:
    steps = [{"span_id": "a", "name": "chat", "start_ms": 0, "duration_ms": 80, "message_index": 1}]
    with_times, without = send(project, row(name="t", metadata={"steps": steps}), row(name="n"))
    assert 'class="step"' in viewer.get(url(project, "detail", with_times.pk)).content.decode()
    assert "waterfall" not in viewer.get(url(project, "detail", without.pk)).content.decode()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"metadata": {"content_captured": False}}, "The spans have no text"),
        ({"tags": ["missing-history"]}, "Earlier messages are missing"),
        ({"metadata": {"read_by_shape": ["acme.<b>input"]}}, "acme.&lt;b&gt;input"),
        ({}, ""),
    ],
)
def test_a_run_says_what_is_missing_and_what_it_was_read_from(
    project: Project, viewer: Client, more: dict, says: str
) -> None:
    (run,) = send(project, row(name="r", **more))
    page = viewer.get(url(project, "detail", run.pk)).content.decode()
    found = [text for text in ("have no text", "are missing", "Read from") if text in page]
    assert says in page and len(found) == bool(says)


# Sessions and two side by side


def test_sessions_and_their_runs_in_order(project: Project, viewer: Client) -> None:
    send(
        project,
        *(
            row(name=f"r{n}", session_id="chat/../1", started_at=f"2026-01-01T00:00:0{n}Z")
            for n in range(3)
        ),
        row(name="x"),
    )
    page = viewer.get(url(project, "sessions")).context["sessions"]
    assert [(item.id, item.runs) for item in page] == [("chat/../1", 3)]
    runs = viewer.get(url(project, "session", id="chat/../1")).context["runs"]
    assert [run.external_id for run in runs] == ["r0", "r1", "r2"]
    assert viewer.get(url(project, "session")).status_code == 302


def test_older_sessions_are_on_the_next_page(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_page, "PAGE", 2)
    send(
        project, *(row(session_id=f"s{n}", started_at=f"2026-01-01T00:00:0{n}Z") for n in range(5))
    )
    seen, before = [], None
    for _ in range(3):
        context = viewer.get(
            url(project, "sessions", **({"before": before} if before else {}))
        ).context
        seen += [item.id for item in context["sessions"]]
        before = context["before"]
    assert seen == ["s4", "s3", "s2", "s1", "s0"] and before is None


def test_two_runs_side_by_side(project: Project, viewer: Client) -> None:
    a, _ = send(
        project,
        row(
            name="a",
            call={"tool": "tickets.close", "args": {"id": 1}},
            outcome={"status": "failure"},
        ),
        row(
            name="b",
            call={"tool": "tickets.close", "args": {"id": 2}},
            outcome={"status": "success"},
            latency_ms=220.5,
        ),
    )
    page = viewer.get(url(project, "compare", a=a.pk, b="b")).content.decode()
    assert "tickets.close id: 1 → 2" in page and "+100 ms" in page
    assert (
        "There is no trajectory"
        in viewer.get(url(project, "compare", a=a.pk, b="nothing")).content.decode()
    )
    (foreign,) = send(make_project(), row(name="foreign"))
    assert (
        "There is no trajectory"
        in viewer.get(url(project, "compare", a=a.pk, b=foreign.pk)).content.decode()
    )


def test_the_number_of_all_runs_does_not_read_the_combinations_of_each_hour(
    project: Project,
) -> None:
    outcomes = ("success", "failure") * 2
    rows = [row(name=str(n), outcome={"status": status}) for n, status in enumerate(outcomes)]
    ingest(project=project, rows=[one | {"agent": {"name": "shop"}} for one in rows])
    digest.run()
    with CaptureQueriesContext(connection) as queries:
        assert totals.total(project, {}).n == 4
        assert totals.total(project, {"outcome": "failure"}).n == 2
    assert not any("hourlycount" in query["sql"] for query in queries)
    assert totals.total(project, {"outcome": "failure", "agent": "shop"}).n == 2
