from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from granian.constants import Interfaces
from granian.server.embed import Server
from openai import OpenAI

from apps.core.models import key_digest
from apps.serving.endpoint import Endpoint
from apps.serving.limits import Limits
from apps.serving.refresh import Tables
from apps.serving.routes import CANARY, OUTSIDE, Backend, Intake, Key, Lane, Route, Table
from apps.serving.spool import Record, Writer, read, segments, settle
from apps.serving.turns import Bounds
from tests.flywheel.machine import eventually, free_port
from tests.serving.scripted import Scripted, scripted
from workers.lib.outgoing import check_url

SECRET = "fw_test"
TRIAL = "11111111-2222-3333-4444-555555555555"


def backend(server: Scripted, **more: Any) -> Backend:
    given = {"served_as": f"{server.name}-adapter", "speaks_both": True} | more
    return Backend(
        server.name, check_url(server.url, allow_private=True), allow_private=True, **given
    )


@dataclass
class Running:
    """An endpoint behind granian, on a table that the test sets."""

    url: str
    tables: Tables
    endpoint: Endpoint
    folder: Path
    loop: asyncio.AbstractEventLoop

    def serve(
        self,
        *servers: Scripted,
        channel: str = "production",
        version: str = "v1",
        prompt: Any = None,
        **more: Any,
    ) -> None:
        """Moves a channel, all at once as a refresh does."""
        lane = Lane(
            version, int(version[1:]), tuple(backend(server, **more) for server in servers), prompt
        )
        routes = self.tables.current.routes.get(1, {}) | {channel: Route(channel, (lane,), 1)}
        self.tables.current = replace(self.tables.current, routes={1: routes})

    def try_out(
        self,
        current: Scripted,
        *candidates: Scripted,
        kind: str = CANARY,
        share: float = 1.0,
        step: int = 0,
        room: int | None = None,
        **more: Any,
    ) -> None:
        """A trial of version v2, on `candidates`, beside v1. `room`: for so many sessions more of
        the candidate.
        """
        given = {"trial": TRIAL, "step": step}
        lanes = (
            Lane("v1", 1, (backend(current),), **given),
            Lane(
                "v2",
                2,
                tuple(backend(one, **more) for one in candidates),
                share=share,
                kind=kind,
                **given,
            ),
        )
        outside = replace(lanes[0], kind=OUTSIDE)
        intake = None if room is None else Intake(room, time.monotonic(), outside)
        routes = {1: {"production": Route("production", lanes, 1, "salt", intake)}}
        self.tables.current = replace(self.tables.current, routes=routes)

    def limit(self, **limits: int) -> None:
        self.keys(Key(1, 1, "fw_test", "p", Limits(**limits)))

    def keys(self, key: Key | None) -> None:
        self.tables.current = replace(self.tables.current, keys={key_digest(SECRET): key})

    def bound(self, **bounds: float) -> None:
        """From now on."""
        made = replace(self.endpoint.bounds, **bounds)
        self.endpoint.bounds = self.endpoint.servers.bounds = self.endpoint.shadows.bounds = made

    def client(self, **more: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=SECRET, max_retries=0, timeout=300, **more)

    def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **more: Any
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {SECRET}"} | more.pop("headers", {})
        given = {"json": body} if isinstance(body, dict) else {"content": body}
        return httpx2.post(
            f"{self.url}{path}", headers=headers, timeout=300, trust_env=False, **given, **more
        )

    def records(self, number: int) -> list[Record]:
        """What was noted, once there is so much of it."""
        found: list[Record] = []

        async def hand_over() -> None:  # where records are written: from here it would be a race
            if (file := self.endpoint.writer.hand_over()) >= 0:
                settle(file)

        def enough() -> bool:
            asyncio.run_coroutine_threadsafe(hand_over(), self.loop).result(300)
            found[:] = [record for path in segments(self.folder) for record in read(path)]
            return len(found) >= number

        eventually(enough)
        assert len(found) == number
        return found


@pytest.fixture
def bounds() -> Bounds:
    return Bounds()


@contextlib.contextmanager
def served(tables: Tables, folder: Path, bounds: Bounds | None = None) -> Iterator[Running]:
    """An endpoint behind granian, in a thread."""
    port = free_port()
    endpoint = Endpoint(tables, Writer(folder), bounds, lambda digest, address: None)
    server = Server(
        endpoint,
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGINL,
        websockets=False,
        log_enabled=False,
        backpressure=1024,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(),), daemon=True)
    thread.start()
    it = Running(f"http://127.0.0.1:{port}", tables, endpoint, folder, loop)
    eventually(lambda: _is_up(it.url))
    yield it
    loop.call_soon_threadsafe(server.stop)
    thread.join(300)


@pytest.fixture
def running(tmp_path: Path, bounds: Bounds) -> Iterator[Running]:
    tables = Tables(read=Table)
    tables.refresh_for_unknown = lambda: tables.current  # type: ignore[method-assign]
    tables.known = True
    with served(tables, tmp_path / "spool", bounds) as it:
        it.limit()
        yield it


def _is_up(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz", trust_env=False).status_code == 200
    except httpx2.HTTPError:
        time.sleep(0.02)
        return False


@pytest.fixture
def server() -> Iterator[Callable[[str], Scripted]]:
    """Makes scripted servers, each with its name."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(scripted(name))
