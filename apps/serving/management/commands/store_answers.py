from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from apps.serving.storing import run
from workers.lib.guard import end_with_parent


class Command(BaseCommand):
    help = (
        "Stores what the endpoint has answered as trajectories, until its parent ends. One at a"
        " time; the endpoint starts it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--parent", type=int, default=os.getppid(), help="the process whose end ends it"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        parent, stopped = options["parent"], list[int]()
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent(signal.SIGTERM)
        folder = Path(settings.FLYWHEEL_ENDPOINT_SPOOL)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

        def keep_on() -> bool:
            return not stopped and os.getppid() == parent

        while keep_on():  # the previous endpoint process may still have an open segment
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                run(folder, keep_on)
                break
            time.sleep(0.5)
