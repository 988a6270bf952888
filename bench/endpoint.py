"""What the endpoint adds to an answer, with logging on: `python -m bench.endpoint [--litellm BIN]`
(`make litellm` installs that).

A scripted server streams words at a fixed pace; the same clients ask it directly, through the
endpoint, and through LiteLLM's proxy, in turns, in one run. What is added is the difference of
quantiles of the same clock: to the first word, and to the end of an answer. The endpoint is the
process that `up` starts (granian, one worker) with a database of its own, where all answers are
counted at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parent.parent
KEY = "fw_bench-key-0123456789"
WORDS, GAP_S = 20, 0.05
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


# The scripted server: bytes in, bytes out


class _Peer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.data, self.loop = transport, b"", asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.data += data
        end = self.data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        if self.data.startswith(b"GET"):
            self.data = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")  # type: ignore[attr-defined]
            return
        size = int(LENGTH.search(self.data, 0, end)[1])  # type: ignore[index]
        if len(self.data) >= end + size:
            self.data = self.data[end + size :]
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding:"
                b" chunked\r\n\r\n"
            )  # type: ignore[attr-defined]
            self.say(0)

    def say(self, word: int) -> None:
        if self.transport.is_closing():
            return
        delta = (
            {"role": "assistant", "content": ""}
            if word == 0
            else {"content": f"word{word} "}
            if word <= WORDS
            else {}
        )
        choice = {"index": 0, "delta": delta, "finish_reason": None if word <= WORDS else "stop"}
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        data = _chunk(json.dumps(chunk, separators=(",", ":")).encode())
        if word > WORDS:
            usage = chunk | {
                "choices": [],
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": WORDS,
                    "total_tokens": 9 + WORDS,
                },
            }
            data += (
                _chunk(json.dumps(usage, separators=(",", ":")).encode())
                + _chunk(b"[DONE]")
                + b"0\r\n\r\n"
            )
        else:
            self.loop.call_later(GAP_S, self.say, word + 1)
        self.transport.write(data)  # type: ignore[attr-defined]


def _chunk(text: bytes) -> bytes:
    event = b"data: " + text + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _serve(pipe) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_Peer, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def scripted() -> Iterator[str]:
    mine, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs,), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}/v1"
    finally:
        process.terminate()


# The two in between

SEED = """
from uuid import uuid4
from apps.core.actions import create_api_key
from apps.core.models import ApiKey, Project, key_digest
from apps.promotion import actions
from apps.promotion.policies import channel_of
from apps.registry.actions import register_endpoint
from apps.registry.servers import add_server
project = Project.objects.get(slug="my-agent")
by = project.memberships.first().user
name = "bench-" + uuid4().hex[:8]
if not ApiKey.objects.filter(digest=key_digest("%s")).exists():
    create_api_key(project=project, name="bench", by=by, secret="%s")
