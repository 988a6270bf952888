"""Calls the servers of a lane: selects one, prepares the body, and tries the next one if it does
not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass, replace

from apps.registry.models import Dialect
from apps.serving.answers import SENT_ON, Refusal
from apps.serving.asked import CHAT, RESPONSES, BadRequest, body_for, counts_tokens
from apps.serving.pieces import Beginning
from apps.serving.routes import Backend, Lane
from apps.serving.turns import Bounds, Turn
from workers.lib.keys import bearer
from workers.lib.outgoing import RefusedAddress
from workers.lib.posts import NoAnswer, TooLate
from workers.lib.relaying import Relay, Relayed

log = logging.getLogger(__name__)
INVALID = (400, 422)  # statuses of a request that the server does not understand
SILENT_S = 3600.0
GONE = (502, 503, 504)  # statuses for which another server may be able to answer
MOST_BEFORE_WORDS = 8 * 2**20  # bytes of a candidate's stream that are held back
DOWN_S = 5.0  # seconds during which a server that did not answer is tried last


@dataclass(frozen=True)
class Begun:
    """An answer that has started: its first piece, or all of it if it is not streamed. Finish it
    with `Servers.end`.

    `has_words`: the model has already written something in this stream; only set for a candidate's.
    """

    answer: Relayed
    first: bytes
    backend: Backend
    has_words: bool = False

    @property
    def lacks_it(self) -> bool:
        """Whether the server does not have the version loaded, because it has just started or
        unloaded it. Its 404 then names the version.
        """
        return self.answer.status == 404 and self.backend.served_as.encode() in self.first

    @property
    def is_redirect(self) -> bool:
        """Redirects are not followed: only the original address was checked."""
        return 300 <= self.answer.status < 400

    @property
    def is_empty(self) -> bool:
        return is_stream(self.answer) and not self.first


class Servers:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.relays: dict[tuple[str, str, bool], Relay] = {}
        self.open_at: dict[str, int] = {}
        self.down: dict[tuple[str, str], float] = {}
        self.reporting: set[tuple[str, str]] = set()  # have taken the request to report usage
        self.silent: dict[
            tuple[str, str], float
        ] = {}  # have refused it, and until when that is remembered

    async def aclose(self) -> None:
        for relay in self.relays.values():
            await relay.aclose()

    async def first_within(self, turn: Turn, seconds: float, *, words: bool = False) -> Begun:
        """Like `first_of`, with one time limit for all servers together. `words`: read a stream up
        to the first word of its answer; if that fails, the parts read so far are in `turn.parts`.
        """
        try:
            async with asyncio.timeout(seconds):
                begun = await self.first_of(turn)
                return (
                    await self._first_words(turn, begun)
                    if words and is_stream(begun.answer)
                    else begun
                )
        except TimeoutError as error:
            self.down |= {
                _place(backend): time.monotonic() + DOWN_S for backend in turn.lane.backends
            }
            raise TooLate(f"no answer began within {seconds:g} s") from error

    async def _first_words(self, turn: Turn, begun: Begun) -> Begun:
        """Read a stream until the model has written something (`pieces.Beginning`). Raises
        NoAnswer.
        """
        beginning, part, size = Beginning(turn.asked.path), begun.first, 0
        turn.record.first_ns = (
            time.time_ns()
        )  # of the first byte, as of an answer that is not kept back
        try:
            while part:
                turn.parts.append(part)
                size += len(part)
                if beginning.feed(part):
                    break
                if size > MOST_BEFORE_WORDS:
                    raise NoAnswer(f"it sent {size >> 20} MiB without an answer")
                part = await begun.answer.part()
        except BaseException as error:
            if isinstance(error, NoAnswer):
                self.down[_place(begun.backend)] = time.monotonic() + DOWN_S
            self.end(begun)
            raise
        first, turn.parts = b"".join(turn.parts), []
        return replace(begun, first=first, has_words=beginning.has_begun)

    async def first_of(self, turn: Turn) -> Begun:
        """Try servers until one answers, which is safe since nothing was sent to the client yet.
        Raises NoAnswer, or Refusal for requests that cannot be sent.
        """
        order = self._order(turn)
        problem = NoAnswer("it has no server")
        for number, backend in enumerate(order):
            record = turn.record
            record.server, record.served_as, record.price = (
                backend.server,
                backend.served_as,
                backend.price,
            )
            record.servers_tried = number + 1
            try:
                begun = await self._asked(turn, backend)
                if begun.is_redirect or begun.is_empty:
                    self.end(begun)
                    raise NoAnswer(
                        "it sent an empty stream"
                        if begun.is_empty
                        else f"it answered with a redirect (HTTP {begun.answer.status})"
                    )
                if (begun.answer.status not in GONE and not begun.lacks_it) or number + 1 == len(
                    order
                ):
                    record.status = begun.answer.status
                    return begun
                self.end(begun)
                raise NoAnswer(f"it answered HTTP {begun.answer.status}")
            except (NoAnswer, RefusedAddress) as error:
                problem = error if isinstance(error, NoAnswer) else NoAnswer(str(error))
                self.down[_place(backend)] = time.monotonic() + DOWN_S
                log.warning("%s (%s) did not answer: %s", backend.server, turn.route.channel, error)
                if isinstance(error, TooLate) and not turn.asked.stream:
                    break
        raise problem

    def end(self, begun: Begun) -> None:
        """Releases the connection, or tells the server that nobody is listening any more."""
        self.open_at[str(begun.backend.url)] -= 1
        begun.answer.close()

    def all_down(self, lane: Lane) -> bool:
        now = time.monotonic()
        return all(self.down.get(_place(backend), 0.0) > now for backend in lane.backends)

    def _order(self, turn: Turn) -> list[Backend]:
        """The servers in the order to try. A session stays on one server, whose cache contains its
        history; other requests go to the least busy one.
        """
        backends = list(turn.lane.backends)
        if len(backends) < 2:
            return backends
        now, session = time.monotonic(), turn.asked.session
        if session:
            backends.sort(
                key=lambda backend: hashlib.blake2b(f"{backend.url}\0{session}".encode()).digest()
            )
        else:
            backends.sort(key=lambda backend: self.open_at.get(str(backend.url), 0))
        return sorted(backends, key=lambda backend: self.down.get(_place(backend), 0.0) > now)

    async def _asked(self, turn: Turn, backend: Backend) -> Begun:
        """The answer of one server. It is asked to report a stream's usage; one that may be
        refusing just that is asked again without. Raises NoAnswer, RefusedAddress, or Refusal.
        """
        place = _place(backend)
        _prepare(turn, backend, reports=self.silent.get(place, 0.0) < time.monotonic())
        begun = await self._begin(turn, backend)
        if turn.strips and begun.answer.status == 200:
            self.reporting.add(place)
        elif turn.strips and begun.answer.status in INVALID and place not in self.reporting:
            self.end(begun)
            _prepare(turn, backend, reports=False)
            begun = await self._begin(turn, backend)
            if begun.answer.status == 200:
                self.silent[place] = time.monotonic() + SILENT_S
        return begun

    async def _begin(self, turn: Turn, backend: Backend) -> Begun:
        """Raises NoAnswer, RefusedAddress."""
        place = str(backend.url)
        self.open_at[place] = self.open_at.get(place, 0) + 1
        answer: Relayed | None = None
        try:
            sent = [(name, value) for name in SENT_ON if (value := turn.headers.get(name))]
            first_s = self.bounds.first_s if turn.asked.stream else self.bounds.whole_s
            answer = await self._relay(backend).begin(
                turn.asked.path,
                turn.record.request,
                sent,
                first_s=first_s,
                idle_s=self.bounds.idle_s,
            )
            return Begun(answer, await self._beginning(answer), backend)
        except BaseException:
            self.open_at[place] -= 1
            if answer is not None:
                answer.close()
            raise

    def _relay(self, backend: Backend) -> Relay:
        place = (str(backend.url), backend.secret, backend.allow_private)
        if place not in self.relays:
            headers = {"Content-Type": "application/json"} | bearer(backend.secret)
            self.relays[place] = Relay(
                backend.url,
                allow_private=backend.allow_private,
                connect_s=self.bounds.connect_s,
                headers=headers,
            )
        return self.relays[place]

    async def _beginning(self, answer: Relayed) -> bytes:
        """A stream's first piece, or the whole answer. Raises NoAnswer."""
        return await answer.part() if is_stream(answer) else await self.whole(answer)

    async def whole(self, answer: Relayed) -> bytes:
        """The rest of an answer. Raises NoAnswer."""
        parts, size = [], 0
        while part := await answer.part():
            parts.append(part)
            size += len(part)
            if size > self.bounds.answer:
                raise NoAnswer(f"it sent more than {self.bounds.answer >> 20} MiB")
        return b"".join(parts)


