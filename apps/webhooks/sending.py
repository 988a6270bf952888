"""Sending what is due: each delivery is claimed, requested once, and its outcome stored.

A claim makes a delivery due again after `LEASE`, and counts: a worker that dies between sending and
storing loses nothing, the event is sent once more under the same id. Requests of one round run side
by side, so that a receiver that hangs keeps no other waiting for longer than `LIMIT_S`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

import httpx2
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from apps.webhooks import actions, signing
from apps.webhooks.models import EXCERPT, TEST, Attempt, Delivery, DeliveryState, Webhook
from workers.lib.chat_client import wait_s as asked_wait_s
from workers.lib.outgoing import RefusedAddress, async_client
from workers.lib.storable import storable

LIMIT_S = 15.0  # of one request, whatever it does
LEASE = timedelta(seconds=60)
AT_ONCE, OF_ONE = 40, 8  # requests of a round, and to one webhook
FIRST_S, FACTOR, LONGEST_S = 10.0, 4.0, 6 * 3600.0
FAILING_FOR = timedelta(hours=12)
KEPT = timedelta(days=30)
GONE = 410
AGENT = "Flywheel-Webhooks/1"


@dataclass(frozen=True)
class Request:
    url: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Outcome:
    status: int | None = None
    latency_ms: float | None = None
    response: str = ""
    error: str = ""
    retry_after_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def wait_of(
    tries: int, asked_s: float = 0.0, draw: Callable[[], float] = random.random
) -> timedelta:
    """Before the next attempt, after so many: four times as long each time, up to 6 hours, ±20%;
    longer where the receiver asks. Ten attempts take about 22 hours."""
    usual = min(FIRST_S * FACTOR ** (tries - 1), LONGEST_S) * (0.8 + 0.4 * draw())
    return timedelta(seconds=max(usual, min(asked_s, LONGEST_S)))


def send_due() -> int:
    """One round: sends up to `AT_ONCE` of what is due. Says how many; a full round asks for another
    one.
    """
    claimed = [row for row in _chosen() if claim(row)]
    if not claimed:
        return 0
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        under_way = {loop.create_task(outcome_of(request_of(row))): row for row in claimed}
        while under_way:  # each outcome is stored as it comes
            done, _ = runner.run(asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED))
            for task in done:
                store(under_way.pop(task), task.result())
    if len(claimed) == AT_ONCE:
        actions.wake()
    return len(claimed)


def _chosen() -> list[Delivery]:
    """What is due longest, but no more than `OF_ONE` for a webhook."""
    found: list[Delivery] = []
    taken: Counter[object] = Counter()
    for row in (
        Delivery.objects.due().select_related("webhook__project").order_by("due_at")[: 20 * AT_ONCE]
    ):
        if taken[row.webhook_id] < OF_ONE and len(found) < AT_ONCE:
            taken[row.webhook_id] += 1
            found.append(row)
    return found


@transaction.atomic
def claim(row: Delivery) -> bool:
    """False if another worker got there first, or where the tries are used up: the last one died
    with its worker.
    """
    mine = Delivery.objects.due().held_by(row)
    if row.tries >= row.most_tries:
        if mine.select_for_update(of=("self",)).exists():
            _give_up(row, None)
        return False
    more = {"attempt": F("attempt") + 1, "tries": F("tries") + 1, "due_at": Now() + LEASE}
    if not Delivery.objects.filter(pk__in=mine.values("pk"), attempt=row.attempt).update(**more):
        return False
    row.attempt, row.tries = row.attempt + 1, row.tries + 1
    Attempt.objects.create(delivery=row, number=row.attempt)
    return True


def request_of(row: Delivery) -> Request | Outcome:
    """What is sent, signed now; or why it cannot be."""
    hook, body, at = row.webhook, row.body.encode(), int(time.time())
    try:
        keys = [signing.secret_of(hook.salt, hook.fingerprint)]
        if hook.old_until and hook.old_until > timezone.now():
            keys.append(signing.secret_of(hook.old_salt, hook.old_fingerprint))
    except signing.LostSecret as error:
        return Outcome(error=str(error))
    signatures = [signing.signature(key, row.message_id, at, body) for key in keys]
    signed = {"webhook-timestamp": str(at), "webhook-signature": " ".join(signatures)}
    return Request(hook.url, request_headers(row) | signed, body)


def request_headers(row: Delivery) -> dict[str, str]:
    """Those that are the same at each attempt."""
    return {"Content-Type": "application/json", "User-Agent": AGENT, "webhook-id": row.message_id}


async def outcome_of(request: Request | Outcome) -> Outcome:
    """Sends it and judges by the status alone. A client of its own: no cookie of one receiver is
    kept for the next.
    """
    if isinstance(request, Outcome):
        return request
    began, status, said, asked = time.perf_counter(), None, "", ""
    error = ""
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            async_client(
                allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS, timeout=LIMIT_S
            ) as http,
            http.stream(
                "POST", request.url, content=request.body, headers=request.headers
            ) as response,
        ):
            status, asked = response.status_code, response.headers.get("Retry-After", "")
            said = await _beginning(response)
    except Exception as problem:  # whatever one receiver does is its own outcome, and ends no round
        error = "" if status is not None else _in_words(problem)
    if status is not None and 300 <= status < 400:
        error = "The URL redirects, and redirects are not followed. Enter the final URL."
    latency = (time.perf_counter() - began) * 1000
    return Outcome(status, latency, said, error[:300], asked_wait_s(1, asked) if asked else 0.0)


async def _beginning(response: httpx2.Response) -> str:
    """The first characters of the body as it came; a packed one is not unpacked."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return "(packed)"
    found = b""
    async with aclosing(response.aiter_raw()) as parts:
        async for part in parts:
            found += part
            if len(found) > 4 * EXCERPT:
                break
    return storable(found.decode(errors="replace")[:EXCERPT])


