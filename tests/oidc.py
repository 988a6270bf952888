"""A scripted OpenID Connect provider."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt


class Provider:
    """Says that whoever comes is `user`, and sends a browser back at once."""

    def __init__(self) -> None:
        self.user: dict[str, Any] = {
            "sub": "1",
            "email": "ada@example.org",
            "email_verified": True,
            "preferred_username": "ada",
        }
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> dict[str, Any]:
        if path == "/token":
            claims = self.user | {"iss": self.issuer, "aud": "flywheel", "exp": time.time() + 60}
            return {
                "access_token": "a",
                "token_type": "Bearer",
                "id_token": jwt.encode(claims, "k" * 32),
            }
        if path == "/userinfo":
            return self.user
        names = {
            "authorization_endpoint": "/authorize",
            "token_endpoint": "/token",
            "userinfo_endpoint": "/userinfo",
        }
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"} | {
            name: f"{self.issuer}{path}" for name, path in names.items()
        }

    def _handler(self) -> type:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/authorize?"):
                    asked = dict(parse_qsl(urlsplit(self.path).query))
                    self.send_response(302)
                    self.send_header(
                        "Location", f"{asked['redirect_uri']}?code=c&state={asked['state']}"
                    )
                    self.end_headers()
                    return
                body = json.dumps(provider.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    @property
    def settings(self) -> dict[str, Any]:
        """For `SOCIALACCOUNT_PROVIDERS`."""
        app = {
            "provider_id": "sso",
            "name": "Example SSO",
            "client_id": "flywheel",
            "secret": "s",
            "settings": {"server_url": self.issuer},
        }
        return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
