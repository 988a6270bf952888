"""Comments: who may read and write them, who is told, and that nothing held out is said to anybody
who has not opened it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import create_api_key, remove_member, set_member
from apps.core.models import AuditEvent, Project, Role
from apps.evals.holdout.view_log import record_output_view
from apps.evals.models import Task
from apps.failures.actions.diagnose import classify_project
from apps.notifications import mailing
from apps.notifications.models import Notification
from apps.teamwork import actions
from apps.teamwork.models import LONGEST, Comment
from apps.teamwork.targets import kind_named, kinds
from apps.teamwork.threads import SHOWN
from apps.trajectories.models import Trajectory
from apps.webhooks.actions import create_webhook
from apps.webhooks.models import Delivery
from tests.factories import (
    admin_of,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
SECRET = "the held-out answer is forty-two"


class World:
    def __init__(self, folder: Path) -> None:
        self.project = make_project()
        self.run = make_failed(self.project)
        classify_project(project=self.project)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, World)


@pytest.fixture
def world(kept: Any, db: None, settings: Any) -> World:
    return copied(kept, settings)


@pytest.fixture
def project(world: World) -> Project:
    return world.project


@pytest.fixture
def run(world: World) -> Trajectory:
    return world.run


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def say(run: Any, by: Any, text: str, kind: str = "trajectory") -> Comment:
    return actions.add_comment(
        project=run.project, kind=kind_named(kind), target=run, text=text, by=by
    )


def told(user: Any) -> list[tuple[str, str, str]]:
    rows = Notification.objects.filter(user=user).order_by("created_at")
    return [(row.topic, row.subject, row.excerpt) for row in rows]


def test_a_comment_on_the_page_with_its_link_and_its_mention(
    project: Project, run: Trajectory
) -> None:
    ada, bob = make_member(project, Role.REVIEWER), make_member(project, Role.VIEWER)
    url = reverse("teamwork:add", args=[project.slug, "trajectory", run.pk])
    text = f"@{bob} see https://example.org/x <img src=x onerror=alert(1)>"
    answer = client_of(ada).post(url, {"text": text}, headers={"HX-Request": "true"})
    said = answer.content.decode()
    assert (
        f'<b class="mention">@{bob}</b>' in said
        and "&lt;img src=x onerror=alert(1)&gt;" in said
        and "<img" not in said
    )
    assert '<a href="https://example.org/x" rel="nofollow noopener noreferrer"' in said
    row = Comment.objects.get()
    assert [*row.mentions.all()] == [bob]
    page = (
        client_of(bob)
        .get(reverse("trajectories:detail", args=[project.slug, run.pk]))
        .content.decode()
    )
    assert f'id="comment-{row.pk}"' in page and "data-mentions" not in page  # a viewer reads
    leads = client_of(bob).get(reverse("teamwork:comment", args=[project.slug, row.pk]))
    assert leads["Location"] == f"{run.get_absolute_url()}#comment-{row.pk}"


@pytest.mark.parametrize("text", ["", " \n ", "\0", "a" * (LONGEST + 1)])
def test_a_text_that_is_none_is_refused_and_kept_in_the_field(
    project: Project, run: Trajectory, text: str
) -> None:
    url = reverse("teamwork:add", args=[project.slug, "trajectory", run.pk])
    client = client_of(make_member(project, Role.REVIEWER))
    if "\0" in text:
        assert client.post(url, {"text": text}).status_code == 400
    else:
        answer = client.post(url, {"text": text}, headers={"HX-Request": "true"})
        assert answer.status_code == 200 and 'role="alert"' in answer.content.decode()
    assert not Comment.objects.exists()


def test_who_is_told_of_a_comment(project: Project, run: Trajectory) -> None:
    ada, bob, eve = (make_member(project, Role.REVIEWER) for _ in range(3))
    say(run, ada, "First.")
    assert told(ada) == []  # nobody is told of their own deed
    say(run, bob, f"Second, @{eve} @{bob}.")
    assert [topic for topic, *_ in told(ada)] == ["comment.added"]
    assert told(eve) == [
        (
            "comment.mention",
            f"{bob} mentioned you in a comment on the trajectory {run.external_id}",
            f"Second, @{eve} @{bob}.",
        )
    ]
    assert told(bob) == [] and told(admin_of(project)) == []
    say(run, eve, f"@{ada}")
    assert [topic for topic, *_ in told(ada)] == [
        "comment.added",
        "comment.mention",
    ]  # once, as the nearer of both


def test_the_one_whom_a_failure_is_assigned_to_is_told(project: Project, run: Trajectory) -> None:
    ada, bob = make_member(project, Role.REVIEWER), make_member(project, Role.REVIEWER)
    run.failure.assigned_to = ada
    run.failure.save()
    say(run.failure, bob, "What is it?", "failure")
    assert [topic for topic, *_ in told(ada)] == ["comment.added"]


def test_whoever_is_removed_is_told_nothing_and_cannot_be_mentioned(
    project: Project, run: Trajectory
) -> None:
    ada, bob = make_member(project, Role.REVIEWER), make_member(project, Role.REVIEWER)
    say(run, ada, "First.")
    say(run, bob, "Second.")
    remove_member(membership=project.memberships.get(user=ada), by=admin_of(project))
    say(run, bob, f"@{ada}, are you there?")
    assert Notification.objects.filter(user=ada).count() == 1
    assert not Notification.objects.visible_to(ada).exists()
    page = client_of(ada).get(reverse("notifications:list")).content.decode()
    assert "No notifications" in page and str(bob) not in page


def test_editing_and_deleting_ones_own(project: Project, run: Trajectory) -> None:
    ada, bob, eve = (make_member(project, Role.REVIEWER) for _ in range(3))
    row = say(run, ada, f"Wrong, @{bob}.")
    edit, delete = (
        reverse(f"teamwork:{what}", args=[project.slug, row.pk]) for what in ("edit", "delete")
    )
    client_of(bob).post(edit, {"text": "Mine now."})
    client_of(bob).post(delete)
    row.refresh_from_db()
    assert row.text == f"Wrong, @{bob}." and not row.deleted_at  # others' stay
    client_of(ada).post(edit, {"text": f"Right, @{bob} @{eve}."})
    row.refresh_from_db()
    assert row.edited_at and told(bob) == [
        ("comment.mention", told(bob)[0][1], f"Right, @{bob} @{eve}.")
    ]
    assert [topic for topic, *_ in told(eve)] == ["comment.mention"]
    page = client_of(ada).post(delete, headers={"HX-Request": "true"}).content.decode()
    assert "Deleted by its author." in page and "Right" not in page
    assert told(bob)[0][2] == told(eve)[0][2] == ""  # quoted nowhere any more
    client_of(ada).post(edit, {"text": "Again."})
    row.refresh_from_db()
    assert row.text == ""
    done = list(
        AuditEvent.objects.filter(action__startswith="comment.")
        .order_by("id")
        .values_list("action", flat=True)
    )
    assert done == ["comment.added", "comment.edited", "comment.deleted"]
    assert not AuditEvent.objects.filter(detail__icontains="Right").exists()


@pytest.mark.proof
def test_the_newest_comments_and_the_link_of_an_old_one(project: Project, run: Trajectory) -> None:
    by = admin_of(project)
    rows = [say(run, by, f"number {n:03}") for n in range(SHOWN + 5)]
    page = client_of(by).get(run.get_absolute_url()).content.decode()
    assert (
        "number 034" in page
        and "number 005" in page
        and "number 004" not in page
        and "Earlier comments" in page
    )
    leads = client_of(by).get(reverse("teamwork:comment", args=[project.slug, rows[2].pk]))[
        "Location"
    ]
    assert f"until={rows[2].pk}" in leads
    old = client_of(by).get(leads).content.decode()
    assert (
        f'id="comment-{rows[2].pk}"' in old and "number 003" not in old and "Newest comments" in old
    )


def test_an_object_of_another_project_has_no_comments_here(
    project: Project, run: Trajectory
) -> None:
    other = make_project()
    me, row = admin_of(other), say(run, admin_of(project), "Ours.")
    client = client_of(me)
    for name, args in (
        ("thread", ["trajectory", run.pk]),
        ("people", ["trajectory", run.pk]),
        ("comment", [row.pk]),
        ("edit", [row.pk]),
        ("thread", ["nothing", run.pk]),
        ("thread", ["trajectory", "x"]),
        ("thread", ["failure", "9" * 40]),
        ("thread", ["cluster", run.pk]),
    ):
        assert (
            client.get(reverse(f"teamwork:{name}", args=[other.slug, *args])).status_code == 404
        ), (name, args)
    assert (
        client.post(
            reverse("teamwork:add", args=[other.slug, "trajectory", run.pk]), {"text": "a"}
        ).status_code
        == 404
    )
    assert (
        client.get(
            reverse("teamwork:thread", args=[project.slug, "trajectory", run.pk])
        ).status_code
        == 404
    )


def test_names_are_suggested_of_those_who_may_see_it(project: Project, run: Trajectory) -> None:
    ada = make_member(project, Role.VIEWER)
    ada.first_name = "Ada Lovelace"
    ada.save()
    url = reverse("teamwork:people", args=[project.slug, "trajectory", run.pk])
    found = client_of(admin_of(project)).get(url, {"q": "LOVE"}).json()["people"]
    assert found == [{"name": str(ada), "full": "Ada Lovelace"}]


# What is held out


@pytest.fixture
def held(project: Project, data_dir: Path) -> dict[str, Any]:
    """An evaluation on a hold-out, a sample and a task of it, which one engineer has opened and
    commented on.
    """
    eval_set, base = make_eval_set(project), make_base(project, data_dir)
    run = make_eval_run(eval_set, base, make_environment(project))
    author = make_member(project, Role.ENGINEER)
    record_output_view(run, by=author)
    targets = {"evaluation": run, "sample": run.samples.first(), "task": run.samples.first().task}
    return {"run": run, "author": author, "targets": targets}


@pytest.mark.parametrize("kind", ["evaluation", "sample", "task"])
def test_what_is_said_of_a_hold_out_is_read_by_who_has_opened_it(
    project: Project, held: dict[str, Any], kind: str
) -> None:
    target, author = held["targets"][kind], held["author"]
    engineer, viewer, reviewer = (
        make_member(project, role) for role in (Role.ENGINEER, Role.VIEWER, Role.REVIEWER)
    )
    create_webhook(
        project=project,
        url="https://chat.example.com/",
        events=["comment.added"],
        by=author,
        format="slack",
    )
    create_webhook(
        project=project, url="https://ci.example.com/", events=["comment.added"], by=author
    )
    row = actions.add_comment(
        project=project,
        kind=kind_named(kind),
        target=target,
        text=f"@{engineer} @{viewer} @{reviewer} {SECRET}",
        by=author,
    )
    assert told(viewer) == told(reviewer) == [] and [*row.mentions.all()] == [engineer]
    assert [(topic, excerpt) for topic, _, excerpt in told(engineer)] == [("comment.mention", "")]
    assert not Notification.objects.filter(excerpt__contains=SECRET).exists()
    assert (
        Delivery.objects.count() == 2
        and not Delivery.objects.filter(body__contains=SECRET).exists()
    )
    thread = reverse("teamwork:thread", args=[project.slug, kind, target.pk])
    add, people = (
        reverse(f"teamwork:{name}", args=[project.slug, kind, target.pk])
        for name in ("add", "people")
    )
    link = reverse("teamwork:comment", args=[project.slug, row.pk])
    for person in (viewer, reviewer, engineer):
        client = client_of(person)
        for url in (
            thread,
            link,
            held["run"].get_absolute_url(),
            held["targets"]["sample"].get_absolute_url(),
        ):
            assert SECRET not in client.get(url, follow=True).content.decode()
        assert client.post(add, {"text": "Let me in."}).status_code == (
            403 if person == viewer else 404
        )
        assert client.get(people).status_code == (403 if person == viewer else 404)
    record_output_view(held["run"], by=engineer)
    assert SECRET in client_of(engineer).get(thread).content.decode()
    assert SECRET in client_of(author).get(thread).content.decode()
    set_member(
        project=project, user=author, role=Role.REVIEWER, by=admin_of(project)
    )  # who has opened it, but may no longer
    assert SECRET not in client_of(author).get(thread).content.decode()


@pytest.mark.parametrize("seen_in", ["the list", "a mail"])
def test_what_was_quoted_of_a_run_is_withdrawn_when_it_is_held_out(
    project: Project, run: Trajectory, settings: Any, seen_in: str
) -> None:
    settings.FLYWHEEL_MAIL = True
    ada = make_member(project)
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@example.org")
    say(run, admin_of(project), f"@{ada} {SECRET}")
    assert SECRET in client_of(ada).get(reverse("notifications:list")).content.decode()
    draft = make_eval_set(project, train=0, holdout=1, frozen=False)
    Task.objects.filter(pk=draft.tasks.get().pk).update(trajectory=run)
    if seen_in == "a mail":
        Notification.objects.update(mail_due_at=timezone.now())
        assert (
            mailing.send_due() == 1
            and "mentioned you" in mail.outbox[0].body
            and SECRET not in str(mail.outbox[0].message())
        )
    else:
        assert SECRET not in client_of(ada).get(reverse("notifications:list")).content.decode()
    assert Notification.objects.get(user=ada).excerpt == ""


def test_a_key_reads_what_is_said_of_a_hold_out_if_it_may_see_it(
    project: Project, held: dict[str, Any]
) -> None:
    target, by = held["targets"]["sample"], admin_of(project)
    actions.add_comment(
        project=project, kind=kind_named("sample"), target=target, text=SECRET, by=held["author"]
    )
    url = f"{reverse('teamwork_api:comments')}?on=sample:{target.pk}"
    for sees in (False, True):
        key = create_api_key(project=project, name="k", by=by, may_see_holdout=sees)[1]
        answer = Client().get(url, headers={"Authorization": f"Bearer {key}"})
        assert (answer.status_code, SECRET in answer.content.decode()) == (
            (200, True) if sees else (403, False)
        )


def test_comments_go_with_what_they_are_on(project: Project, run: Trajectory) -> None:
    ada = make_member(project)
    say(run.failure, admin_of(project), f"@{ada} quotes it", "failure")
    say(run, admin_of(project), "stays")
    run.failure.delete()
    assert actions.forget_orphans() == 1
    assert [row.text for row in Comment.objects.all()] == ["stays"]
    assert told(ada)[0][2] == ""


# By API


@pytest.mark.proof
def test_comments_by_api(project: Project, run: Trajectory) -> None:
    by = admin_of(project)
    key = create_api_key(project=project, name="k", by=by)[1]
    headers, url = {"Authorization": f"Bearer {key}"}, reverse("teamwork_api:comments")
    on, ada = f"trajectory:{run.pk}", make_member(project)
    body = json.dumps({"on": on, "text": f"@{ada} look"})
    made = Client().post(url, body, content_type="application/json", headers=headers)
    assert (
        made.status_code == 201
        and made.json()["by"] == str(by)
        and made.json()["mentions"] == [str(ada)]
    )
    assert [
        row["id"] for row in Client().get(f"{url}?on={on}", headers=headers).json()["results"]
    ] == [made.json()["id"]]
    one = reverse("teamwork_api:comment", args=[made.json()["id"]])
    body = json.dumps({"text": "changed"})
    changed = Client().patch(one, body, content_type="application/json", headers=headers)
    assert changed.json()["text"] == "changed" and changed.json()["edited_at"]
    assert Client().delete(one, headers=headers).status_code == 204
    assert Client().get(one, headers=headers).json()["text"] == ""
    again = Client().patch(one, body, content_type="application/json", headers=headers)
    assert again.status_code == 409
    for wrong in (
        "",
        "trajectory",
        "x:1",
        "cluster:1",
        f"trajectory:{make_failed(make_project()).pk}",
    ):
        assert Client().get(url, {"on": wrong}, headers=headers).status_code in (400, 404), wrong
    for text in (
        "",
        "\u200b\u2060 \u00a0",
        "\ud800",
        "x" * 4001,
    ):  # nothing to see, half of a letter, too long
        refused = Client().post(
            url, {"on": on, "text": text}, content_type="application/json", headers=headers
        )
        assert refused.status_code == 400 and refused.json()["path"] == "text", text
    theirs = say(run, ada, "Hers.")
    one = reverse("teamwork_api:comment", args=[theirs.pk])
    assert Client().delete(one, headers=headers).status_code == 403


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", ["run-1", "a/b:c d", "http://x/?y=1&z", "訪問"])
@pytest.mark.parametrize("kind", ["trajectory", "failure"])
def test_a_run_has_the_id_under_which_the_api_knows_it(
    project: Project, name: str, kind: str
) -> None:
    headers = {
        "Authorization": (
            f"Bearer {create_api_key(project=project, name='k', by=admin_of(project))[1]}"
        )
    }
    run, url = make_failed(project, name=name), reverse("teamwork_api:comments")
    make_failed(project, name=str(run.pk))  # which is no way to another's comments
    classify_project(project=project)
    on = f"{kind}:{name}"
    made = Client().post(
        url, {"on": on, "text": "Look"}, content_type="application/json", headers=headers
    )
    assert made.status_code == 201 and made.json()["on"] == on, made.json()
    assert [
        row["on"] for row in Client().get(url, {"on": on}, headers=headers).json()["results"]
    ] == [on]
    assert not Client().get(url, {"on": f"{kind}:{run.pk}"}, headers=headers).json()["results"]
    one = reverse("teamwork_api:comment", args=[made.json()["id"]])
    assert Client().get(one, headers=headers).json()["on"] == on
    target = run if kind == "trajectory" else run.failure
    assert [row.text for row in Comment.objects.about(target)] == ["Look"]
    elsewhere = make_failed(make_project(), name="other")
    assert (
        Client().get(url, {"on": f"{kind}:{elsewhere.external_id}"}, headers=headers).status_code
        == 404
    )


def test_every_id_of_the_api_is_that_of_what_is_commented_on() -> None:
    """A kind whose primary key no route returns needs the id that they do return."""
    returned = {"task", "sample", "evaluation", "training", "report", "flow"}  # str(pk), or pk
    assert {
        kind.name for kind in kinds() if kind.takes_comments and kind.key_of is None
    } == returned
