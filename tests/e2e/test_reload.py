"""A page that a fragment tells to load again, on a server that takes longer for the page than for
the fragment.
"""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

STATIC = Path(__file__).resolve().parent.parent.parent / "static"
SCRIPTS = {"/htmx.js": next(STATIC.glob("vendor/htmx-*.js")), "/app.js": STATIC / "app.js"}
RUNNING = (
    '<script src="/htmx.js"></script><script src="/app.js"></script><p hx-get="/status"'
    ' hx-trigger="every 1s">running</p>'
)


@pytest.fixture
def slow() -> Iterator[ThreadingHTTPServer]:
    """From the second time on its page takes three times as long as the fragment waits between two
    questions.
    """
    loads: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None: ...

        def do_GET(self) -> None:
            if self.path == "/":
                loads.append(self.path)
                if len(loads) > 1:
                    Event().wait(3)
            body = SCRIPTS[self.path].read_bytes() if self.path in SCRIPTS else b"<h1>ended</h1>"
            if self.path == "/" and len(loads) == 1:
                body = RUNNING.encode()
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/javascript" if self.path in SCRIPTS else "text/html"
            )
            if self.path == "/status":
                self.send_header("HX-Refresh", "true")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.loads = loads  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_a_page_that_loads_again_asks_for_nothing_more(browser: Any, slow: Any) -> None:
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{slow.server_port}/")
    page.get_by_role("heading", name="ended").wait_for()
    page.close()
    assert len(slow.loads) == 2
