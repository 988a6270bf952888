"""The endpoint's own probes, in the form of the web processes' (apps/core/watching/probes.py).

GET /livez: this process answers. GET /readyz: it knows its channels, and can spool answers; 503
while a part is down. That the database is away is no part: the endpoint answers without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from apps.serving.answers import JSON
from apps.serving.asgi import Send, send_whole
from apps.serving.refresh import Tables
from apps.serving.spool import Writer

log = logging.getLogger(__name__)
DOCS = "docs/endpoint.md#health"


async def answer(scope: dict[str, Any], send: Send, tables: Tables, writer: Writer) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        said = {"detail": "Only GET is allowed."}
        return await _say(send, 405, said, (b"allow", b"GET, HEAD"))
    if scope["path"].rstrip("/") == "/livez":
        return await _say(send, 200, {"alive": True})
    return await _say_ready(scope, send, tables, writer)


async def _say(
    send: Send, status: int, said: dict[str, Any], *headers: tuple[bytes, bytes]
) -> None:
    await send_whole(send, status, [JSON, *headers], msgspec.json.encode(said))


async def _say_ready(scope: dict[str, Any], send: Send, tables: Tables, writer: Writer) -> None:
    """`?parts=table` asks only for these."""
    checks = {"table": lambda: _table(tables), "spool": lambda: _spool(writer)}
    given = parse_qs(scope["query_string"].decode(errors="replace")).get("parts", [""])[0]
    asked = [name for name in given.split(",") if name] or [*checks]
    if unknown := [name for name in asked if name not in checks]:
        said = {"detail": f"There is no part {unknown[0][:100]}. There are {', '.join(checks)}."}
        return await _say(send, 400, said)
    parts = {name: await asyncio.to_thread(checks[name]) for name in asked}
    is_ready = all(part["state"] == "ok" for part in parts.values())
    return await _say(send, 200 if is_ready else 503, {"ready": is_ready, "parts": parts})


def _table(tables: Tables) -> dict[str, Any]:
    if tables.known:
        return {"state": "ok"}
    return _down(
        "The table of channels has not been read since this process started.",
        "Check that the database answers (GET /readyz of the web processes).",
    )


def _spool(writer: Writer) -> dict[str, Any]:
    """The folder and the error are in the log: anybody may ask."""
    waiting = len(writer.unwritten)
    if not waiting and _is_writable(writer.folder):
        return {"state": "ok"}
    return _down(
        "Answers cannot be written to the spool"
        + (f": {waiting} wait in memory." if waiting else "."),
        "Read the endpoint's log; free space on the disk of FLYWHEEL_ENDPOINT_SPOOL, or make it"
        " writable. Answers in memory are lost if the process ends.",
    )


def _is_writable(folder: Path) -> bool:
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x")  # a byte: an empty file can be made on a full disk
        probe.unlink()
    except OSError as error:
        log.warning("Nothing can be written to %s: %s", folder, error)
        return False
    return True


def _down(says: str, todo: str) -> dict[str, Any]:
    return {"state": "down", "wrong": [{"says": says, "todo": todo, "docs": DOCS}]}
