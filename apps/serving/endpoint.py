"""The endpoint: an ASGI application that forwards requests to the servers of channels, and streams
their answers back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any
from urllib.parse import unquote

import msgspec
from django.conf import settings
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from apps.serving import probes
from apps.serving.answers import JSON, Headers, Refusal, as_model, passed_on, unknown_model
from apps.serving.asgi import (
    Receive,
    Send,
    address_in,
    disconnected,
    headers_of,
    read_body,
    require_method,
    send_whole,
)
from apps.serving.asked import CHAT, RESPONSES, Asked, BadRequest, read_request
from apps.serving.callers import ASKS, Callers, CountRefused, count_refused
from apps.serving.counting import Counted, flush
from apps.serving.lanes import Sessions, is_shadow, may_be_shadowed, unit_of
from apps.serving.pieces import Pieces, error_event, is_complete
from apps.serving.recording import failure_in
from apps.serving.refresh import Tables
from apps.serving.routes import CANARY, Key, Lane, Route
from apps.serving.servers import Begun, Servers, is_stream
from apps.serving.shadowing import Shadows
from apps.serving.spool import Writer
from apps.serving.turns import Bounds, Turn, new_turn
from flywheel import metrics
from workers.lib.posts import NoAnswer, TooLate

log = logging.getLogger(__name__)
PATHS = {f"/v1{path}": path for path in (CHAT, RESPONSES)}
NOT_THERE = (400, 404)  # statuses with which servers report an unknown model


class Endpoint:
    def __init__(
        self,
        tables: Tables,
        writer: Writer,
        bounds: Bounds | None = None,
        count_refused: CountRefused = count_refused,
    ) -> None:
        self.tables, self.writer, self.bounds = tables, writer, bounds or Bounds()
        self.callers, self.servers, self.sessions = (
            Callers(tables, count_refused),
            Servers(self.bounds),
            Sessions(),
        )
        self.shadows = Shadows(self.servers, writer)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return None
        path = scope["path"].rstrip("/")
        if path in ("/livez", "/readyz"):
            return await probes.answer(scope, send, self.tables, self.writer)
        if path == "/healthz":
            return await self._say_health(send)
        counted = Counted(send)
        try:
            if path == "/metrics":
                require_method(scope["method"], "GET")
                return await _send_metrics(scope, send)
            await self._answer(scope, receive, counted)
        except Refusal as refusal:
            await send_whole(counted.send, refusal.status, [JSON, *refusal.headers], refusal.body)
        except Exception:
            log.exception("A request to %s failed", scope["path"][:200])
            if counted.has_begun:  # the server closes the connection
                raise
            failed = Refusal(500, "Internal error in the endpoint; see its log.")
            await send_whole(counted.send, failed.status, [JSON], failed.body)
        finally:
            counted.end()

    async def aclose(self) -> None:
        await self.shadows.aclose()
        await self.servers.aclose()

    async def _say_health(self, send: Send) -> None:
        status = 200 if self.tables.known else 503
        said = {"table": self.tables.known, "shadows": self.shadows.counts}
        await send_whole(send, status, [JSON], msgspec.json.encode(said))

    async def _answer(self, scope: dict[str, Any], receive: Receive, counted: Counted) -> None:
        """Raises Refusal."""
        started, path, method = time.perf_counter(), scope["path"].rstrip("/"), scope["method"]
        headers = headers_of(scope)
        if path in PATHS:
            require_method(method, "POST")
            key = await self.callers.key_of(headers, address_in(scope))
            return await self._generate(PATHS[path], key, headers, receive, counted, started)
        if path == "/v1/models" or path.startswith("/v1/models/"):
            require_method(method, "GET")
            key = await self.callers.key_of(headers, address_in(scope))
            return await self._list_models(key, unquote(path[len("/v1/models/") :]), counted.send)
        raise Refusal(
            404,
            f"{method} {path[:200]} does not exist here. Available: POST /v1/chat/completions, POST"
            " /v1/responses and GET /v1/models.",
            code="unknown_url",
        )

    async def _list_models(self, key: Key, name: str, send: Send) -> None:
        table = self.tables.current
        routes = table.routes.get(key.project, {})
        if name and name not in routes:
            raise unknown_model(name, routes, table.closed.get(key.project, {}))
        if name:
            found: Any = as_model(routes[name], key.project_name)
        else:
            found = {
                "object": "list",
                "data": [as_model(route, key.project_name) for _, route in sorted(routes.items())],
            }
        await send_whole(send, 200, [JSON], msgspec.json.encode(found))

    async def _generate(
        self,
        path: str,
        key: Key,
        headers: dict[str, str],
        receive: Receive,
        counted: Counted,
        started: float,
    ) -> None:
        meter, turn = self.callers.begin(key, started), None
        try:
            body = await read_body(headers, receive, self.bounds.body)
            if body is None:
                return
            try:
                asked = read_request(path, body, headers)
            except BadRequest as error:
                raise Refusal(400, str(error), param=error.param) from error
            route = await self.callers.route_of(key, asked.model)
            counted.open(route.channel)
            turn = self._turn(key, asked, route, headers, started)
            await self._with_client(turn, receive, counted.send)
        finally:
            counted.close(turn.parts if turn else [])
            meter.end(turn.tokens if turn and key.limits.tokens else 0)
            if turn and turn.shadow and turn.noted and turn.record.ended != "left":
                self.shadows.ask(turn, turn.shadow)

    def _turn(
        self, key: Key, asked: Asked, route: Route, headers: dict[str, str], started: float
    ) -> Turn:
        if len(route.lanes) == 1:
            return new_turn(key, asked, route, route.lanes[0], headers, started)
        unit = unit_of(asked, headers)
        lane = self.sessions.lane_of(route, unit, time.monotonic())
        if not is_shadow(route.lanes[-1]):
            return new_turn(key, asked, route, lane, headers, started, unit)
        shadow = lane if is_shadow(lane) and may_be_shadowed(asked) else None
        turn = new_turn(key, asked, route, route.lanes[0], headers, started, unit if shadow else "")
        turn.shadow, turn.record.paired = shadow, shadow is not None
        return turn

    async def _with_client(self, turn: Turn, receive: Receive, send: Send) -> None:
        """Answer the client. If it disconnects, stop and cancel the request to the server too."""
        work = asyncio.ensure_future(self._hand_on(turn, send))
        watch = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            watch.cancel()
            work.cancel()

    async def _hand_on(self, turn: Turn, send: Send) -> None:
        """Raises Refusal."""
        begun: Begun | None = None
        try:
            if turn.lane.kind == CANARY:
                begun = await self._from_candidate(turn)
            if begun is None:
                begun = await self._from_current(turn)
            await self._send_on(turn, begun, send)
        except asyncio.CancelledError:
            turn.note("left", self.writer)
            raise
        finally:
            if begun is not None:
                self.servers.end(begun)

    async def _from_candidate(self, turn: Turn) -> Begun | None:
        """None if the candidate has no good answer. That is recorded and the current version takes
        over; the client only notices the delay. A stream is held back until the model has written
        something, so that this is known.
        """
        lane, record = turn.lane, turn.record
        try:
            if not lane.backends or self.servers.all_down(lane):
                raise NoAnswer(lane.problem or "its servers did not answer a moment ago")
            begun = await self.servers.first_within(turn, self.bounds.canary_s, words=True)
            if begun.has_words or not failure_in(
                record, begun.first, stream=is_stream(begun.answer)
            ):
                return begun
            turn.parts = [begun.first]
            self.servers.end(begun)
        except (NoAnswer, Refusal) as error:
            record.problem = str(error)
        record.served = False
        turn.note("unreached" if record.problem else "whole", self.writer)
        turn.onto(turn.route.lanes[0])
        return None

    async def _from_current(self, turn: Turn) -> Begun:
        """Raises Refusal."""
        begun = await self._first_of(turn)
        if begun.answer.status in NOT_THERE and (now := self._moved(turn)):
            self.servers.end(begun)
            turn.onto(now)
            begun = await self._first_of(turn)
        if begun.lacks_it:
            self.servers.end(begun)
            turn.record.problem = f"{begun.backend.server}: it does not have the version loaded"
            turn.note("unreached", self.writer)
            sentence = (
                f"The server {begun.backend.server} of {turn.route.channel} does not have the"
                " version loaded yet."
            )
            raise Refusal(
                503,
                sentence,
                code="not_loaded",
                headers=[(b"retry-after", b"2"), *self._said_of(turn)],
            )
        return begun

    def _moved(self, turn: Turn) -> Lane | None:
        """The channel's live version, if it has moved to other servers since this request
        started.
        """
        route = self.tables.current.routes.get(turn.key.project, {}).get(turn.route.channel)
        lane = route.lanes[0] if route else turn.lane
        return lane if lane.backends and lane.backends != turn.lane.backends else None

    async def _first_of(self, turn: Turn) -> Begun:
        """Raises Refusal."""
        lane, channel = turn.lane, turn.route.channel
        if not lane.backends:
            raise Refusal(
                503,
                f"No model is available for {channel}: {lane.problem}",
                code="not_served",
                headers=[(b"retry-after", b"10")],
            )
        try:
            return await self.servers.first_of(turn)
        except NoAnswer as error:
            late, server = isinstance(error, TooLate), turn.record.server
            turn.record.problem = f"{server}: {error}"
            turn.note("late" if late else "unreached", self.writer)
            raise Refusal(
                504 if late else 502,
                f"The server {server} of {channel} gave no answer: {error}.",
                code="upstream_timeout" if late else "upstream_unreachable",
                headers=self._said_of(turn),
            ) from error

    async def _send_on(self, turn: Turn, begun: Begun, send: Send) -> None:
        turn.record.first_ns = turn.record.first_ns or time.time_ns()
        answer = begun.answer
        headers = [*passed_on(answer.headers), *self._said_of(turn)]
        if not is_stream(answer):
            turn.parts.append(begun.first)
            turn.record.stream, turn.size = False, len(begun.first)
            turn.note("whole", self.writer)
            await send_whole(send, answer.status, headers, begun.first)
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        pieces, part = Pieces(turn.strips), begun.first
        try:
            while part:
                turn.parts.append(part)
                turn.size += len(part)
                if turn.size > self.bounds.answer:
                    raise NoAnswer(f"it sent more than {self.bounds.answer >> 20} MiB")
                if whole := pieces.feed(part):
                    if pieces.ended:
                        turn.note("whole", self.writer)
                    await send({"type": "http.response.body", "body": whole, "more_body": True})
                part = await answer.part()
            if not pieces.ended and not is_complete(turn.parts):
                raise NoAnswer("the stream ended before the answer was complete")
            rest = pieces.rest
        except NoAnswer as error:
            server = begun.backend.server
            turn.record.problem = f"{server}: {error}"
            turn.note("late" if isinstance(error, TooLate) else "broken", self.writer)
            sentence = f"The server {server} of {turn.route.channel} broke its answer off: {error}."
            refusal = Refusal(502, sentence, code="upstream_broken")
            rest = b"" if pieces.ended else error_event(turn.asked.path, refusal.error)
        turn.note("whole", self.writer)
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    def _said_of(self, turn: Turn) -> Headers:
        record = turn.record
        found = {
            "x-flywheel-channel": record.channel,
            "x-flywheel-version": record.version,
            "x-flywheel-server": record.server,
            "x-flywheel-trace-id": record.trace_id,
        }
        given = [(name.encode(), value.encode()) for name, value in found.items()]
        return given + self.callers.headers(turn.key)


async def _send_metrics(scope: dict[str, Any], send: Send) -> None:
    headers, client = headers_of(scope), scope.get("client") or ("",)
    may = metrics.may_read(
        headers.get("authorization", ""),
        client[0],
        forwarded=settings.FLYWHEEL_PROXIES > 0
        or any(name in headers for name in metrics.FORWARDED),
        token=settings.FLYWHEEL_METRICS_TOKEN,
    )
    if not may:
        refusal = Refusal(401, metrics.REFUSED, headers=ASKS)
        return await send_whole(send, 401, [JSON, *refusal.headers], refusal.body)
    flush()
    text = await asyncio.to_thread(lambda: generate_latest(metrics.counted_here()))
    return await send_whole(send, 200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], text)