def _place(backend: Backend) -> tuple[str, str]:
    return str(backend.url), backend.served_as


def is_stream(answer: Relayed) -> bool:
    kind = next((value for name, value in answer.headers if name == b"content-type"), b"")
    return answer.status == 200 and kind.partition(b";")[0].strip().lower() == b"text/event-stream"


def _prepare(turn: Turn, backend: Backend, *, reports: bool) -> None:
    """`reports`: the server can be asked for a stream's usage. Raises Refusal."""
    asked = turn.asked
    if (backend.dialect == Dialect.RESPONSES) != (
        asked.path == RESPONSES
    ) and not backend.speaks_both:
        other = "/v1/responses" if backend.dialect == Dialect.RESPONSES else "/v1/chat/completions"
        raise Refusal(
            400,
            f"The server {backend.server} of {turn.route.channel} speaks {other} only.",
            code="unsupported_api",
        )
    try:
        turn.strips = asked.stream and asked.path == CHAT and reports and not counts_tokens(asked)
        turn.record.request = body_for(
            asked,
            backend.served_as,
            turn.lane.prompt,
            count_tokens=turn.strips,
            tools_as_text=backend.dialect == Dialect.TEXT,
            template=backend.template,
            takes_metadata=backend.takes_metadata,
        )
    except BadRequest as error:
        raise Refusal(400, str(error), param=error.param) from error
