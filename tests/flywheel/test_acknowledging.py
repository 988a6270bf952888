"""A worker goes on where the broker refuses what it acknowledges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from kombu import Connection, Consumer, Queue
from redis.exceptions import ResponseError

from flywheel import celery  # noqa: F401  installs it


class Refusing:
    def execute(self) -> None:
        raise ResponseError("MISCONF Errors writing to the AOF file: No space left on device")


@pytest.fixture
def queue() -> Iterator[Queue]:
    with Connection(settings.CELERY_BROKER_URL) as connection:
        found = Queue(f"test-{uuid4()}", channel=connection.channel())
        found.declare()
        yield found
        found.delete()


@pytest.mark.parametrize("answer", ["ack", "reject"])
def test_a_message_that_the_broker_keeps_takes_nobodys_place(
    answer: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Connection(settings.CELERY_BROKER_URL) as connection:
        for number in range(2):
            connection.Producer().publish({"number": number}, routing_key=queue.name)
        came: list[Any] = []
        with closing(connection.channel()) as channel:
            own = queue.bind(channel)
            with Consumer(
                channel,
                [own],
                callbacks=[lambda _, message: came.append(message)],
                prefetch_count=1,
            ):
                connection.drain_events(timeout=10)
                monkeypatch.setattr(channel.qos, "_remove_from_indices", lambda *_: Refusing())
                getattr(came[0], answer)()
                monkeypatch.undo()
                connection.drain_events(timeout=10)
                came[1].ack()
    assert [message.payload["number"] for message in came] == [0, 1]