def _in_words(problem: Exception) -> str:
    if isinstance(problem, RefusedAddress):
        return str(problem)
    if isinstance(problem, TimeoutError | httpx2.TimeoutException):
        return f"No answer within {LIMIT_S:.0f} s."
    if isinstance(problem, httpx2.ConnectError):
        return f"No connection: {problem}"
    return f"{type(problem).__name__}: {problem}"


@transaction.atomic
def store(row: Delivery, outcome: Outcome) -> None:
    """Writes the attempt down, and what becomes of the delivery, where this is still its last
    attempt.
    """
    Attempt.objects.filter(delivery=row, number=row.attempt).update(
        status=outcome.status,
        latency_ms=outcome.latency_ms,
        response=outcome.response,
        error=outcome.error,
    )
    mine = Delivery.objects.held_by(row)
    if outcome.ok:
        if mine.update(
            state=DeliveryState.DELIVERED, finished_at=Now(), last_status=outcome.status
        ):
            Webhook.objects.filter(pk=row.webhook_id, failing_since__isnull=False).update(
                failing_since=None
            )
        return
    if row.event != TEST:
        Webhook.objects.filter(pk=row.webhook_id, failing_since=None).update(failing_since=Now())
    if outcome.status == GONE or row.tries >= row.most_tries:
        if mine.select_for_update().exists():
            _give_up(row, outcome.status)
    else:
        mine.update(
            due_at=Now() + wait_of(row.tries, outcome.retry_after_s), last_status=outcome.status
        )


def _give_up(row: Delivery, status: int | None) -> None:
    """Ends a delivery that was not accepted, and disables its webhook where nothing has been
    accepted for long.
    """
    Delivery.objects.filter(pk=row.pk).update(
        state=DeliveryState.FAILED, finished_at=Now(), last_status=status
    )
    if row.event == TEST:
        return
    failing = Webhook.objects.filter(pk=row.webhook_id, failing_since__lte=Now() - FAILING_FOR)
    if status == GONE:
        actions.disable(
            hook=row.webhook,
            by=None,
            reason="The receiver answered 410 (Gone): it no longer accepts events.",
        )
    elif failing.exists():
        actions.disable(
            hook=row.webhook,
            by=None,
            reason=(
                f"A delivery failed {row.tries} times, and nothing was accepted for"
                f" {FAILING_FOR // timedelta(hours=1)} hours."
            ),
        )


def forget_old() -> int:
    """Deliveries older than 30 days that have ended."""
    old = Delivery.objects.exclude(state=DeliveryState.WAITING).filter(created_at__lt=Now() - KEPT)
    return old.delete()[1].get("webhooks.Delivery", 0)
