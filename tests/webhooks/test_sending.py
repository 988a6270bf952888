"""Every event that was committed arrives, whatever the receiver, the broker or a worker does
meanwhile.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from apps.core import outbox
from apps.core.models import AuditEvent
from apps.webhooks import actions, sending, signing, tasks
from apps.webhooks.models import EXCERPT, TEST, TRIES, Attempt, Delivery, Event, Webhook
from tests.factories import admin_of, make_project
from tests.webhooks.receiver import Receiver, running, says

pytestmark = pytest.mark.django_db


def tell(hook: Webhook, number: int = 1) -> Delivery:
    assert actions.announce(
        project=hook.project,
        event=Event.GATE_REPORT_MADE,
        subject=f"report {number}",
        data={"verdict": "promote", "n": number},
    )
    return Delivery.objects.get(webhook=hook, subject=f"report {number}")


def due_now() -> None:
    """The time of all waits has come."""
    Delivery.objects.filter(state="waiting").update(due_at=Now() - timedelta(seconds=1))


def rounds(row: Delivery, count: int = 1) -> Delivery:
    for _ in range(count):
        due_now()
        sending.send_due()
    row.refresh_from_db()
    return row


def test_an_event_arrives_signed_and_is_logged(
    made: tuple[Webhook, str], receiver: Receiver
) -> None:
    hook, secret = made
    receiver.replies = [says(202, b"queued")]
    row = tell(hook)
    assert sending.send_due() == 1 and sending.send_due() == 0
    row.refresh_from_db()
    (got,) = receiver.got
    assert got.path == "/hook" and got.headers["content-type"] == "application/json"
    body = json.loads(got.body)
    assert body["type"] == "gate_report.made" and body["timestamp"].endswith("Z")
    assert body["data"] == {"project": hook.project.slug, "verdict": "promote", "n": 1}
    message_id, at = got.headers["webhook-id"], int(got.headers["webhook-timestamp"])
    assert message_id == row.message_id
    assert got.headers["webhook-signature"] == signing.signature(secret, message_id, at, got.body)
    (attempt,) = row.attempts.all()
    assert (row.state, row.attempt, row.last_status) == ("delivered", 1, 202) and row.finished_at
    assert (attempt.status, attempt.response, attempt.error) == (
        202,
        "queued",
        "",
    ) and attempt.latency_ms > 0


def test_a_failure_is_tried_again_under_the_same_id(hook: Webhook, receiver: Receiver) -> None:
    receiver.replies = [says(500, b"oops"), says(200)]
    row = rounds(tell(hook))
    assert row.state == "waiting" and row.due_at > timezone.now() and row.last_status == 500
    hook.refresh_from_db()
    assert hook.state == "failing"
    assert sending.send_due() == 0  # not yet
    assert rounds(row).state == "delivered"
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"] and first.body == second.body
    assert [attempt.status for attempt in row.attempts.all()] == [200, 500]
    hook.refresh_from_db()
    assert hook.state == "enabled"


@pytest.mark.parametrize(
    "reply,status,error",
    [
        (
            says(301, Location="/elsewhere"),
            301,
            "The URL redirects, and redirects are not followed",
        ),
        (says(404), 404, ""),
        (says(500, b""), 500, ""),
    ],
)
def test_what_is_not_2xx_is_a_failure(
    hook: Webhook, receiver: Receiver, reply: Any, status: int, error: str
) -> None:
    receiver.replies = [reply]
    row = rounds(tell(hook))
    attempt = row.attempts.get()
    assert (row.state, attempt.status) == ("waiting", status) and attempt.error.startswith(error)
    assert [got.path for got in receiver.got] == ["/hook"]


def test_a_receiver_that_is_down_is_tried_again(hook: Webhook, receiver: Receiver) -> None:
    row = tell(hook)
    with running() as gone:
        pass
    Webhook.objects.update(url=gone.url)
    assert rounds(row).state == "waiting" and row.attempts.get().error.startswith("No connection")
    Webhook.objects.update(url=receiver.url)
    assert rounds(row).state == "delivered"


def test_a_receiver_that_hangs_holds_up_no_other(
    hook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 1.0)
    with running() as other:
        url, by = other.url, admin_of(hook.project)
        healthy = actions.create_webhook(
            project=hook.project, url=url, events=[Event.GATE_REPORT_MADE], by=by
        )
        receiver.replies = [receiver.hangs]
        row = tell_both(hook)
        sending.send_due()
        assert Delivery.objects.get(webhook=healthy).attempts.get().status == 200
    row.refresh_from_db()
    assert row.state == "waiting" and row.attempts.get().error == "No answer within 1 s."


def tell_both(hook: Webhook) -> Delivery:
    actions.announce(project=hook.project, event=Event.GATE_REPORT_MADE, subject="s", data={})
    return Delivery.objects.get(webhook=hook)


def test_the_status_alone_decides(
    hook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 1.0)
    receiver.replies = [receiver.hangs_in_the_body]
    assert rounds(tell(hook)).state == "delivered"


@pytest.mark.parametrize(
    "body,kept",
    [
        (b"x" * 1_000_000, "x" * EXCERPT),
        (b"a\x00b\xff<script>", "a\ufffdb\ufffd<script>"),
        (b"", ""),
    ],
)
def test_an_answer_is_kept_in_bounds(
    hook: Webhook, receiver: Receiver, body: bytes, kept: str
) -> None:
    receiver.replies = [says(200, body)]
    assert rounds(tell(hook)).attempts.get().response == kept


def test_a_packed_answer_is_not_unpacked(hook: Webhook, receiver: Receiver) -> None:
    receiver.replies = [says(200, b"\x1f\x8b", Content_Encoding="gzip")]
    row = rounds(tell(hook))
    assert row.state == "delivered" and row.attempts.get().response == "(packed)"


def test_an_address_inside_is_not_called_where_that_is_forbidden(
    hook: Webhook, receiver: Receiver, settings: Any
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    row = rounds(tell(hook))
    assert "FLYWHEEL_ALLOW_PRIVATE_URLS" in row.attempts.get().error and not receiver.got


def test_a_longer_wait_that_is_asked_for_is_kept(hook: Webhook, receiver: Receiver) -> None:
    receiver.replies = [says(429, Retry_After="3600")]
    row = rounds(tell(hook))
    assert row.due_at > timezone.now() + timedelta(minutes=50)


# Workers that die


def test_a_worker_killed_between_sending_and_storing_loses_nothing(
    hook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tell(hook)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sending, "store", lambda *_: (_ for _ in ()).throw(SystemExit))
        sending.send_due()
    row.refresh_from_db()
    assert row.state == "waiting" and row.attempts.get().is_open
    assert sending.send_due() == 0  # it may still be under way
    assert rounds(row).state == "delivered"
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1 and len(receiver.got) == 2
    assert [attempt.is_open for attempt in row.attempts.all()] == [False, True]


def test_workers_that_always_die_use_up_the_tries(hook: Webhook) -> None:
    row = tell(hook)
    for _ in range(TRIES):
        due_now()
        assert sending.claim(Delivery.objects.select_related("webhook__project").get(pk=row.pk))
    assert rounds(row).state == "failed" and row.attempt == TRIES


def test_two_workers_send_it_once(hook: Webhook, receiver: Receiver) -> None:
    tell(hook)
    one, other = sending._chosen(), sending._chosen()
    assert [sending.claim(one[0]), sending.claim(other[0])] == [True, False]


def test_a_late_worker_changes_nothing(hook: Webhook) -> None:
    row = tell(hook)
    assert sending.claim(row)
    due_now()
    newer = Delivery.objects.select_related("webhook__project").get(pk=row.pk)
    assert sending.claim(newer)
    sending.store(row, sending.Outcome(status=200))
    newer.refresh_from_db()
    assert newer.state == "waiting" and newer.attempt == 2
    sending.store(newer, sending.Outcome(status=500))
    newer.refresh_from_db()
    assert newer.state == "waiting" and newer.last_status == 500


# The broker


def test_an_event_outlives_a_broker_that_is_away(
    hook: Webhook,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    asked = []

    def away(name: str, **_: Any) -> None:
        asked.append(name)
        raise BrokerError("the broker is away")

    monkeypatch.setattr(outbox.current_app, "send_task", away)
    with django_capture_on_commit_callbacks(execute=True):
        row = tell(hook)
    assert asked == ["webhooks.send_due"] and not receiver.got
    assert tasks.send_due() == 1  # what beat does every ten seconds
    row.refresh_from_db()
    assert row.state == "delivered"


def test_what_did_not_happen_is_not_told(hook: Webhook) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        tell(hook)
        raise RuntimeError
    assert not Delivery.objects.exists()


def test_only_those_are_told_who_asked(hook: Webhook) -> None:
    Webhook.objects.update(events=[Event.PROMOTION_MADE])
    assert not actions.announce(
        project=hook.project, event=Event.GATE_REPORT_MADE, subject="", data={}
    )
    assert (
        actions.announce(project=hook.project, event=Event.PROMOTION_MADE, subject="", data={}) == 1
    )
    assert not actions.announce(
        project=make_project(), event=Event.PROMOTION_MADE, subject="", data={}
    )


def test_one_webhook_does_not_take_a_whole_round(hook: Webhook, receiver: Receiver) -> None:
    for number in range(sending.OF_ONE + 3):
        tell(hook, number)
    assert sending.send_due() == sending.OF_ONE and sending.send_due() == 3


# Giving up


def failing_for(hook: Webhook, hours: float) -> None:
    Webhook.objects.filter(pk=hook.pk).update(failing_since=Now() - timedelta(hours=hours))


def last_try(row: Delivery) -> Delivery:
    Delivery.objects.filter(pk=row.pk).update(tries=TRIES - 1)
    return rounds(row)


def test_after_its_last_try_a_delivery_has_failed_and_a_dead_webhook_is_disabled(
    hook: Webhook, receiver: Receiver
) -> None:
    row, other = tell(hook, 1), tell(hook, 2)
    Delivery.objects.filter(pk=other.pk).update(due_at=Now() + timedelta(hours=1))
    failing_for(hook, 13)
    Delivery.objects.filter(pk=row.pk).update(tries=TRIES - 1)
    receiver.replies = [says(500)]
    sending.send_due()
    for one in (row, other, hook):
        one.refresh_from_db()
    assert row.state == other.state == "failed" and hook.state == "disabled"
    assert (
        hook.disabled_reason == "A delivery failed 10 times, and nothing was accepted for 12 hours."
    )
    event = AuditEvent.objects.get(action="webhook.disabled")
    assert event.actor_label == "Flywheel" and event.detail["host"] == "127.0.0.1"
    assert not actions.announce(
        project=hook.project, event=Event.GATE_REPORT_MADE, subject="", data={}
    )


def test_a_webhook_that_accepted_something_lately_stays_enabled(
    hook: Webhook, receiver: Receiver
) -> None:
    failing_for(hook, 2)
    receiver.replies = [says(500)]
    assert last_try(tell(hook)).state == "failed"
    hook.refresh_from_db()
    assert hook.disabled_at is None


def test_a_receiver_that_is_gone_is_left_alone(hook: Webhook, receiver: Receiver) -> None:
    receiver.replies = [says(410)]
    assert rounds(tell(hook)).state == "failed"
    hook.refresh_from_db()
    assert hook.disabled_reason == "The receiver answered 410 (Gone): it no longer accepts events."


def test_a_failed_delivery_is_sent_again_with_all_its_tries(
    hook: Webhook, receiver: Receiver
) -> None:
    by = admin_of(hook.project)
    row = tell(hook)
    with pytest.raises(actions.WebhookError, match="still being retried"):
        actions.send_again(delivery=row, by=by)
    receiver.replies = [says(410)]
    rounds(row)
    with pytest.raises(actions.WebhookError, match="Enable it first"):
        actions.send_again(delivery=row, by=by)
    actions.enable(hook=hook, by=by)
    actions.send_again(delivery=row, by=by)
    receiver.replies = [says(500), says(200)]
    assert rounds(row, 2).state == "delivered" and (row.tries, row.attempt) == (2, 3)


def test_a_test_event_is_tried_once_also_where_the_webhook_is_disabled(
    hook: Webhook, receiver: Receiver
) -> None:
    by = admin_of(hook.project)
    actions.disable(hook=hook, by=by)
    receiver.replies = [says(500), says(200)]
    row = actions.send_test(hook=hook, by=by)
    assert rounds(row).state == "failed" and row.event == TEST
    row = actions.send_test(hook=hook, by=by)
    assert rounds(row).state == "delivered"
    hook.refresh_from_db()
    assert hook.failing_since is None and hook.disabled_at


# Secrets


def test_for_a_day_the_old_secret_signs_too(made: tuple[Webhook, str], receiver: Receiver) -> None:
    hook, old = made
    new = actions.rotate_secret(hook=hook, by=admin_of(hook.project)).secret
    for count, secrets in ((2, [new, old]), (1, [new])):
        rounds(tell(hook, count))
        got = receiver.got[-1]
        message_id, at = got.headers["webhook-id"], int(got.headers["webhook-timestamp"])
        wanted = [signing.signature(secret, message_id, at, got.body) for secret in secrets]
        assert got.headers["webhook-signature"].split() == wanted
        Webhook.objects.update(old_until=timezone.now())


def test_nothing_is_sent_with_a_secret_that_was_lost(
    hook: Webhook, receiver: Receiver, settings: Any
) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", []
    row = rounds(tell(hook))
    assert (
        row.state == "waiting"
        and "Rotate the secret" in row.attempts.get().error
        and not receiver.got
    )


def test_old_deliveries_are_forgotten(hook: Webhook, receiver: Receiver) -> None:
    row, waiting = rounds(tell(hook, 1)), tell(hook, 2)
    Delivery.objects.update(created_at=Now() - timedelta(days=31))
    assert sending.forget_old() == 1
    assert Delivery.objects.get() == waiting and not Attempt.objects.filter(delivery=row).exists()
