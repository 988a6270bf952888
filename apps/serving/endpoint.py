"""The endpoint: an ASGI application that hands requests on to the servers of channels, and their answers back while they come."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from apps.core.models import key_digest
from apps.registry.models import Dialect
from apps.serving.answers import JSON, SENT_ON, Headers, Refusal, as_model, passed_on, unknown_model
from apps.serving.asked import CHAT, RESPONSES, Asked, BadRequest, body_for, counts_tokens, read_request
from apps.serving.limits import Exceeded, Meter
from apps.serving.refresh import Tables
from apps.serving.routes import Backend, Key, Lane, Route
from apps.serving.spool import Record, Writer
from workers.lib.keys import bearer
from workers.lib.outgoing import RefusedAddress
from workers.lib.posts import NoAnswer, TooLate
from workers.lib.relaying import Relay, Relayed

log = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
PATHS = {f"/v1{path}": path for path in (CHAT, RESPONSES)}
GONE = (502, 503, 504)  # what another server may be able to answer
DOWN_S = 5.0  # for which a server that did not answer is asked last
COUNTED = re.compile(rb'"(?:prompt_tokens|completion_tokens|input_tokens|output_tokens)":\s*(\d{1,9})')
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
TAIL = 16 * 1024  # bytes at an answer's end in which its tokens are looked for


@dataclass(frozen=True)
class Bounds:
    """Bytes and seconds. `whole_s`: until an answer begins that comes in one piece, at its end."""

    body: int = 32 * 2**20
    answer: int = 64 * 2**20
    connect_s: float = 5.0
    first_s: float = 120.0
    whole_s: float = 600.0
    idle_s: float = 60.0


@dataclass
class Turn:
    """One request on its way, and what is noted of it."""

    key: Key
    asked: Asked
    route: Route
    lane: Lane
    headers: dict[str, str]
    started: float
    record: Record
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    strips: bool = False  # the count of tokens that the client did not ask for
    noted: bool = False


class Endpoint:
    def __init__(self, tables: Tables, writer: Writer, bounds: Bounds = Bounds()) -> None:
        self.tables, self.writer, self.bounds = tables, writer, bounds
        self.relays: dict[tuple[str, str, bool], Relay] = {}
        self.meters: dict[int, Meter] = {}
        self.open_at: dict[str, int] = {}
        self.down: dict[str, float] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def noting(message: dict[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        except Refusal as refusal:
            await _send_whole(send, refusal.status, [JSON, *refusal.headers], refusal.body)
        except Exception:
            log.exception("A request to %s failed", scope["path"][:200])
            if begun:  # the server cuts it off
                raise
            failed = Refusal(500, "The endpoint failed. Its log says why.")
            await _send_whole(send, failed.status, [JSON], failed.body)

    async def aclose(self) -> None:
        for relay in self.relays.values():
            await relay.aclose()

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Raises Refusal."""
        started, path, method = time.perf_counter(), scope["path"].rstrip("/"), scope["method"]
        if path == "/healthz":
            status = 200 if self.tables.known else 503
            return await _send_whole(send, status, [JSON], msgspec.json.encode({"table": self.tables.known}))
        headers = {name.decode("latin-1"): _text(value) for name, value in scope["headers"]}
        if path in PATHS:
            _require_method(method, "POST")
            key = await self._key_of(headers)
            return await self._generate(PATHS[path], key, headers, receive, send, started)
        if path == "/v1/models" or path.startswith("/v1/models/"):
            _require_method(method, "GET")
            key = await self._key_of(headers)
            return await self._list_models(key, unquote(path[len("/v1/models/") :]), send)
        raise Refusal(404, f"{method} {path[:200]} does not exist here. There are POST /v1/chat/completions, POST /v1/responses and GET /v1/models.", code="unknown_url")  # fmt: skip

    # Who asks, and for what

    async def _key_of(self, headers: dict[str, str]) -> Key:
        scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Refusal(401, "Send an API key of the project as “Authorization: Bearer fw_…”.", code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])  # fmt: skip
        digest = key_digest(secret.strip())
        keys = self.tables.current.keys
        if digest not in keys:
            keys = (await asyncio.to_thread(self.tables.refresh_for_unknown)).keys
        if not self.tables.known:
            raise Refusal(503, "The endpoint is starting and cannot reach its database yet.", headers=[(b"retry-after", b"2")])  # fmt: skip
        key = keys.get(digest)
        if key is None and digest in keys:
            raise Refusal(403, "This API key lacks the scope “generate”. Make one with it under Settings → API keys.", code="insufficient_scope", kind="permission_error")  # fmt: skip
        if key is None or key.is_expired:
            why = "has expired" if key else "is unknown or revoked"
            raise Refusal(401, f"This API key {why}. Make one under Settings → API keys.", code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])  # fmt: skip
        if key.refusal:
            raise Refusal(403, key.refusal, code="project_closed", kind="permission_error")
        return key

    async def _list_models(self, key: Key, name: str, send: Send) -> None:
        routes = self.tables.current.routes.get(key.project, {})
        if name and name not in routes:
            raise unknown_model(name, routes)
        if name:
            found: Any = as_model(routes[name], key.project_name)
        else:
            found = {
                "object": "list",
                "data": [as_model(route, key.project_name) for _, route in sorted(routes.items())],
            }
        await _send_whole(send, 200, [JSON], msgspec.json.encode(found))

    async def _route_of(self, key: Key, model: str) -> Route:
        if route := self.tables.current.routes.get(key.project, {}).get(model):
            return route
        routes = (await asyncio.to_thread(self.tables.refresh_for_unknown)).routes.get(key.project, {})
        if model not in routes:
            raise unknown_model(model, routes)
        return routes[model]

    async def _generate(
        self, path: str, key: Key, headers: dict[str, str], receive: Receive, send: Send, started: float
    ) -> None:
        meter = self.meters.setdefault(key.pk, Meter(started))
        try:
            meter.begin(key.limits, started)
        except Exceeded as error:
            limits = meter.headers(key.limits)
            raise Refusal(429, str(error), code="rate_limit_exceeded", kind="rate_limit_error", headers=[(b"retry-after", str(error.wait_s).encode()), *limits]) from error  # fmt: skip
        used = 0
        try:
            body = await _read_body(headers, receive, self.bounds.body)
            if body is None:
                return
            try:
                asked = read_request(path, body, headers)
            except BadRequest as error:
                raise Refusal(400, str(error), param=error.param) from error
            route = await self._route_of(key, asked.model)
            turn = self._turn(key, asked, route, headers, started)
            await self._with_client(turn, receive, send)
            used = _tokens_in(turn)
        finally:
            meter.end(used)

    def _turn(self, key: Key, asked: Asked, route: Route, headers: dict[str, str], started: float) -> Turn:
        lane = route.lanes[0]
        named = TRACE.fullmatch(headers.get("traceparent", ""))
        record = Record(
            trace_id=named[1] if named else secrets.token_hex(16), span_id=secrets.token_hex(8),
            parent_id=named[2] if named else "", project=key.project, key=key.prefix, channel=route.channel,
            version=lane.version, version_id=lane.version_id, protocol="chat" if asked.path == CHAT else "responses",
            stream=asked.stream, session=asked.session, user=asked.user, metadata=asked.metadata,
            started_ns=time.time_ns() - int((time.perf_counter() - started) * 1e9),
        )  # fmt: skip
        return Turn(key, asked, route, lane, headers, started, record)

    async def _with_client(self, turn: Turn, receive: Receive, send: Send) -> None:
        """Answers, and stops where the client goes away: then the server hears it, too."""
        work = asyncio.ensure_future(self._hand_on(turn, send))
        watch = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                turn.record.ended = "left"
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            watch.cancel()
            work.cancel()

    # To the servers and back

    async def _hand_on(self, turn: Turn, send: Send) -> None:
        """Raises Refusal."""
        if not turn.lane.backends:
            raise Refusal(503, f"Nothing answers for {turn.route.channel} now: {turn.lane.problem}", code="not_served", headers=[(b"retry-after", b"10")])  # fmt: skip
        answer: Relayed | None = None
        try:
            answer, first, backend = await self._first_of(turn)
            await self._send_on(turn, answer, first, backend, send)
        except asyncio.CancelledError:
            self._note(turn, "left")
            raise
        finally:
            if answer is not None:
                answer.close()

    async def _first_of(self, turn: Turn) -> tuple[Relayed, bytes, Backend]:
        """An answer that has begun: the server and its first piece (all of it, where it is not a stream). A server that does
        not answer is followed by the next one, since the client has been sent nothing. Raises Refusal."""
        order = self._order(turn)
        problem = NoAnswer("")
        for number, backend in enumerate(order):
            turn.record.server, turn.record.served_as, turn.record.price = (
                backend.server,
                backend.served_as,
                backend.price,
            )
            turn.record.servers_tried = number + 1
            self._prepare(turn, backend)
            place = str(backend.url)
            self.open_at[place] = self.open_at.get(place, 0) + 1
            answer: Relayed | None = None
            try:
                answer = await self._ask(turn, backend)
                first = await self._beginning(turn, answer)
                if answer.status in GONE and number + 1 < len(order):
                    raise NoAnswer(f"it answered HTTP {answer.status}")
                turn.record.status = answer.status
                return answer, first, backend
            except (NoAnswer, RefusedAddress) as error:
                if answer is not None:
                    answer.close()
                problem = error if isinstance(error, NoAnswer) else NoAnswer(str(error))
                self.down[place] = time.monotonic() + DOWN_S
                log.warning("%s (%s) did not answer: %s", backend.server, turn.route.channel, error)
                if isinstance(error, TooLate) and not turn.asked.stream:
                    break
            except asyncio.CancelledError:
                if answer is not None:
                    answer.close()
                raise
            finally:
                self.open_at[place] -= 1
        late = isinstance(problem, TooLate)
        turn.record.problem = f"{turn.record.server}: {problem}"
        self._note(turn, "late" if late else "unreached")
        raise Refusal(504 if late else 502, f"The server {turn.record.server} of {turn.route.channel} gave no answer: {problem}.", code="upstream_timeout" if late else "upstream_unreachable", headers=self._said_of(turn))  # fmt: skip

    def _order(self, turn: Turn) -> list[Backend]:
        """A session stays with one server, which has what it said in its cache; others go where least is open."""
        backends = list(turn.lane.backends)
        if len(backends) < 2:
            return backends
        now, session = time.monotonic(), turn.asked.session
        if session:
            backends.sort(key=lambda backend: hashlib.blake2b(f"{backend.url}\0{session}".encode()).digest())
        else:
            backends.sort(key=lambda backend: self.open_at.get(str(backend.url), 0))
        return sorted(backends, key=lambda backend: self.down.get(str(backend.url), 0.0) > now)

    def _prepare(self, turn: Turn, backend: Backend) -> None:
        """Raises Refusal."""
        asked = turn.asked
        if (backend.dialect == Dialect.RESPONSES) != (asked.path == RESPONSES) and not backend.speaks_both:
            other = "/v1/responses" if backend.dialect == Dialect.RESPONSES else "/v1/chat/completions"
            raise Refusal(400, f"The server {backend.server} of {turn.route.channel} speaks {other} only.", code="unsupported_api")  # fmt: skip
        try:
            turn.strips = asked.stream and asked.path == CHAT and backend.streams_usage and not counts_tokens(asked)
            turn.record.request = body_for(
                asked,
                backend.served_as,
                turn.lane.prompt,
                count_tokens=turn.strips,
                tools_as_text=backend.dialect == Dialect.TEXT,
            )
        except BadRequest as error:
            raise Refusal(400, str(error), param=error.param) from error

    async def _ask(self, turn: Turn, backend: Backend) -> Relayed:
        sent = [(name, value) for name in SENT_ON if (value := turn.headers.get(name))]
        first_s = self.bounds.first_s if turn.asked.stream else self.bounds.whole_s
        return await self._relay(backend).begin(
            turn.asked.path, turn.record.request, sent, first_s=first_s, idle_s=self.bounds.idle_s
        )

    def _relay(self, backend: Backend) -> Relay:
        place = (str(backend.url), backend.secret, backend.allow_private)
        if place not in self.relays:
            headers = {"Content-Type": "application/json"} | bearer(backend.secret)
            self.relays[place] = Relay(
                backend.url, allow_private=backend.allow_private, connect_s=self.bounds.connect_s, headers=headers
            )
        return self.relays[place]

    async def _beginning(self, turn: Turn, answer: Relayed) -> bytes:
        """A stream's first piece; else all. Raises NoAnswer."""
        if _is_stream(answer):
            return await answer.part()
        parts, size = [], 0
        while part := await answer.part():
            parts.append(part)
            size += len(part)
            if size > self.bounds.answer:
                raise NoAnswer(f"it sent more than {self.bounds.answer >> 20} MiB")
        return b"".join(parts)

    async def _send_on(self, turn: Turn, answer: Relayed, first: bytes, backend: Backend, send: Send) -> None:
        turn.record.first_ns = time.time_ns()
        headers = [*passed_on(answer.headers), *self._said_of(turn)]
        if not _is_stream(answer):
            turn.parts.append(first)
            turn.record.stream = False
            self._note(turn, "whole")
            await _send_whole(send, answer.status, headers, first)
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        pieces, part = Pieces(turn.strips), first
        try:
            while part:
                turn.parts.append(part)
                turn.size += len(part)
                if turn.size > self.bounds.answer:
                    raise NoAnswer(f"it sent more than {self.bounds.answer >> 20} MiB")
                if whole := pieces.feed(part):
                    if pieces.ended:
                        self._note(turn, "whole")
                    await send({"type": "http.response.body", "body": whole, "more_body": True})
                part = await answer.part()
            rest = pieces.rest
        except NoAnswer as error:
            late = isinstance(error, TooLate)
            turn.record.problem = f"{backend.server}: {error}"
            self._note(turn, "late" if late else "broken")
            sentence = f"The server {backend.server} of {turn.route.channel} broke its answer off: {error}."
            rest = b"" if pieces.ended else _event(turn.asked, Refusal(502, sentence, code="upstream_broken").error)
        self._note(turn, "whole")
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    def _said_of(self, turn: Turn) -> Headers:
        record = turn.record
        found = {
            "x-flywheel-channel": record.channel, "x-flywheel-version": record.version, "x-flywheel-server": record.server,
            "x-flywheel-trace-id": record.trace_id,
        }  # fmt: skip
        given = [(name.encode(), value.encode()) for name, value in found.items()]
        return given + self.meters[turn.key.pk].headers(turn.key.limits)

    def _note(self, turn: Turn, ended: str) -> None:
        """Once for a turn, before its last byte leaves."""
        if turn.noted:
            return
        turn.noted = True
        record = turn.record
        record.ended, record.answer, record.ended_ns = ended, b"".join(turn.parts), time.time_ns()
        self.writer.put(record)


