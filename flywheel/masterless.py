"""granian's command line for a server in this process: the supervisor of `up` is the master that
starts it again. `python -m flywheel.masterless OPTIONS`
"""

from __future__ import annotations

from typing import Any

from granian import cli
from granian.server import MPServer


class Masterless(MPServer):
    """Takes requests in this process instead of one that it starts and watches."""

    def _serve(self, spawn_target: Any, target_loader: Any) -> None:
        self._init_shared_socket()
        self._spawn_worker(0, spawn_target, target_loader).inner.run()


if __name__ == "__main__":
    cli.Server = Masterless
    cli.entrypoint()
