"""What a rollout's address adds to an answer, and what open rollouts hold.

`python -m bench.rollout_addresses [--rollouts 64] [--turns 20] [--open 1000] [--busy]` opens so
many rollouts on one gateway, with a model that answers at once with 64 tokens. The agent of each
asks so many times over one connection, each question continuing the last answer, with a pause of
0.2 to 0.6 s between two. Reported are the milliseconds of an answer beside those of `GET
…/v1/models` on the same connection, which is HTTP alone; the processor time of both, gateway and
client together, from one agent without pauses; and the memory that open rollouts with a history of
ten turns add. `--busy`: beside a thread that multiplies matrices, as an update does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from workers.lib.engines import SoFar
from workers.lib.harness.gateway import Gateway
from workers.lib.harness.open_rollout import OpenRollout, Settings
from workers.lib.policies import Reply

WORDS = "The order 4711 was sent on Monday, and will be there by Thursday at the latest. " * 2
HOME = Path(__file__).resolve().parent.parent / "var" / "bench"


class AtOnce:
    """A model that answers at once; a byte is a token."""

    async def sample(
        self, messages: list[dict], tools: list[dict], so_far: SoFar | None, **more: Any
    ) -> tuple[Reply, SoFar]:
        before = so_far.ids if so_far else []
        new = messages[len(so_far.messages) + 1 :] if so_far else messages
        prompt = before + [b for one in new for b in one["content"].encode()]
        ids = list(WORDS[:64].encode())
        reply = Reply(
            {"role": "assistant", "content": WORDS[:64]},
            WORDS[:64],
            len(prompt),
            len(ids),
            prompt_token_ids=prompt,
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
        )
        return reply, SoFar(messages, tools, prompt + ids, asked=len(prompt))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()


class Nothing:
    """An episode without tools."""

    tools: list[dict] = []
    calls: list[Any] = []


class Connection:
    """One kept connection, with as little of a client as there can be."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        status = await self.reader.readuntil(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise SystemExit(status.decode())
        headers = dict(line.lower().split(b": ", 1) for line in status.strip().split(b"\r\n")[1:])
        if b"content-length" in headers:
            return await self.reader.readexactly(int(headers[b"content-length"]))
        found = bytearray()
        while size := int((await self.reader.readline()).strip(), 16):
            found += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return bytes(found)


Times = tuple[list[float], list[float]]


async def talk(
    address: str, port: int, turns: int, pause: bool = False, clock: Any = None
) -> Times:
    """Milliseconds of each answer, and of HTTP alone, by `clock`."""
    clock = clock or time.perf_counter
    path, connection = "/rollout" + address.split("/rollout", 1)[1], Connection(port)
    await connection.open()
    messages: list[dict] = []
    answers, bare = [], []
    for turn in range(turns):
        await asyncio.sleep(random.uniform(0.2, 0.6) if pause else 0)
        messages.append({"role": "user", "content": f"{turn}: {WORDS}"})
        body = json.dumps({"messages": messages}).encode()
        began = clock()
        said = await connection.ask("POST", f"{path}/v1/chat/completions", body)
        answers.append((clock() - began) * 1000)
        messages.append(json.loads(said)["choices"][0]["message"])
        began = clock()
        await connection.ask("GET", f"{path}/v1/models")
        bare.append((clock() - began) * 1000)
    connection.writer.close()
    return answers, bare


def opened(gateway: Gateway) -> str:
    return gateway.open(OpenRollout(AtOnce(), Nothing(), Settings("m"), seed=1, key=0))


async def measure(rollouts: int, turns: int, most: int) -> dict[str, float]:
    gateway = Gateway()
    gateway.start()
    alone = await talk(opened(gateway), gateway.port, turns, clock=time.process_time)
    addresses = [opened(gateway) for _ in range(rollouts)]
    found = await asyncio.gather(*(talk(one, gateway.port, turns, pause=True) for one in addresses))
    before = psutil.Process().memory_info().rss
    for at in range(0, most, 50):
        some = [opened(gateway) for _ in range(min(50, most - at))]
        await asyncio.gather(*(talk(one, gateway.port, 10) for one in some))
    held = psutil.Process().memory_info().rss - before
    gateway.close()
    answers = sorted(value for one, _ in found for value in one)
    bare = sorted(value for _, one in found for value in one)
    return {
        "answer_cpu_ms": statistics.mean(alone[0]),
        "http_cpu_ms": statistics.mean(alone[1]),
        "answer_p50_ms": statistics.median(answers),
        "answer_p99_ms": answers[int(len(answers) * 0.99)],
        "http_p50_ms": statistics.median(bare),
        "http_p99_ms": bare[int(len(bare) * 0.99)],
        "open_mib": held / 2**20,
        "answers": len(answers),
    }


def multiply(stop: threading.Event) -> None:
    import torch

    torch.set_num_threads(1)
    left = torch.randn(512, 512)
    while not stop.is_set():
        left @ left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--open", type=int, default=1000)
    parser.add_argument("--busy", action="store_true")
    chosen, stop = parser.parse_args(), threading.Event()
    if chosen.busy:
        threading.Thread(target=multiply, args=(stop,), daemon=True).start()
    found = asyncio.run(measure(chosen.rollouts, chosen.turns, chosen.open))
    stop.set()
    found = {name: round(value, 2) for name, value in found.items()}
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "rollout_addresses.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
