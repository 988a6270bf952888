"""The audit log: append-only, filtered, page by page, as files, by API."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.test import Client
from django.utils import timezone

from apps.core.actions import audit, create_api_key, invite
from apps.core.auditing.filters import KINDS, Filters
from apps.core.auditing.words import SECTIONS, WORDS
from apps.core.models import AuditEvent, Project, Role, object_name
from apps.evals.drafts import freeze
from tests.factories import (
    admin_of,
    key_headers,
    make_eval_set,
    make_key,
    make_member,
    make_project,
    make_user,
)


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(project: Project, query: str = "", role: Role = Role.OWNER) -> str:
    person = admin_of(project) if role == Role.OWNER else make_member(project, role)
    answer = client_of(person).get(f"/p/{project.slug}/audit/?{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def said(project: Project, action: str, **given: Any) -> AuditEvent:
    return audit(action, project=project, by=given.pop("by", None) or admin_of(project), **given)


# Append-only


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE core_auditevent SET actor_label = 'nobody'",
        "DELETE FROM core_auditevent",
        "TRUNCATE core_auditevent CASCADE",
        "TRUNCATE core_project CASCADE",
    ],
)
def test_the_database_refuses_every_change(project: Project, change: str) -> None:
    before = list(AuditEvent.objects.values())
    with (
        pytest.raises(IntegrityError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE core_auditevent ENABLE TRIGGER audit_is_never_truncated")
        cursor.execute(change)
    assert list(AuditEvent.objects.values()) == before


def test_models_refuse_too(project: Project) -> None:
    event = project.audit_events.get()
    for change in (
        event.delete,
        event.save,
        AuditEvent.objects.all().delete,
        lambda: AuditEvent.objects.update(detail={}),
    ):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            change()
    with pytest.raises(ProtectedError):
        project.delete()


def test_the_story_survives_its_actor(project: Project) -> None:
    leaver = make_member(project, Role.ENGINEER)
    made = make_eval_set(project, frozen=False)
    said(project, "eval_set.frozen", by=leaver, target=made, name="tickets@1")
    name = leaver.get_username()
    leaver.delete()
    assert f"<b>{name}</b>" in page(project, f"who={name}")
    assert AuditEvent.objects.select_related("actor").get(actor_label=name).actor is None


def test_the_story_survives_its_object(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    kind = object_name(made)
    assert f'/evals/{made.pk}/">{made}</a>' in page(project, f"object={kind}")
    made.delete()
    text = page(project, f"object={kind}")
    assert f"created the eval set {made}" in text and f"/evals/{made.pk}/" not in text


@pytest.mark.django_db
def test_a_flush_is_refused() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE core_auditevent ENABLE TRIGGER audit_is_never_truncated")
        with pytest.raises(Exception, match=r"append-only|flushed"), transaction.atomic():
            call_command("flush", interactive=False, verbosity=0)


# The page


def test_a_page_tells_who_did_what_with_links(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    freeze(eval_set=made, by=admin_of(project))
    text = page(project)
    assert (
        f'<b>{admin_of(project)}</b> froze <a href="/p/{project.slug}/evals/{made.pk}/">{made}</a>'
        in text
    )


def test_every_action_is_found_by_one_kind_and_deletions_by_theirs(project: Project) -> None:
    AuditEvent.objects.bulk_create(
        AuditEvent(project=project, actor_label="x", action=action) for action in WORDS
    )
    actions = {
        kind: set(Filters(kind=kind).of(project, Role.OWNER).values_list("action", flat=True))
        for kind in KINDS
    }
    kinds = {action: [kind for kind in SECTIONS if action in actions[kind]] for action in WORDS}
    assert kinds.pop("review.held_out_exported") == ["holdout", "rewards"]
    wrong = {action: sections for action, sections in kinds.items() if len(sections) != 1}
    assert not wrong, wrong
    assert {
        "trajectories.deleted",
        "held.discarded",
        "policy_rule.removed",
        "retention.enforced",
    } < actions["deletions"] and "member.removed" not in actions["deletions"]


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("kind=promotions", {"channel.promote", "channel.rollback"}),
        ("kind=overrides", {"review.lock_overridden", "channel.promote"}),
        ("kind=holdout", {"holdout.view"}),
        ("who=ben", {"view.saved"}),
        ("action=view.saved", {"view.saved"}),
        ("kind=promotions&who=ben", set()),
        ("since=2999-01-01", set()),
        ("until=1999-01-01", set()),
        ("object=registry.modelversion:7", {"channel.promote"}),
        ("object=registry.modelversion:8", set()),
    ],
)
def test_filters(project: Project, query: str, found: set[str]) -> None:
    said(project, "channel.promote", version="v1", channel="production", overridden=True)
    AuditEvent.objects.create(
        project=project,
        actor_label="x",
        action="channel.promote",
        about=["registry.modelversion:7"],
    )
    said(project, "channel.rollback", version="v1", channel="production")
    said(project, "review.lock_overridden", verifier="v")
    said(project, "holdout.view", n=3)
    said(project, "view.saved", by=make_user("ben"), name="mine")
    rows = client_of(admin_of(project)).get(f"/p/{project.slug}/audit/export.jsonl?{query}")
    assert {
        json.loads(line)["action"] for line in b"".join(rows.streaming_content).splitlines()
    } == found


def test_a_day_is_found_from_midnight_to_midnight(project: Project) -> None:
    for hour in (0, 24):
        at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=hour)
        AuditEvent.objects.create(
            project=project, actor_label=f"at{hour}", action="view.saved", at=at
        )
    text = page(project, "since=2026-03-01&until=2026-03-01")
    assert "<b>at0</b>" in text and "<b>at24</b>" not in text


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "query",
    [
        "kind=nonsense",
        "since=yesterday",
        "object=%00x",
        "object=a.b:'--",
        "cursor=9_x",
        "cursor=99999999999999999999_1",
    ],
)
def test_filters_that_make_no_sense_are_refused(project: Project, query: str) -> None:
    person, url = client_of(admin_of(project)), f"/p/{project.slug}/audit/"
    assert person.get(f"{url}?{query}").status_code == 400
    assert "created the project" in person.get(f"{url}?until=9999-12-31").content.decode()


def test_hostile_text_is_escaped(project: Project) -> None:
    said(
        project,
        "view.saved",
        name="<script>alert(1)</script>",
        shared=False,
        actor_label="<img src=x>",
    )
    text = page(project)
    assert (
        "<script>alert(1)" not in text and "&lt;script&gt;alert(1)" in text and "<img" not in text
    )


def test_pages_follow_each_other_although_new_events_come(project: Project) -> None:
    same = timezone.now()
    AuditEvent.objects.bulk_create(
        AuditEvent(project=project, actor_label=f"n{number:03}", action="view.saved", at=same)
        for number in range(120)
    )
    client, seen, cursor = client_of(admin_of(project)), [], ""
    for _ in range(3):
        answer = client.get(f"/p/{project.slug}/audit/?cursor={cursor}")
        seen += [line.event.pk for line in answer.context["lines"]]
        cursor = answer.context["next"]
        said(project, "view.saved", name="meanwhile")
    assert len(seen) == len(set(seen)) == 121 and cursor is None


def test_who_may_read_what(project: Project) -> None:
    by = admin_of(project)
    invite(project=project, email="eve@example.org", role=Role.VIEWER, by=by)
    create_api_key(project=project, name="prod", by=by)
    hidden = {role: page(project, role=role) for role in Role}
    assert [role for role, text in hidden.items() if "eve@example.org" in text] == [Role.OWNER]
    assert [role for role, text in hidden.items() if "API key" in text and "prod" in text] == [
        Role.OPERATOR,
        Role.OWNER,
    ]
    assert all("created the project" in text for text in hidden.values())


def test_nothing_of_another_project_is_shown(project: Project) -> None:
    other = make_project()
    made = make_eval_set(other, frozen=False)
    text = page(project, f"object={object_name(made)}")
    assert str(made) not in text.replace(object_name(made), "") and "No matching events" in text


# Files and API


def test_a_csv_runs_no_formula(project: Project) -> None:
    said(project, "view.saved", name="x", actor_label="=1+1")
    answer = client_of(admin_of(project)).get(f"/p/{project.slug}/audit/export.csv")
    rows = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode("utf-8-sig"))))
    assert (
        rows[0][0] == "at"
        and rows[1][1] == "'=1+1"
        and rows[1][3].startswith("'=1+1 saved the view")
    )
    assert len(rows) == 1 + AuditEvent.objects.filter(project=project).count()


@pytest.mark.parametrize("query", ["since=yesterday", "until=2026-02-30", "kind=x", "object=x"])
def test_a_filter_that_makes_no_sense_gives_no_file_of_everything(
    project: Project, query: str
) -> None:
    answer = client_of(admin_of(project)).get(f"/p/{project.slug}/audit/export.csv?{query}")
    assert answer.status_code == 400 and query.partition("=")[0] in answer.content.decode()


def test_an_unknown_format_is_not_found(project: Project) -> None:
    assert (
        client_of(admin_of(project)).get(f"/p/{project.slug}/audit/export.xml").status_code == 404
    )


def test_the_api_has_the_same_filters_and_a_cursor(project: Project) -> None:
    headers = key_headers(project)
    for number in range(5):
        said(project, "view.saved", name=f"v{number}")
    first = Client().get("/api/v1/audit/?action=view.saved&limit=3", **headers).json()
    second = (
        Client()
        .get(f"/api/v1/audit/?action=view.saved&limit=3&cursor={first['next']}", **headers)
        .json()
    )
    names = [event["detail"]["name"] for event in first["results"] + second["results"]]
    assert names == ["v4", "v3", "v2", "v1", "v0"] and second["next"] is None
    assert first["results"][0]["sentence"].endswith("saved the view “v4”")


@pytest.mark.parametrize(
    "query", ["kind=x", "since=x", "object=x", "limit=0", "cursor=x", "who=%00", "action=%00"]
)
def test_the_api_says_what_is_wrong(project: Project, query: str) -> None:
    answer = Client().get(f"/api/v1/audit/?{query}", **key_headers(project))
    assert answer.status_code == 400 and answer.json()["path"] == query.partition("=")[0]


def test_a_key_reads_what_its_creator_may(project: Project) -> None:
    key = create_api_key(project=project, name="k", by=make_member(project, Role.VIEWER))[1]
    seen = Client().get("/api/v1/audit/", HTTP_AUTHORIZATION=f"Bearer {key}").json()["results"]
    assert [event["action"] for event in seen] == ["project.created"]
    seen = (
        Client()
        .get("/api/v1/audit/", HTTP_AUTHORIZATION=f"Bearer {make_key(project)}")
        .json()["results"]
    )
    assert {event["action"] for event in seen} == {"project.created", "api_key.created"}


def test_a_look_at_a_hold_out_is_in_the_log(project: Project) -> None:
    made = make_eval_set(project)
    client_of(admin_of(project)).post(f"/p/{project.slug}/evals/{made.pk}/holdout/")
    event = AuditEvent.objects.filter(action="holdout.view").first()
    assert (
        event
        and event.target_id == str(made.pk)
        and event.detail["n"] == made.tasks.holdout().count()
    )


def test_an_event_is_found_under_all_that_it_is_about(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    task = made.tasks.first()
    event = said(project, "task.confirmed", target=task, set=str(made), key=task.key)
    assert event.about == [
        object_name(task),
        object_name(made),
    ]  # not the run it was made from: that says what is held out
    assert f"the task “{task.key}”" in page(project, f"object={object_name(made)}")
