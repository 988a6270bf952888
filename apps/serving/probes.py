"""The endpoint's own probes, in the form of the web processes' (apps/core/watching/probes.py).

GET /livez: this process answers. GET /readyz: it knows its channels, and can spool answers; 503
while a part is down. That the database is away is no part: the endpoint answers without it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec

from apps.serving.answers import JSON
from apps.serving.asgi import Send, send_whole
from apps.serving.refresh import Tables
from apps.serving.spool import Writer

DOCS = "docs/endpoint.md#health"


async def say_alive(send: Send) -> None:
    await send_whole(send, 200, [JSON], b'{"alive":true}')


async def say_ready(scope: dict[str, Any], send: Send, tables: Tables, writer: Writer) -> None:
    """`?parts=table` asks only for these."""
    checks = {"table": lambda: _table(tables), "spool": lambda: _spool(writer)}
    given = parse_qs(scope["query_string"].decode(errors="replace")).get("parts", [""])[0]
    asked = [name for name in given.split(",") if name] or [*checks]
    if unknown := [name for name in asked if name not in checks]:
        said = {"detail": f"There is no part {unknown[0][:100]}. There are {', '.join(checks)}."}
        return await send_whole(send, 400, [JSON], msgspec.json.encode(said))
    parts = {name: await asyncio.to_thread(checks[name]) for name in asked}
    is_ready = all(part["state"] == "ok" for part in parts.values())
    said = msgspec.json.encode({"ready": is_ready, "parts": parts})
    return await send_whole(send, 200 if is_ready else 503, [JSON], said)


def _table(tables: Tables) -> dict[str, Any]:
    if tables.known:
        return {"state": "ok"}
    return _down(
        "The table of channels has not been read since this process started.",
        "Check that the database answers (GET /readyz of the web processes).",
    )


def _spool(writer: Writer) -> dict[str, Any]:
    waiting = len(writer.unwritten)
    if not waiting and not (refused := _why_not_writable(writer.folder)):
        return {"state": "ok"}
    why = f"{waiting} answers wait in memory" if waiting else refused
    return _down(
        f"Answers cannot be written to {writer.folder}: {why}.",
        "Free space on its disk, or make the folder writable. Answers in memory are lost if the"
        " process ends.",
    )


def _why_not_writable(folder: Path) -> str:
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x")  # a byte: an empty file can be made on a full disk
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _down(says: str, todo: str) -> dict[str, Any]:
    return {"state": "down", "wrong": [{"says": says, "todo": todo, "docs": DOCS}]}
