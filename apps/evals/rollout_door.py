"""What the program that evaluates a called agent asks its runner: to open the address of a sample
that begins, and to end it and say what ran there. The program has no database, and the agent may
be anywhere, so the tools are served by the web process and the two meet in the rows of `rollouts`.

It is a Unix socket of the runner, so that worker and web need no way to each other. A line of JSON
is asked, and a line is answered.
"""

from __future__ import annotations

import json
import os
import socketserver
import tempfile
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from django.conf import settings
from django.db import connection

from apps.environments.protocol.bodies import Refusal
from apps.evals import rollouts
from apps.evals.models import EvalRun
from workers.lib.specs.evaluate import RolloutDoor

MOST_BYTES = 64 * 2**20  # of a line: the state of an episode


def door_spec(run: EvalRun) -> RolloutDoor | None:
    """None where there is nothing to ask: of a model, and of episodes of one message."""
    if run.spec.get("engine", {}).get("kind") != "agent" or not rollouts.has_tools(run.environment):
        return None
    return RolloutDoor(socket=str(_socket_of(run)), url=settings.FLYWHEEL_URL + rollouts.PATH)


def _socket_of(run: EvalRun) -> Path:
    """Not in the job's folder, whose path may be longer than a socket's may be (107 bytes)."""
    folder = Path(tempfile.gettempdir()) / f"flywheel-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else.")
    return folder / f"{run.pk.hex}-{run.attempt}"


def door(run: EvalRun) -> AbstractContextManager:
    spec = door_spec(run)
    return Door(run, Path(spec.socket)) if spec else nullcontext()


class Door:
    """Open as long as it is entered; each question is answered by a thread of its own."""

    def __init__(self, run: EvalRun, path: Path) -> None:
        self.run, self.path = run, path

    def __enter__(self) -> Door:
        for left in self.path.parent.glob(f"{self.run.pk.hex}-*"):
            left.unlink(missing_ok=True)  # of an attempt that was killed
        self.server = _Server(str(self.path), _Handler)
        self.server.run = self.run
        self.thread = threading.Thread(target=self.server.serve_forever, name="rollouts")
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads, request_queue_size = True, 256
    run: EvalRun


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            asked = json.loads(self.rfile.readline(MOST_BYTES))
            said = _answer(self.server.run, asked)
        except Refusal as refusal:
            said = {"error": refusal.sentence}
        except Exception as error:  # the program's own failure then says why
            said = {"error": f"{type(error).__name__}: {error}"[:500]}
        finally:
            connection.close()
        self.wfile.write(json.dumps(said).encode() + b"\n")


def _answer(run: EvalRun, asked: dict[str, Any]) -> dict[str, Any]:
    place = (asked["task"], asked["index"])
    if asked["do"] == "begin":
        return {"token": rollouts.begin(run, place)}
    if asked["do"] == "take":
        return vars(rollouts.take(run, place))
    rollouts.put_back(run, place, asked["state"])
    return {}
