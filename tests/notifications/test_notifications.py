"""Notifications: who is told of what, in the app and by email, once; what each person chose; what
nobody is told.
"""

from __future__ import annotations

import smtplib
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import accept_invitation, create_api_key, invite, remove_member, set_member
from apps.core.bus import publish
from apps.core.jobs import JobEnded
from apps.core.kinds import job_models
from apps.core.models import JobState, Project, Role
from apps.notifications import actions, mailing, sources
from apps.notifications.catalogue import RULES, Topic
from apps.notifications.models import Mail, Notification, Preference
from apps.promotion import actions as promotion
from apps.registry import servers
from apps.registry.models import Health, Server
from apps.reviews.actions import override_lock
from apps.webhooks.models import Event
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
    make_user,
)
from workers.lib.serving import Listing

pytestmark = pytest.mark.django_db


@pytest.fixture
def mails(settings: Any) -> None:
    settings.FLYWHEEL_MAIL = True
    settings.FLYWHEEL_URL = "https://fly.example.com"


@pytest.fixture
def ada(project: Project) -> Any:
    made = make_member(project)
    made.email = "ada@example.org"
    made.save()
    return made


def tell(project: Project, topic: Topic = Topic.MENTION, key: str = "k", **more: Any) -> int:
    given = {"subject": "Something happened", "page": f"/p/{project.slug}/", "key": key} | more
    return actions.notify(topic=topic, project=project, **given)


def make_due() -> None:
    Notification.objects.update(mail_due_at=timezone.now() - timedelta(seconds=1))


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def topics_of(user: Any) -> list[str]:
    return [
        row.topic for row in Notification.objects.filter(user=user).order_by("created_at", "pk")
    ]


def test_the_catalogue_has_a_rule_for_every_event_and_one_name_for_each() -> None:
    assert set(RULES) == set(Topic)
    shared = set(Topic.values) & set(Event.values)
    assert {
        "flow.waiting",
        "comment.added",
        "override.used",
        "server.down",
        "gate_report.made",
    } <= shared
    groups = [RULES[topic].group for topic in Topic]
    assert len(dict.fromkeys(groups)) == sum(
        one != two for one, two in zip(groups, [None, *groups], strict=False)
    )


def test_only_members_with_the_role_and_never_ones_own_deed(project: Project, ada: Any) -> None:
    viewer, stranger, gone = make_member(project, Role.VIEWER), make_user(), make_member(project)
    gone.is_active = False
    gone.save()
    assert tell(project, to=[ada, viewer, stranger, gone, None], by=ada) == 1
    assert (
        tell(project, Topic.GATE_REPORT, key="2", to=None) == 2
    )  # ada and the owner: engineers and up
    assert topics_of(viewer) == ["comment.mention"] and topics_of(stranger) == topics_of(gone) == []
    assert tell(project, key="3", to=[viewer], role=Role.ENGINEER) == 0


def test_what_is_reported_twice_is_told_once(project: Project, ada: Any) -> None:
    for _ in range(2):
        tell(project, to=[ada])
    assert len(topics_of(ada)) == 1


def test_the_bell_the_list_and_reading(project: Project, ada: Any) -> None:
    client, hostile = client_of(ada), "<script>alert(1)</script>\r\nBcc: x"
    tell(project, to=[ada], subject=hostile, excerpt="quoted")
    tell(project, Topic.PROMOTED, key="2", to=[ada], subject="Promoted")
    page = client.get(f"/p/{project.slug}/").content.decode()
    assert '2<span class="unseen"> unread</span>' in page
    said = client.get(reverse("notifications:list")).content.decode()
    assert "&lt;script&gt;" in said and "<script>alert" not in said and "quoted" in said
    only = client.get(reverse("notifications:list"), {"topic": "promotion.made"}).content.decode()
    assert "Promoted" in only and "quoted" not in only
    row = Notification.objects.get(topic=Topic.MENTION)
    assert client.get(reverse("notifications:open", args=[row.pk]))["Location"] == row.page
    unread = client.get(reverse("notifications:list"), {"show": "unread"}).content.decode()
    assert "Promoted" in unread and "quoted" not in unread
    assert "1<span" in client.get(reverse("notifications:count")).content.decode()
    client.post(reverse("notifications:read"), {"query": "show=unread"})
    assert (
        "Nothing here"
        in client.get(reverse("notifications:list"), {"show": "unread"}).content.decode()
    )
    assert "unread" not in client.get(reverse("notifications:count")).content.decode().replace(
        "show=unread", ""
    )