server = add_server(project=project, fields={"name": name, "kind": "vllm", "base_url": "%s"}, \
by=by, operator=True)
version = register_endpoint(project=project, server=server, served_as="m", name=name, by=by)
actions.set_initial(channel=channel_of(project, name), version=version, by=by)
print(name)
"""
COUNT = """
import json
from apps.trajectories import assembly, traces
while traces.sort_some() or assembly.step(): pass
from apps.trajectories.models import Trajectory
rows = Trajectory.objects.filter(agent_name="%s")
print(json.dumps([rows.count(), rows.filter(output_tokens=%d).count()]))
"""

HOLD = "import sys; from flywheel import embedded; embedded.ensure(); sys.stdin.read()"


def manage(env: dict[str, str], *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


@contextlib.contextmanager
def process(command: list[str], env: dict[str, str], url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        it = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=file, stderr=file, start_new_session=True
        )
    try:
        for _ in range(600):
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(url, timeout=5).status_code == 200:
                    break
            time.sleep(0.2)
        else:
            sys.exit(f"{command[0]} does not start: {log.read_text()[-2000:]}")
        yield
    finally:
        os.killpg(it.pid, signal.SIGTERM)
        it.wait(60)


# The clients


async def one(
    reader_of: tuple[str, int], path: str, key: str, model: str, number: int
) -> tuple[float, float]:
    """(seconds to the first word, to the end) of a stream over a connection of its own."""
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "messages": [{"role": "user", "content": f"Question {number}"}],
        }
    ).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type:"
        f" application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(*reader_of)
    began = time.perf_counter()
    writer.write(head.encode() + body)
    seen, first = b"", 0.0
    while b"[DONE]" not in seen[-200:]:
        part = await reader.read(65536)
        if not part:
            raise SystemExit(f"broken: {seen[-500:]!r}")
        seen += part
        if not first and b"word1" in seen:
            first = time.perf_counter() - began
    ended = time.perf_counter() - began
    writer.close()
    if seen.count(b"word") != WORDS:
        raise SystemExit(f"{seen.count(b'word')} words of {WORDS}")
    return first, ended


async def measure(
    url: str, key: str, model: str, at_once: int, rounds: int
) -> list[tuple[float, float]]:
    parts = httpx2.URL(url)
    place, path = (parts.host, parts.port or 80), f"{parts.path.rstrip('/')}/chat/completions"
    found = []
    for number in range(rounds):

        async def after(wait: float, n: int) -> tuple[float, float]:
            await asyncio.sleep(wait)
            return await one(place, path, key, model, n)

        # All are open at a time; they do not all begin in one instant, which would measure the
        # queue of this machine.
        found += await asyncio.gather(
            *(after(n * GAP_S / 10, number * at_once + n) for n in range(at_once))
        )
    return found


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--litellm", default="", help="the `litellm` program; left out: only the endpoint"
    )
    parser.add_argument(
        "--data",
        default="var/bench/endpoint",
        help="the folder of a database of its own, made where there is none",
    )
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-endpoint-") as name,
        scripted() as direct,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        env = os.environ | {
            "FLYWHEEL_DATA_DIR": str(Path(given.data).resolve()),
            "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
        }
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )  # keeps the database up
        stack.callback(holder.wait)
        stack.callback(holder.stdin.close)  # type: ignore[union-attr]
        if not (Path(given.data) / "secret_key").exists():
            manage(env, "prepare")
        channel = manage(env, "shell", "-v", "0", stdin=SEED % (KEY, KEY, direct)).split()[-1]
        ways = {"direct": (direct, "none", "m")}
        command = [
            sys.executable,
            "-m",
            "flywheel.processes",
            "endpoint",
            "--host",
            "127.0.0.1",
            "--port",
            "8871",
        ]
        stack.enter_context(
            process(command, env, "http://127.0.0.1:8871/healthz", folder / "endpoint.log")
        )
        ways["endpoint"] = ("http://127.0.0.1:8871/v1", KEY, channel)
        if given.litellm:
            config = folder / "litellm.yaml"
            config.write_text(
                json.dumps(
                    {
                        "model_list": [
                            {
                                "model_name": "production",
                                "litellm_params": {
                                    "model": "openai/m",
                                    "api_base": direct,
                                    "api_key": "none",
                                },
                            }
                        ],
                        "general_settings": {"master_key": "sk-bench"},
                    }
                )
            )
            command = [
                given.litellm,
                "--config",
                str(config),
                "--host",
                "127.0.0.1",
                "--port",
                "8872",
                "--telemetry",
                "False",
            ]
            offline = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            stack.enter_context(
                process(
                    command,
                    offline,
                    "http://127.0.0.1:8872/health/liveliness",
                    folder / "litellm.log",
                )
            )
            ways["LiteLLM"] = ("http://127.0.0.1:8872/v1", "sk-bench", "production")
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for way in ways.values():
            asyncio.run(measure(*way, 10, 1))
        for _ in range(given.repeats):
            for way, where in ways.items():
                found[way] += asyncio.run(measure(*where, given.at_once, given.rounds))
        print(
            f"{given.at_once} streams at a time of {WORDS} words, {len(found['direct'])} of"
            " each; ms",
            flush=True,
        )
        for place, what in enumerate(("first word", "whole answer")):
            base = [pair[place] for pair in found["direct"]]
            for way, pairs in found.items():
                values = [pair[place] for pair in pairs]
                p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
                more = (
                    f"  adds p50 {p50 - quantile(base, 0.5):.1f}, p99"
                    f" {p99 - quantile(base, 0.99):.1f}"
                    if way != "direct"
                    else ""
                )
                print(
                    f"{what:>13}  {way:>9}  p50 {p50:7.1f}  p99 {p99:7.1f}  mean"
                    f" {statistics.mean(values) * 1000:7.1f}{more}"
                )
        asked = len(found["endpoint"]) + 10
        for _ in range(60):
            stored, whole = json.loads(
                manage(env, "shell", "-v", "0", "-c", COUNT % (channel, WORDS)).splitlines()[-1]
            )
            if stored >= asked:
                break
            time.sleep(1)
        print(f"{stored} of {asked} answers are trajectories, {whole} of them with all tokens")


if __name__ == "__main__":
    main()
