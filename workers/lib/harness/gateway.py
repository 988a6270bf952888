"""The addresses of rollouts: `…/rollout/TOKEN/v1/…` is the model in training, and
`…/rollout/TOKEN/mcp` and `/tools/NAME` are the environment's tools. Light: no torch.

It is served by a thread of the program that samples, so it needs nothing but that program, and ends
with it. The token may be sent as the API key instead (`…/rollout/v1/…`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from workers.lib.asgi import EVENTS, Gone, Receive, Send, answer, body_of, events, left
from workers.lib.errors import JobError, sentence
from workers.lib.harness import tools
from workers.lib.harness.dialects import DIALECTS, Chat, Dialect
from workers.lib.harness.open_rollout import ENDED, OpenRollout
from workers.lib.harness.pulled import PulledLauncher
from workers.lib.messages_over_chat import counted, read_count
from workers.lib.openai_requests import ApiError

ROOT = "/rollout/"
WORK = f"{ROOT}work/"
ALIVE_EVERY_S = 10.0  # a comment in a stream that waits for its answer, so that no client gives up
START_S = 30.0
LAST_REPORTS_S = 5.0
MOST_ENDED = 10_000  # tokens of ended rollouts, which get another sentence than unknown ones
UNKNOWN = "No rollout has this address."
OTHERS = "This request has the address of one rollout and the key of another."
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """Where a request goes: the rollout, and the rest of its path."""

    rollout: OpenRollout
    rest: str


class Gateway:
    """Open it with `start`, close it with `close`. Rollouts belong to the event loop in which they
    were opened; everything that is asked of them runs there.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, url: str = "") -> None:
        self.host, self.port, self.url = host, port, url.rstrip("/")
        self.work: PulledLauncher | None = None  # answers workers that ask for rollouts
        self.reports = 0  # requests of workers that are being answered
        self.rollouts: dict[str, OpenRollout] = {}
        self.ended: OrderedDict[str, None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # Its life

    def start(self) -> None:
        """Raises JobError if it cannot listen."""
        self.port = self.port or _free_port(self.host)
        self.url = self.url or f"http://{self.host}:{self.port}"
        self._thread = threading.Thread(
            target=lambda: uvloop.run(self._serve()), name="gateway", daemon=True
        )
        self._thread.start()
        if not _listens(self.host, self.port, self._thread):
            raise JobError(f"The rollouts' address {self.host}:{self.port} cannot be opened.")

    def close(self) -> None:
        if self._loop is not None and self._closing is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread is not None:
            self._thread.join(START_S)

    async def _serve(self) -> None:
        from granian.constants import HTTPModes, Interfaces
        from granian.server.embed import Server

        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        server = Server(
            self,
            self.host,
            self.port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=1024,
            log_enabled=False,
        )
        serving = asyncio.ensure_future(server.serve())
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait({serving, closing}, return_when=asyncio.FIRST_COMPLETED)
        if self.work is not None:
            self.work.close()
            until = self._loop.time() + LAST_REPORTS_S
            while self.reports and self._loop.time() < until:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)  # the last answer leaves
        server.stop()
        await asyncio.wait({serving}, timeout=START_S)

    # Rollouts

    def open(self, rollout: OpenRollout) -> str:
        """The rollout's address."""
        self.rollouts[rollout.token] = rollout
        return f"{self.url}{ROOT}{rollout.token}"

    def end(self, rollout: OpenRollout) -> None:
        self.rollouts.pop(rollout.token, None)
        self.ended[rollout.token] = None
        while len(self.ended) > MOST_ENDED:
            self.ended.popitem(last=False)

    # Requests

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        gone: asyncio.Task[None] | None = None
        asked: _Asked | None = None
        error_of = DIALECTS.get(_path(scope["path"]), Chat).error
        try:
            if self.work is not None and scope["path"].startswith(WORK):
                self.reports += 1
                try:
                    data = await body_of(receive)
                    gone = asyncio.create_task(left(receive))
                    found = await self.work.answer(scope["path"].removeprefix(WORK), data, gone)
                    await answer(send, 200, found)
                finally:
                    self.reports -= 1
                return
            asked = self._find(scope)
            data = await body_of(receive)
            gone = asyncio.create_task(left(receive))
            await self._route(scope, asked, data, gone, send)
        except ApiError as error:
            if asked is not None and error.status < 500:
                _tell(asked.rollout, asked.rollout.refused, str(error))
            body = error_of(error)
            await answer(send, error.status, body, retry_after_s=error.retry_after_s)
        except Gone:
            log.info("the agent closed the connection")
        except Exception as error:
            log.exception("a request to a rollout failed")
            await answer(send, 500, error_of(ApiError(500, sentence(error))))
        finally:
            if gone is not None:
                gone.cancel()

    def _find(self, scope: dict[str, Any]) -> _Asked:
        path: str = scope["path"]
        if not path.startswith(ROOT):
            raise ApiError(404, UNKNOWN)
        token, _, rest = path.removeprefix(ROOT).partition("/")
        key = _key_in(scope["headers"])
        if token == "v1":
            token, rest = key, f"v1/{rest}"
        rollout = self.rollouts.get(token)
        if rollout is None:
            raise ApiError(410, ENDED) if token in self.ended else ApiError(404, UNKNOWN)
        if key != token and (key in self.rollouts or key in self.ended):
            _tell(rollout, rollout.distrust, OTHERS)
            if other := self.rollouts.get(key):
                _tell(other, other.refused, OTHERS)
            raise ApiError(403, OTHERS)
        return _Asked(rollout, rest)

    async def _route(
        self,
        scope: dict[str, Any],
        asked: _Asked,
        data: bytes,
        gone: asyncio.Task[None],
        send: Send,
    ) -> None:
        rollout, method, path = asked.rollout, scope["method"], _path(asked.rest)
        if path.partition("/")[0] in ("mcp", "tools"):
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            called = tools.answer(method, path, headers, data, rollout)
            status, sent, body = await _in(rollout, called)
            pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
            await send({"type": "http.response.start", "status": status, "headers": pairs})
            await send({"type": "http.response.body", "body": body})
        elif path == "models" or path.startswith("models/"):
            await answer(send, 200, _models(rollout.settings.model, path))
        elif path == "messages/count_tokens" and method == "POST":
            chat = read_count(data).chat()
            count = rollout.sampler.count
            await answer(
                send, 200, counted(await asyncio.to_thread(count, chat.messages, chat.tools or []))
            )
        elif path in DIALECTS and method == "POST":
            dialect = DIALECTS[path](data, rollout.settings.model)
            await self._answer(rollout, dialect, gone, send)
        elif path in DIALECTS:
            raise ApiError(405, "Method Not Allowed")
        else:
            raise ApiError(404, f"A rollout's address has no “{path[:80]}”.")

    async def _answer(
        self, rollout: OpenRollout, dialect: Dialect, gone: asyncio.Task[None], send: Send
    ) -> None:
        work = asyncio.ensure_future(_in(rollout, rollout.answer(dialect.asked, dialect.ignored)))
        if not dialect.asked.stream:
            answered = await _unless(gone, work)
            await answer(send, 200, dialect.whole(answered))
        else:
            begun = False
            try:
                while not work.done():
                    first = asyncio.FIRST_COMPLETED
                    await asyncio.wait({work, gone}, timeout=ALIVE_EVERY_S, return_when=first)
                    if gone.done():
                        raise Gone
                    if not work.done():
                        begun = begun or await _begin_stream(send)
                        await _piece(send, b": waiting for the model\n\n")
                rows = dialect.events(work.result())
            except ApiError as error:
                if not begun:
                    raise
                await events(send, dialect.failed(error))
                await send({"type": "http.response.body", "body": dialect.last})
                return
            begun = begun or await _begin_stream(send)
            await events(send, rows)
            await send({"type": "http.response.body", "body": dialect.last})
        _tell(rollout, rollout.delivered, work.result())