def test_others_notifications_are_not_there(project: Project, ada: Any) -> None:
    tell(project, to=[ada])
    row = Notification.objects.get()
    other = client_of(make_member(project))
    assert other.get(reverse("notifications:open", args=[row.pk])).status_code == 404
    other.post(reverse("notifications:read"), {"id": row.pk})
    other.post(reverse("notifications:read"))
    row.refresh_from_db()
    assert row.read_at is None
    for odd in ("\x00", "x", "9" * 400):
        assert (
            other.get(
                reverse("notifications:list"), {"page": odd, "topic": odd, "project": odd}
            ).status_code
            < 500
        )


def test_after_a_demotion_what_the_role_may_not_see_is_gone(project: Project, ada: Any) -> None:
    tell(project, Topic.GATE_REPORT, to=[ada], subject="Gate")
    set_member(project=project, user=ada, role=Role.VIEWER, by=admin_of(project))
    assert not Notification.objects.visible_to(ada).exists()
    assert (
        client_of(ada)
        .get(reverse("notifications:open", args=[Notification.objects.get(user=ada).pk]))
        .status_code
        == 404
    )


# By email


def test_what_waits_goes_in_one_mail(project: Project, ada: Any, mails: None) -> None:
    for n in range(3):
        tell(project, key=str(n), to=[ada], subject=f"Event <{n}>", excerpt="a & b")
    assert mailing.send_due() == 0  # the digest waits for what happens meanwhile
    make_due()
    assert mailing.send_due() == 1 and mailing.send_due() == 0
    (sent,) = mail.outbox
    assert sent.to == ["ada@example.org"] and sent.subject == "[Flywheel] 3 notifications"
    html = sent.alternatives[0][0]
    assert (
        "Event <0>" in sent.body
        and "a & b" in sent.body
        and "Event &lt;0&gt;" in html
        and "Event <0>" not in html
    )
    row = Notification.objects.first()
    assert (
        f"https://fly.example.com/notifications/{row.pk}/" in sent.body
        and sent.extra_headers["Message-ID"]
    )
    assert {row.mail for row in Notification.objects.all()} == {Mail.SENT}


def test_a_hostile_subject_is_one_line(project: Project, ada: Any, mails: None) -> None:
    tell(project, to=[ada], subject="a\r\nBcc: eve@example.org\r\n\r\nb" + "x" * 900)
    make_due()
    assert mailing.send_due() == 1
    assert "\n" not in mail.outbox[0].subject and mail.outbox[0].message()["Bcc"] is None


def test_without_a_mail_server_nothing_waits(project: Project, ada: Any, settings: Any) -> None:
    settings.FLYWHEEL_MAIL = False
    tell(project, to=[ada])
    assert Notification.objects.get().mail == Mail.NONE and mailing.send_due() == 0
    page = client_of(ada).get(reverse("notifications:preferences")).content.decode()
    assert "sends no email" in page and "disabled" in page


@pytest.mark.parametrize("why", ["removed", "demoted", "inactive", "no address"])
def test_who_may_see_it_is_looked_at_when_it_is_sent(
    project: Project, ada: Any, mails: None, why: str
) -> None:
    tell(
        project, Topic.OVERRIDE if why == "demoted" else Topic.MENTION, to=[ada], role=Role.ENGINEER
    )
    assert Notification.objects.get().mail == Mail.WAITING
    if why == "removed":
        remove_member(membership=project.memberships.get(user=ada), by=admin_of(project))
    elif why == "demoted":
        set_member(project=project, user=ada, role=Role.VIEWER, by=admin_of(project))
    elif why == "inactive":
        ada.is_active = False
    else:
        ada.email = ""
    ada.save()
    make_due()
    assert mailing.send_due() == 0 and not mail.outbox
    assert Notification.objects.get(user=ada).mail == Mail.DROPPED


