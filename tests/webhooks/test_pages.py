"""The pages of webhooks: added, looked at, tried, switched off and on, by operators only."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Project
from apps.webhooks import actions, sending
from apps.webhooks.models import Delivery, Event, Webhook
from tests.factories import admin_of, make_project
from tests.webhooks.receiver import Receiver, says

pytestmark = pytest.mark.django_db
NEW = {
    "url": "https://ci.example.com/hook",
    "format": "standard",
    "description": "CI",
    "events": ["evaluation.finished"],
}


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(admin_of(project))
    return client


def at(name: str, project: Project, *args: Any) -> str:
    return reverse(f"webhooks:{name}", args=[project.slug, *args])


def test_a_webhook_is_added_and_its_secret_shown_once(project: Project, admin: Client) -> None:
    assert "No webhooks yet" in admin.get(at("list", project)).content.decode()
    shown = admin.post(at("list", project), NEW, follow=True).content.decode()
    hook = Webhook.objects.get()
    assert (hook.url, hook.events, str(hook)) == (NEW["url"], NEW["events"], "CI")
    secret = re.search(r"<pre[^>]*>(.*?)</pre>", shown)[1]
    assert secret.startswith("whsec_") and "Nothing sent yet" in shown
    again = admin.get(at("detail", project, hook.pk)).content.decode()
    assert secret not in again and "whsec_…" in again
    event = AuditEvent.objects.get(action="webhook.created")
    assert event.detail == {"host": "ci.example.com", "events": ["evaluation.finished"]}


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "change,said",
    [
        ({"url": "ftp://x"}, "must begin with http://"),
        ({"url": "https://user:pw@ci.example.com/"}, "must not hold a user"),
        ({"url": "http://169.254.169.254/latest"}, "metadata service"),
        ({"url": ""}, "This field is required"),
        ({"events": []}, "Choose at least one."),
        ({"events": ["everything"]}, "Select a valid choice"),
    ],
)
def test_the_form_says_what_is_wrong(
    project: Project, admin: Client, change: dict, said: str
) -> None:
    assert said in admin.post(at("list", project), NEW | change).content.decode()
    assert not Webhook.objects.exists()


def test_private_addresses_are_refused_where_they_are_not_allowed(
    project: Project, admin: Client, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    answer = admin.post(at("list", project), NEW | {"url": "http://10.0.0.1/"})
    assert (
        "inside this machine or network" in answer.content.decode() and not Webhook.objects.exists()
    )


def test_there_is_a_limit(project: Project, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST", 1)
    admin.post(at("list", project), NEW)
    assert (
        "Delete one first" in admin.post(at("list", project), NEW).content.decode()
        and Webhook.objects.count() == 1
    )


@pytest.mark.proof
def test_a_test_event_is_followed_and_its_answer_shown_as_text(
    project: Project, admin: Client, hook: Webhook, receiver: Receiver
) -> None:
    receiver.replies = [says(500, b"<script>alert(1)</script>")]
    page = admin.post(at("test", project, hook.pk), follow=True).content.decode()
    assert 'hx-trigger="every 2s"' in page and "waiting" in page
    sending.send_due()
    log = admin.get(at("log", project, hook.pk)).content.decode()
    assert "hx-trigger" not in log and "failed" in log and "500" in log
    shown = admin.get(at("delivery", project, Delivery.objects.get().pk)).content.decode()
    assert "&lt;script&gt;alert(1)" in shown and "<script>alert" not in shown
    assert "The receiver answered with an error" in shown and "Accepted" not in shown
    assert "webhook-id" in shown and "&quot;type&quot;: &quot;webhook.test&quot;" in shown
    admin.post(at("again", project, Delivery.objects.get().pk))
    sending.send_due()
    assert Delivery.objects.get().state == "delivered"
    assert (
        "Accepted" in admin.get(at("delivery", project, Delivery.objects.get().pk)).content.decode()
    )


@pytest.mark.proof
def test_the_log_is_filtered(
    project: Project, admin: Client, hook: Webhook, receiver: Receiver
) -> None:
    actions.send_test(hook=hook, by=None)
    sending.send_due()
    actions.announce(project=project, event=Event.PROMOTION_MADE, subject="b", data={})
    address = at("detail", project, hook.pk)
    counts = [
        admin.get(address, query).context["page"].paginator.count
        for query in ({}, {"state": "waiting"}, {"event": "webhook.test"}, {"state": "failed"})
    ]
    assert counts == [2, 1, 1, 0]
    assert admin.get(address, {"state": "nonsense"}).status_code == 400
    assert "No matching deliveries" in admin.get(address, {"state": "failed"}).content.decode()


def test_it_is_edited_switched_and_deleted(project: Project, admin: Client, hook: Webhook) -> None:
    admin.post(at("edit", project, hook.pk), NEW)
    hook.refresh_from_db()
    assert (hook.url, hook.description) == (NEW["url"], "CI")
    for state in ("disabled", "enabled"):
        admin.post(at("switch", project, hook.pk))
        hook.refresh_from_db()
        assert hook.state == state
    before = hook.salt
    page = admin.post(at("rotate", project, hook.pk), follow=True).content.decode()
    hook.refresh_from_db()
    assert hook.salt != before and ">whsec_" in page and "the old secret is valid until" in page
    admin.post(at("delete", project, hook.pk))
    assert not Webhook.objects.exists()
    done = ["created", "edited", "disabled", "enabled", "secret_rotated", "deleted"]
    found = AuditEvent.objects.filter(action__startswith="webhook.").order_by("pk")
    assert [event.action for event in found] == [f"webhook.{what}" for what in done]


def test_a_webhook_that_was_disabled_by_itself_is_announced_to_operators(
    project: Project, admin: Client, hook: Webhook
) -> None:
    actions.disable(hook=hook, by=None, reason="It failed.")
    assert "It failed." in admin.get(at("list", project)).content.decode()
    assert f"Webhook {hook} was disabled" in admin.get(project.get_absolute_url()).content.decode()
    actions.enable(hook=hook, by=admin_of(project))
    assert "</a> webhook was disabled" not in admin.get(project.get_absolute_url()).content.decode()


def test_the_webhook_of_another_project_is_not_found(admin: Client, project: Project) -> None:
    other = make_project()
    hook = actions.create_webhook(
        project=other, url=NEW["url"], events=Event.values, by=admin_of(other)
    )
    row = actions.send_test(hook=hook, by=admin_of(other))
    for name in ("detail", "log", "edit"):
        assert admin.get(at(name, project, hook.pk)).status_code == 404
    for name in ("edit", "switch", "delete", "rotate", "test"):
        assert admin.post(at(name, project, hook.pk)).status_code == 404
    assert admin.get(at("delivery", project, row.pk)).status_code == 404
    assert admin.post(at("again", project, row.pk)).status_code == 404
