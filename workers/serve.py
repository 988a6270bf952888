"""Serves a model with vLLM or transformers, and keeps it running. `python -m workers.serve
spec.json` (docs/servers.md).

Ends on SIGTERM, or with an error if the server ends several times in a row without having come up.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from pathlib import Path

from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.memory import free_memory
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.serving import Address, list_models
from workers.lib.specs.serve import Serve
from workers.lib.tailed import Tailed, new_lines
from workers.lib.vllm import command, own_command, reason, utilization

STEP_S, ASK_EVERY_S, TAIL_EVERY_S = 0.2, 5.0, 2.0
STOP_GRACE_S = 15.0  # shorter than the runner's own grace period
GIVE_UP_AFTER = 3  # failed starts in a row
LONGEST_WAIT_S = 60.0
PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
)
OWN = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
ROOT = str(Path(__file__).resolve().parent.parent)
OWN_OF_TRANSFORMERS = {
    "PYTHONPATH": ROOT,
    "OMP_WAIT_POLICY": "PASSIVE",
}  # idle threads leave the CPU to others


class Keeper:
    """One server, across all its restarts."""

    def __init__(self, spec: Serve, events: Emitter, stop: StopFlag) -> None:
        self.spec, self.events, self.stop = spec, events, stop
        self.engine = "vLLM" if spec.command else "The server"
        self.lines: deque[str] = new_lines()
        self.restarts, self.sent, self.sent_at = 0, [""], 0.0

    def run(self) -> None:
        failures = 0
        while True:
            failures = 0 if self.serve() else failures + 1
            why = reason(self.lines) or "It wrote nothing."
            if failures >= GIVE_UP_AFTER:
                raise JobError(f"{self.engine} does not start (tried {failures} times). {why}")
            wait = min(LONGEST_WAIT_S, 2.0 ** (1 + failures))
            self.say("waiting", f"{self.engine} ended; it is started again in {wait:.0f} s. {why}")
            self.restarts += 1
            until = time.monotonic() + wait
            while time.monotonic() < until:
                self.step()

    def serve(self) -> bool:
        """Run the server once, from start to end. Returns whether it was up in between."""
        port, up = free_port(self.spec.host, self.spec.ports), False
        url = f"http://{self.spec.host}:{port}/v1"
        self.lines.append(
            f"— started at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC, port {port} —"
        )
        self.say("starting", "")
        env = (
            {name: os.environ[name] for name in PASSED if name in os.environ}
            | self.spec.environment
            | OWN
        )
        if not self.spec.command:
            words, env = (
                own_command(self.spec.model, self.spec.host, port),
                env | OWN_OF_TRANSFORMERS,
            )
        elif Path(self.spec.command).is_file():
            try:
                share = utilization(*free_memory())
            except ValueError as error:
                raise JobError(str(error)) from error
            words = command(self.spec.command, self.spec.model, self.spec.host, port, share)
        else:
            raise JobError(
                f"There is no {self.spec.command}. Run “make vllm” on that machine, or set"
                " FLYWHEEL_VLLM."
            )
        child = Tailed(words, env, self.lines, STOP_GRACE_S)
        try:
            answered, ask_at = time.monotonic(), 0.0
            while child.status is None:
                self.step()
                if (now := time.monotonic()) < ask_at:
                    continue
                if self.answers(url):
                    if not up:
                        self.say("up", "", base_url=url)
                    answered, up = now, True
                elif now - answered > (self.spec.silent_s if up else self.spec.start_s):
                    self.lines.append(f"— no answer for {now - answered:.0f} s: it is ended —")
                    break
                ask_at = time.monotonic() + (ASK_EVERY_S if up else 1.0)
            if child.status is not None:
                self.lines.append(f"— it ended with status {child.status} —")
            return up
        finally:
            child.stop()

    def answers(self, url: str) -> bool:
        listing = list_models(Address(url, allow_private=True))
        return any(row["id"] == self.spec.model.name for row in listing.models)

    def step(self) -> None:
        """Wait a moment, and send the end of the log if it has grown. Raises Stop."""
        self.stop.check()
        time.sleep(STEP_S)
        if (
            time.monotonic() - self.sent_at > TAIL_EVERY_S
            and (tail := list(self.lines)) != self.sent
        ):
            self.events.emit("tail", lines=tail)
            self.sent, self.sent_at = tail, time.monotonic()

    def say(self, phase: str, detail: str, **more: str) -> None:
        self.events.emit("phase", phase=phase, detail=detail, restarts=self.restarts, **more)
        if detail:
            self.events.log("warning", detail)


def free_port(host: str, ports: list[int]) -> int:
    """The first free one of the given ports, otherwise any free port. Raises JobError."""
    for port in range(ports[0], ports[-1] + 1) if ports else (0,):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise JobError(
        f"No port of FLYWHEEL_SERVE_PORTS is free at {host}, or the address is not this machine's."
    )


def main(spec: Serve, events: Emitter, stop: StopFlag) -> None:
    keeper = Keeper(spec, events, stop)
    try:
        keeper.run()
    except (Stop, JobError):
        events.emit("tail", lines=list(keeper.lines))
        raise


if __name__ == "__main__":
    run_main(Serve, main)
