"""Webhooks over REST: what the pages do, for keys that may manage and whose creator is an
operator.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.webhooks import actions, sending
from apps.webhooks.models import Delivery, Event, Webhook
from tests.factories import make_key, make_project
from tests.webhooks.receiver import Receiver, says

pytestmark = pytest.mark.django_db


class Api:
    def __init__(self, secret: str) -> None:
        self.headers = {"Authorization": f"Bearer {secret}"}

    def __call__(self, method: str, name: str, *args: Any, body: Any = None, **query: Any) -> Any:
        url = reverse(f"webhooks_api:{name}", args=args, query=query or None)
        more = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(Client(), method)(url, headers=self.headers, **more)


@pytest.fixture
def api(project: Project) -> Api:
    return Api(make_key(project))


def test_it_is_added_read_changed_and_deleted(api: Api) -> None:
    made = api("post", "webhooks", body={"url": "https://ci.example.com/hook"})
    assert made.status_code == 201 and made.json()["secret"].startswith("whsec_")
    assert made.json()["events"] == Event.values and made.json()["state"] == "enabled"
    pk = made.json()["id"]
    (listed,) = api("get", "webhooks").json()["results"]
    assert listed == api("get", "webhook", pk).json() and "secret" not in listed
    changed = api("patch", "webhook", pk, body={"events": ["gate_report.made"], "enabled": False})
    assert (
        changed.json()["events"] == ["gate_report.made"] and changed.json()["state"] == "disabled"
    )
    assert changed.json()["url"] == "https://ci.example.com/hook"
    assert api("patch", "webhook", pk, body={"enabled": True}).json()["state"] == "enabled"
    rotated = api("post", "secret", pk).json()
    assert rotated["secret"] not in ("", made.json()["secret"]) and rotated["old_until"]
    assert api("delete", "webhook", pk).status_code == 204 and not Webhook.objects.exists()


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "body,path",
    [
        ({}, "url"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "https://x.example.com", "events": ["all"]}, "events"),
        ({"url": "https://x.example.com", "events": []}, "events"),
        ({"url": "https://x.example.com", "name": "x"}, "name"),
        ({"url": "https://x.example.com", "description": "\x00"}, "description"),
        ({"url": "https://x.example.com/\ud800"}, "url"),
    ],
)
def test_it_says_what_is_wrong(api: Api, body: dict, path: str) -> None:
    answer = api("post", "webhooks", body=body)
    assert answer.status_code == 400 and path in f"{answer.json()['path']} {answer.json()['error']}"


def test_deliveries_are_listed_read_and_sent_again(
    api: Api, project: Project, hook: Webhook, receiver: Receiver
) -> None:
    receiver.replies = [says(500, b"no")]
    row = api("post", "test", hook.pk)
    assert row.status_code == 202 and row.json()["state"] == "waiting"
    assert api("post", "again", row.json()["id"]).status_code == 409
    sending.send_due()
    whole = api("get", "delivery", row.json()["id"]).json()
    assert (
        whole["state"] == "failed"
        and whole["log"][0]["response"] == "no"
        and '"webhook.test"' in whole["body"]
    )
    assert whole["webhook_id"] == receiver.got[0].headers["webhook-id"]
    assert api("post", "again", row.json()["id"]).json()["state"] == "waiting"
    sending.send_due()
    for number in range(3):
        actions.announce(project=project, event=Event.PROMOTION_MADE, subject=str(number), data={})
    first = api("get", "deliveries", hook.pk, limit=2).json()
    rest = api("get", "deliveries", hook.pk, limit=2, cursor=first["next"]).json()
    assert len(first["results"]) == len(rest["results"]) == 2 and rest["next"] is None
    assert len(api("get", "deliveries", hook.pk, state="delivered").json()["results"]) == 1
    for query in ({"state": "x"}, {"limit": "0"}, {"cursor": "x"}):
        assert api("get", "deliveries", hook.pk, **query).status_code == 400


def test_those_of_another_project_are_not_found(hook: Webhook) -> None:
    row, other = actions.send_test(hook=hook, by=None), Api(make_key(make_project()))
    for method, name in (
        ("get", "webhook"),
        ("delete", "webhook"),
        ("post", "secret"),
        ("post", "test"),
        ("get", "deliveries"),
    ):
        assert other(method, name, hook.pk).status_code == 404
    assert (
        other("get", "delivery", row.pk).status_code
        == other("post", "again", row.pk).status_code
        == 404
    )
    assert Delivery.objects.count() == 1 and Webhook.objects.count() == 1
