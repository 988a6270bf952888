"""What granian serves as the process `endpoint`: apps.serving, in workers that die with their
master.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from workers.lib.guard import end_with_parent

HAND_OVER_S = 0.5


def application() -> Any:
    """Called once in each worker."""
    return _application(storing=True)


def without_storing() -> Any:
    """Where another process stores the answers of this folder."""
    return _application(storing=False)


def _application(*, storing: bool) -> Any:
    end_with_parent(signal.SIGKILL)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    from django.conf import settings

    from apps.serving import counting
    from apps.serving.endpoint import Endpoint
    from apps.serving.refresh import Tables
    from apps.serving.spool import Writer, settle, waiting
    from apps.serving.turns import Bounds
    from flywheel import telemetry
    from flywheel.counters import ENDPOINT_OLDEST, ENDPOINT_WAITING

    given, host = settings.FLYWHEEL_ENDPOINT, socket.gethostname()
    telemetry.begin("endpoint")
    tables, writer = Tables(), Writer(Path(settings.FLYWHEEL_ENDPOINT_SPOOL))
    endpoint = Endpoint(tables, writer, Bounds(**given))
    program = [
        sys.executable,
        "-m",
        "flywheel.command",
        "store_answers",
        "--parent",
        str(os.getpid()),
    ]

    async def hand_over() -> None:
        counting.flush()
        if (file := writer.hand_over()) >= 0:
            await asyncio.to_thread(settle, file)

    async def keep() -> None:
        """Hands spooled answers and counts over, and keeps the process up that stores them."""
        process: subprocess.Popen[bytes] | None = None
        while True:
            if storing and (process is None or process.poll() is not None):
                process = subprocess.Popen(
                    program,
                    cwd=settings.BASE_DIR,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            for _ in range(10):
                await asyncio.sleep(HAND_OVER_S)
                await hand_over()
            size, oldest_s = waiting(writer.folder)
            ENDPOINT_WAITING.labels(host).set(size)
            ENDPOINT_OLDEST.labels(host).set(round(oldest_s, 1))

    async def lifespan(receive: Any, send: Any) -> None:
        await receive()
        tables.start()
        keeper = asyncio.ensure_future(keep())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        keeper.cancel()
        tables.stop()
        await endpoint.aclose()
        await hand_over()
        await send({"type": "lifespan.shutdown.complete"})

    answer = telemetry.traced_asgi(endpoint)

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        else:
            await answer(scope, receive, send)

    return serve
