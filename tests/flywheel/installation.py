"""An installation that runs (`up`), as operators and agents see it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from flywheel.embedded import ROLE, Layout
from tests.factories import row
from tests.flywheel.machine import Machine, free_port, up

KEY, PASSWORD = "fw_test-key-0123456789", "operator-of-the-proof"


class Inbox:
    """Where operators are sent alerts."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.got += json.loads(body)["data"]
                self.send_response(204)
                self.end_headers()

            def log_message(self, *given: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def has(self, condition: str, about: str, *, over: bool) -> bool:
        return any(
            one["condition"] == condition
            and about in one["about"] + one["says"]
            and bool(one["ended_at"]) == over
            for one in self.got
        )


class Installation:
    def __init__(self, machine: Machine, inbox: Inbox) -> None:
        self.machine, self.inbox, self.port = machine, inbox, free_port()
        machine.environment |= {
            "FLYWHEEL_OPERATOR_WEBHOOK": inbox.url,
            "FLYWHEEL_API_KEY": KEY,
            "FLYWHEEL_ADMIN_PASSWORD": PASSWORD,
        }
        up(machine, self.port)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)

    def log_in(self) -> None:
        self.press("/login/", page="/login/", login="admin", password=PASSWORD)

    def press(self, path: str, *, page: str = "/operator/", **fields: str) -> None:
        """Sends a form of a page."""
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.client.get(page).text)
        assert token
        sent = self.client.post(
            path,
            data=fields | {"csrfmiddlewaretoken": token[1]},
            headers={"Referer": str(self.client.base_url)},
        )
        assert sent.status_code == 302, sent.text

    def sends(self, name: str) -> int:
        """The status with which a run is answered."""
        return self.client.post(
            "/api/v1/trajectories/",
            json=row(name=name),
            headers={"Authorization": f"Bearer {KEY}"},
        ).status_code

    def part(self, name: str) -> str:
        return self.client.get("/readyz", params={"parts": name}).json()["parts"][name]["state"]

    def said(self, condition: str, part: str = "") -> bool:
        """By /readyz: as what makes the part down, or as a warning."""
        answer = self.client.get("/readyz")
        ready = answer.json()
        wrong = ready["parts"][part].get("wrong", []) if part else ready["warnings"]
        assert answer.status_code == (200 if ready["ready"] else 503)
        return any(one["condition"] == condition for one in wrong)

    def found(self, condition: str) -> bool:
        text = self.client.get("/metrics").text
        value = re.search(rf'flywheel_condition{{condition="{condition}".*}} ([\d.]+)', text)
        return bool(value) and float(value[1]) > 0

    def shown(self, condition: str) -> bool:
        page = self.client.get("/operator/")
        return f"operations.md#{condition.replace('_', '-')}" in page.text

    def is_refused(self) -> bool:
        """The operator's page, which needs the database to know who asks: it says why."""
        page = self.client.get("/operator/")
        return page.status_code == 503 and "database" in page.text

    def postgres(self) -> list[int]:
        parent = self.machine.postmaster()
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [parent, *map(int, children)]

    def connect(self) -> psycopg.Connection[Any]:
        host = str(Layout.of(self.machine.data).run)
        return psycopg.connect(host=host, user=ROLE, dbname="flywheel", autocommit=True)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Those that are gone meanwhile are left out."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
