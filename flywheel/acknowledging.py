"""A broker that refuses to forget a message, as Valkey does while its disk is full.

Kombu would count the message as being worked on for as long as the connection lives, so a worker
that takes one at a time would take no other. Here it counts as done; the broker gives it out once
more after the visibility timeout, and a job that is done is not done again.
"""

from __future__ import annotations

import logging

from kombu.transport import redis, virtual
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class QoS(redis.QoS):
    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except RedisError as error:
            self._done_here(delivery_tag, error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue)
        except RedisError as error:
            self._done_here(delivery_tag, error)

    def _done_here(self, delivery_tag: str, error: Exception) -> None:
        log.warning("The broker keeps a message that is done: %s", error)
        virtual.QoS.ack(self, delivery_tag)


def install() -> None:
    redis.Channel.QoS = QoS