def test_a_server_that_refuses_is_tried_again_and_given_up_in_the_end(
    project: Project, ada: Any, mails: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(project, to=[ada])
    asked = []

    def refuse(self: Any, *args: Any, **kwargs: Any) -> int:
        asked.append(1)
        raise smtplib.SMTPServerDisconnected("gone")

    monkeypatch.setattr("django.core.mail.EmailMessage.send", refuse)
    for n in range(mailing.TRIES):
        make_due()
        assert mailing.send_due() == 0 and len(asked) == n + 1
        row = Notification.objects.get()
        assert row.mail == (Mail.WAITING if n + 1 < mailing.TRIES else Mail.FAILED)
        assert row.mail == Mail.FAILED or row.mail_due_at > timezone.now()
    make_due()
    mailing.send_due()
    assert len(asked) == mailing.TRIES


def test_an_address_that_is_none_keeps_nobody_elses_mail(
    project: Project, ada: Any, mails: None
) -> None:
    get_user_model().objects.filter(pk=ada.pk).update(email="ada@exam\u202eple.org")
    bob = make_member(project)
    get_user_model().objects.filter(pk=bob.pk).update(email="bob@example.org")
    tell(project, to=[ada, bob])
    make_due()
    assert mailing.send_due() == 1 and [sent.to for sent in mail.outbox] == [["bob@example.org"]]


def test_a_worker_that_dies_while_it_sends_loses_nothing(
    project: Project, ada: Any, mails: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(project, to=[ada])
    make_due()
    with monkeypatch.context() as patch:
        patch.setattr(
            "django.core.mail.EmailMessage.send",
            lambda self, *args, **kwargs: (_ for _ in ()).throw(SystemExit),
        )
        with pytest.raises(SystemExit):
            mailing.send_due()
    tell(project, key="2", to=[ada])
    assert (
        mailing.send_due() == 0 and not mail.outbox
    )  # until the lease is over, nobody else sends it
    make_due()
    assert mailing.send_due() == 1 and "2 notifications" in mail.outbox[0].subject


def test_two_workers_do_not_send_the_same(project: Project, ada: Any, mails: None) -> None:
    tell(project, to=[ada])
    make_due()
    assert mailing._claim(ada) and not mailing._claim(ada)


def test_preferences(project: Project, ada: Any, mails: None) -> None:
    client, url = client_of(ada), reverse("notifications:preferences")
    boxes = {f"app:{topic}": "on" for topic in Topic.values if topic != Topic.JOB_FAILED} | {
        "mail:promotion.made": "on"
    }
    assert client.post(url, boxes).status_code == 302
    assert tell(project, Topic.JOB_FAILED, to=[ada]) == 0
    tell(project, Topic.PROMOTED, key="2", to=[ada])
    tell(project, Topic.MENTION, key="3", to=[ada])
    assert [row.mail for row in Notification.objects.order_by("created_at")] == [
        Mail.WAITING,
        Mail.NONE,
    ]
    assert not Preference.objects.filter(
        topic=Topic.JOB_ENDED
    ).exists()  # the same as the rule: no row
    tell(project, Topic.JOB_FAILED, key="4", to=[ada])
    assert len(topics_of(ada)) == 2


def test_without_a_mail_server_the_choice_of_mails_is_kept(
    project: Project, ada: Any, settings: Any
) -> None:
    settings.FLYWHEEL_MAIL = False
    client_of(ada).post(reverse("notifications:preferences"), {"app:comment.mention": "on"})
    settings.FLYWHEEL_MAIL = True
    assert actions.choices([ada.pk], Topic.MENTION) == {ada.pk: (True, True)}


def test_old_ones_are_forgotten(project: Project, ada: Any, mails: None) -> None:
    for n, days in enumerate((91, 89)):
        tell(project, Topic.PROMOTED, key=str(n), to=[ada])
        Notification.objects.filter(key=str(n)).update(
            created_at=timezone.now() - timedelta(days=days)
        )
    tell(project, key="waits", to=[ada])
    Notification.objects.filter(key="waits").update(created_at=timezone.now() - timedelta(days=99))
    assert actions.forget_old() == 1
    assert set(Notification.objects.values_list("key", flat=True)) == {"1", "waits"}


# What is told


def test_how_a_job_ends_is_told_to_who_started_it(project: Project, data_dir: Path) -> None:
    by = make_member(project)
    rows = [
        make_eval_run(
            make_eval_set(project), make_base(project, data_dir), make_environment(project)
        )
        for _ in range(1)
    ]
    run = rows[0]
    type(run).objects.filter(pk=run.pk).update(
        state=JobState.RUNNING, finished_at=None, created_by=by
    )
    Notification.objects.all().delete()
    run.refresh_from_db()
    assert jobs.end(run, JobState.FAILED, error="It quotes the held-out task.")
    (row,) = Notification.objects.all()
    assert (row.user, row.topic, row.page) == (by, "job.failed", run.get_absolute_url())
    assert "quotes" not in row.subject + row.excerpt


def test_every_kind_of_job_that_is_told_has_a_page(project: Project) -> None:
    """Telling is a part of ending a job: what fails there would keep the job from ending."""
    told = [model for model in job_models() if hasattr(model, "get_absolute_url")]
    assert {"EvalRun", "TrainingRun", "ProbeRun", "Rescore", "PromptSearch"} <= {
        model.__name__ for model in told
    }
    for model in told:
        owner = (
            {"eval_set_id": UUID(int=1)}
            if any(field.name == "eval_set" for field in model._meta.fields)
            else {}
        )
        job = model(
            project=project,
            name="n" * 200 + "\0",
            state=JobState.SUCCEEDED,
            created_by=admin_of(project),
            **owner,
        )
        publish(JobEnded(job, by=None))
    assert Notification.objects.count() == len(told)


def test_an_accepted_invitation(project: Project) -> None:
    owner = admin_of(project)
    invitation, _ = invite(project=project, email="eve@example.org", role=Role.REVIEWER, by=owner)
    accept_invitation(invitation=invitation, by=make_user("eve"))
    assert Notification.objects.get(user=owner).subject == f"eve joined {project} as reviewer"


def test_a_key_that_expires_soon_is_told_once(project: Project) -> None:
    operator = make_member(project, Role.OPERATOR)
    soon = timezone.now() + timedelta(days=3)
    create_api_key(project=project, name="ci", by=operator, expires_at=soon)
    create_api_key(
        project=project, name="later", by=operator, expires_at=timezone.now() + timedelta(days=99)
    )
    for _ in range(2):
        sources.warn_of_keys()
    assert [row.subject for row in Notification.objects.filter(user=operator)] == [
        f"The API key “ci” ({project.api_keys.get(name='ci').prefix}…) expires on {soon:%-d %B %Y}"
    ]
    set_member(project=project, user=operator, role=Role.VIEWER, by=admin_of(project))
    sources.warn_of_keys()
    assert topics_of(admin_of(project)) == ["key.expiring"]  # who may replace it


def test_a_server_that_goes_down_is_told_once(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, engineer = make_member(project, Role.OPERATOR), make_member(project)
    server = Server.objects.create(
        project=project, name="gpu", base_url="https://gpu.example.com/v1"
    )
    for health in (Health.DOWN, Health.HEALTHY, Health.DOWN, Health.DOWN):
        monkeypatch.setattr(
            servers, "list_models", lambda address, health=health: Listing(health, "…", [])
        )
        servers.refresh_health(server)
    assert topics_of(operator) == ["server.down"] and topics_of(engineer) == []


def test_the_gate_a_promotion_an_override_and_a_rollback(project: Project, data_dir: Path) -> None:
    owner, other, engineer, viewer = (
        admin_of(project),
        *(make_member(project, role) for role in (Role.OWNER, Role.ENGINEER, Role.VIEWER)),
    )
    base, environment, eval_set = (
        make_base(project, data_dir),
        make_environment(project),
        make_eval_set(project),
    )
    adapter = make_adapter(project, base, data_dir)
    before, after = (
        make_eval_run(eval_set, base, environment, success=1.0),
        make_eval_run(eval_set, adapter, environment, success=0.2),
    )
    channel = promotion.channel_of(project)
    promotion.set_initial(channel=channel, version=base, by=owner)
    Notification.objects.all().delete()
    report = promotion.make_gate_report(baseline=before, candidate=after, by=owner)
    assert report.verdict != "promote"
    assert (
        topics_of(engineer) == topics_of(other) == ["gate_report.made"]
        and topics_of(viewer) == topics_of(owner) == []
    )
    channel.refresh_from_db()
    promotion.promote(channel=channel, report=report, by=owner, reason="I know better")
    assert topics_of(other) == ["gate_report.made", "promotion.made", "override.used"]
    assert topics_of(viewer) == ["promotion.made"]
    promotion.rollback(channel=channel, by=owner, reason="I did not")
    assert topics_of(viewer) == ["promotion.made", "rollback.made"] and topics_of(owner) == []
    override_lock(verifier=environment.verifier, reason="no time", by=other)
    assert topics_of(owner) == ["override.used"] and topics_of(engineer)[-1] == "rollback.made"


def test_nothing_is_told_across_projects(project: Project, ada: Any) -> None:
    assert tell(make_project(), to=[ada]) == 0