def _path(rest: str) -> str:
    """Without the version, which clients put before it or leave out."""
    path = rest.strip("/")
    return path.removeprefix("v1/") if path.startswith("v1/") else path.partition("/v1/")[2] or path


def _tell(rollout: OpenRollout, told: Callable[[Any], None], what: Any) -> None:
    """In the rollout's own event loop, before anything that its agent does next."""
    rollout.loop.call_soon_threadsafe(told, what)


def _in(rollout: OpenRollout, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Runs in the rollout's own event loop."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, rollout.loop))


async def _unless(gone: asyncio.Task[None], work: asyncio.Future[T]) -> T:
    """Raises Gone if the client leaves first."""
    await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    if gone.done():
        raise Gone
    return work.result()


async def _begin_stream(send: Send) -> bool:
    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
    return True


async def _piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _models(name: str, path: str) -> dict[str, Any]:
    row = {"id": name, "object": "model", "created": 0, "owned_by": "flywheel"}
    return row if path != "models" else {"object": "list", "data": [row]}


def _key_in(headers: list[tuple[bytes, bytes]]) -> str:
    known = {name.lower(): value.decode("latin-1") for name, value in headers}
    given = known.get(b"authorization", "").removeprefix("Bearer ").strip()
    return given or known.get(b"x-api-key", "")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _listens(host: str, port: int, thread: threading.Thread) -> bool:
    """Whether a server started by the thread accepts connections."""
    for _ in range(int(START_S * 50)):
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((host, port)) == 0:
                return True
        if not thread.is_alive():
            return False
        thread.join(0.02)
    return False
