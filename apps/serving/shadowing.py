"""Sends a request to a shadow's candidate after the client has its answer: nobody waits for the
shadow's answer, and no client gets it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from apps.serving.answers import Refusal
from apps.serving.routes import Lane
from apps.serving.servers import Servers
from apps.serving.spool import Writer
from apps.serving.turns import Turn
from workers.lib.posts import NoAnswer, TooLate

log = logging.getLogger(__name__)
SAYS_EVERY_S = 60.0
STREAMING = ("stream", "stream_options")


class Shadows:
    """Per process: at most this many run at a time; additional ones are dropped and counted."""

    def __init__(self, servers: Servers, writer: Writer) -> None:
        self.servers, self.writer, self.bounds = servers, writer, servers.bounds
        self.open: set[asyncio.Task[None]] = set()
        self.asked = self.dropped = 0
        self._said_at = -SAYS_EVERY_S

    def ask(self, turn: Turn, lane: Lane) -> None:
        """Start a shadow request and return immediately. `turn`: the client's request and
        answer.
        """
        if len(self.open) >= self.bounds.shadows:
            self._drop(turn.route.channel)
            return
        self.asked += 1
        task = asyncio.ensure_future(self._ask(turn, lane))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    def _drop(self, channel: str) -> None:
        self.dropped += 1
        if time.monotonic() - self._said_at > SAYS_EVERY_S:
            self._said_at = time.monotonic()
            log.warning(
                "%d requests were not sent to a shadow of %s or another channel: %d are open",
                self.dropped,
                channel,
                len(self.open),
            )

    async def _ask(self, served: Turn, lane: Lane) -> None:
        try:
            turn = shadow_of(served, lane)
            turn.note(await self._ended(turn), self.writer)
        except Exception:
            log.exception("A shadow of %s was not asked", served.route.channel)

    async def _ended(self, turn: Turn) -> str:
        """How the shadow request ended, as a record stores it; the received bytes are in the
        turn.
        """
        try:
            if not turn.lane.backends:
                raise NoAnswer(turn.lane.problem)
            begun = await self.servers.first_within(turn, self.bounds.shadow_s)
            try:
                turn.parts = [begun.first, await self.servers.whole(begun.answer)]
            finally:
                self.servers.end(begun)
        except (NoAnswer, Refusal) as error:
            turn.record.problem = str(error)
            return "late" if isinstance(error, TooLate) else "unreached"
        return "whole"

    @property
    def counts(self) -> dict[str, int]:
        return {"open": len(self.open), "asked": self.asked, "dropped": self.dropped}

    async def aclose(self) -> None:
        for task in self.open:
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)


def shadow_of(turn: Turn, lane: Lane) -> Turn:
    """The same request without streaming, recorded as not served."""
    old = turn.record
    fields = {name: value for name, value in turn.asked.fields.items() if name not in STREAMING}
    found = replace(turn, asked=replace(turn.asked, fields=fields, stream=False))
    found.onto(
        lane,
        lane=lane.kind,
        trial=lane.trial,
        step=lane.step,
        unit=old.unit,
        shadow_of=old.span_id,
        served=False,
        stream=False,
    )
    return found