class Pieces:
    """A stream of server-sent events, cut anywhere: whole events come out, so that what is said after a break stands alone.

    `strips`: leaves out the event that only counts tokens.
    """

    def __init__(self, strips: bool) -> None:
        self.strips, self.rest, self.ended = strips, b"", False

    def feed(self, part: bytes) -> bytes:
        data = self.rest + part if self.rest else part
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4) if b"\n" in data else 0
        end = end if end > 3 or data.startswith(b"\n\n") else 0
        whole, self.rest = data[:end], data[end:]
        if whole and not self.ended:
            self.ended = b"data: [DONE]" in whole[-64:] or b'"type":"response.completed"' in whole
        if self.strips and b'"choices":[]' in whole:
            events = re.split(rb"(?<=\n\n)", whole)
            whole = b"".join(one for one in events if not (b'"choices":[]' in one and b'"usage":{' in one))
        return whole


def _event(asked: Asked, error: dict[str, Any]) -> bytes:
    """An error in the middle of a stream, as clients of either API read it."""
    if asked.path == CHAT:
        return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    said = {"type": "error", "code": error["code"], "message": error["message"], "param": None, "sequence_number": 0}
    return b"event: error\ndata: " + msgspec.json.encode(said) + b"\n\n"


def _is_stream(answer: Relayed) -> bool:
    kind = next((value for name, value in answer.headers if name == b"content-type"), b"")
    return answer.status == 200 and kind.partition(b";")[0].strip().lower() == b"text/event-stream"


def _tokens_in(turn: Turn) -> int:
    """What an answer says that it used; where it says nothing, a fourth of its bytes and its question's."""
    tail = b"".join(turn.parts[-8:])[-TAIL:]
    start = tail.rfind(b'"usage":')
    counts = [int(count) for count in COUNTED.findall(tail, start)] if start >= 0 else []
    if counts:
        return sum(counts)
    return (len(turn.record.request) + (0 if turn.record.stream else turn.size)) // 4 if turn.parts else 0


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _require_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise Refusal(405, f"This takes {wanted}, not {method}.", headers=[(b"allow", wanted.encode())])


async def _read_body(headers: dict[str, str], receive: Receive, most: int) -> bytes | None:
    """None where the client went away. Raises Refusal."""
    too_large = Refusal(413, f"The body is larger than {most >> 20} MiB.", code="request_too_large")
    given = headers.get("content-length", "")
    if given.isdigit() and int(given) > most:
        raise too_large
    if headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "Send the body without a Content-Encoding.")
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
