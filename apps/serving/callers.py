"""Authenticates callers, finds their channel and enforces limits. Uses the in-memory table, and the
database only for unknown names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connection

from apps.core.attempts import Locked, refuse_key
from apps.core.models import key_digest
from apps.serving.answers import Headers, Refusal, not_served, unknown_model
from apps.serving.limits import Exceeded, Meter
from apps.serving.refresh import Tables
from apps.serving.routes import Key, Route

log = logging.getLogger(__name__)
ASKS = [(b"www-authenticate", b"Bearer")]
CountRefused = Callable[[str, str], None]


def count_refused(digest: str, address: str) -> None:
    """As the API does: by network, and into the audit log. Raises Refusal once too many came from
    there.
    """
    try:
        refuse_key(digest, address)
    except Locked as locked:
        raise Refusal(
            429,
            f"{locked} Valid keys keep working.",
            code="too_many_invalid_keys",
            kind="rate_limit_error",
            headers=[(b"retry-after", str(locked.seconds).encode())],
        ) from None
    except (DatabaseError, InterfaceError) as error:
        log.warning("A refused key is not counted: %s", error)


class Callers:
    def __init__(self, tables: Tables, count_refused: CountRefused = count_refused) -> None:
        self.tables, self.count_refused = tables, count_refused
        self.meters: dict[int, Meter] = {}

    async def key_of(self, headers: dict[str, str], address: str) -> Key:
        """Raises Refusal."""
        scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Refusal(
                401,
                "Send an API key of the project as “Authorization: Bearer fw_…”.",
                code="invalid_api_key",
                headers=ASKS,
            )
        digest = key_digest(secret.strip())
        keys = self.tables.current.keys
        if digest not in keys:
            keys = (await asyncio.to_thread(self.tables.refresh_for_unknown)).keys
        if not self.tables.known:
            raise Refusal(
                503,
                "The endpoint is starting and cannot reach its database yet.",
                headers=[(b"retry-after", b"2")],
            )
        key = keys.get(digest)
        if key is None and digest in keys:
            raise Refusal(
                403,
                "This API key lacks the scope “generate”. Create one with that scope under Settings"
                " → API keys.",
                code="insufficient_scope",
                kind="permission_error",
            )
        if key is None or key.is_expired:
            await asyncio.to_thread(self._note_refused, digest, address)
            why = "has expired" if key else "is unknown or revoked"
            raise Refusal(
                401,
                f"This API key {why}. Create a new one under Settings → API keys.",
                code="invalid_api_key",
                headers=ASKS,
            )
        if key.refusal:
            raise Refusal(403, key.refusal, code="project_closed", kind="permission_error")
        return key

    def _note_refused(self, digest: str, address: str) -> None:
        """In a thread of its own. Raises Refusal."""
        try:
            self.count_refused(digest, address)
        finally:
            connection.close()

    async def route_of(self, key: Key, model: str) -> Route:
        """Raises Refusal."""
        if route := self.tables.current.routes.get(key.project, {}).get(model):
            return route
        if why := self.tables.current.closed.get(key.project, {}).get(model):
            raise not_served(why)
        table = await asyncio.to_thread(self.tables.refresh_for_unknown)
        routes = table.routes.get(key.project, {})
        if model not in routes:
            raise unknown_model(model, routes, table.closed.get(key.project, {}))
        return routes[model]

    def begin(self, key: Key, now: float) -> Meter:
        """Count the request and return the key's meter; end it with what was used. Raises Refusal
        if a limit is reached.
        """
        meter = self.meters.setdefault(key.pk, Meter(now))
        try:
            meter.begin(key.limits, now)
        except Exceeded as error:
            headers = [(b"retry-after", str(error.wait_s).encode()), *meter.headers(key.limits)]
            raise Refusal(
                429,
                str(error),
                code="rate_limit_exceeded",
                kind="rate_limit_error",
                headers=headers,
            ) from error
        return meter

    def headers(self, key: Key) -> Headers:
        return self.meters[key.pk].headers(key.limits)
