"""Servers whose certificate is of a company's own CA."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpcore2
import httpx2
import pytest

from workers.lib import outgoing

ANYWHERE = True
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=our-ca -keyout key.pem -out ca.pem"
    " -addext subjectAltName=IP:127.0.0.1"
)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    listening = HTTPServer(("127.0.0.1", 0), Answers)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{listening.server_port}/"
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_it_is_called_where_the_ca_is_named(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncached = httpcore2.default_ssl_context.__wrapped__  # type: ignore[attr-defined]  # tests/conftest.py
    monkeypatch.setattr(httpcore2, "default_ssl_context", uncached)
    outgoing.tls.cache_clear()
    with (
        outgoing.client(allow_private=ANYWHERE) as client,
        pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.get(server)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    outgoing.tls.cache_clear()
    try:
        with outgoing.client(allow_private=ANYWHERE) as client:
            assert client.get(server).status_code == 204
    finally:
        outgoing.tls.cache_clear()
