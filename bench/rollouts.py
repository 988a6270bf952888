"""Concurrent multi-turn episodes against a scripted OpenAI-compatible server in a process of its
own.

`python -m bench.rollouts [--episodes 1000] [--concurrency 200] [--think-ms 0]`. The server gives
each request the next right message of the Workplace Assistant's own tasks, so that every episode
must score 1: one that does not was lost or mixed up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import gold_calls, load
from workers.lib.environments.workplace_assistant import own_tasks
from workers.lib.rollouts import Finished, Limits, stream
from workers.lib.specs.engines import Server

OUT = Path("var/bench/rollouts.json")
SPEC = {"kind": "builtin", "name": "workplace_assistant", "harness": {}, "verifier": {}}


# The server


def script() -> dict[str, list[bytes]]:
    """request → the bodies of the answers, turn by turn."""
    return {
        task["messages"][1]["content"]: [body(message) for message in messages_of(task)]
        for task in own_tasks()
    }


def messages_of(task: dict) -> list[dict]:
    calls = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": call["tool"], "arguments": json.dumps(call["args"])},
                }
            ],
        }
        for call in gold_calls(task)
    ]
    return [*calls, {"role": "assistant", "content": "Done."}]


def body(message: dict) -> bytes:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    data = json.dumps(
        {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    ).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def serve(pipe: Connection, think_s: float) -> None:
    """Until it is terminated. Sends the port that it listens on."""
    answers = script()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                messages = json.loads(await reader.readexactly(length))["messages"]
                await asyncio.sleep(think_s)
                turn = sum(message["role"] == "assistant" for message in messages)
                writer.write(answers[messages[1]["content"]][turn])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


# The load


async def load_of(url: str, episodes: int, concurrency: int) -> tuple[list[Finished], float]:
    tasks = [own_tasks()[number % len(own_tasks())] for number in range(episodes)]
    engine = Server(base_url=url, model="script", concurrency=concurrency, allow_private=True)
    began = time.perf_counter()
    async with ChatPolicy(engine, Sampling()) as policy:
        found = stream(policy, load(SPEC), tasks, Limits(), concurrency=concurrency)
        done = [episode async for _, _, episode in found]
    return done, time.perf_counter() - began


def summary(done: list[Finished], seconds: float, arguments: argparse.Namespace) -> dict[str, Any]:
    turns = sum(len(episode.replies) for episode in done)
    each = [episode.seconds for episode in done]
    return {
        "episodes": arguments.episodes,
        "concurrency": arguments.concurrency,
        "think_ms": arguments.think_ms,
        "finished": len(done),
        "lost": arguments.episodes - sum(episode.score.success for episode in done),
        "masked": dict(
            Counter(episode.score.mask_reason for episode in done if episode.score.masked)
        ),
        "turns": turns,
        "seconds": round(seconds, 2),
        "episodes_per_s": round(len(done) / seconds, 1),
        "turns_per_s": round(turns / seconds, 1),
        "episode_p50_ms": round(statistics.median(each) * 1000, 1),
        "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--think-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, arguments.think_ms / 1000)
    )
    server.start()
    try:
        url = f"http://127.0.0.1:{mine.recv()}/v1"
        found = summary(
            *asyncio.run(load_of(url, arguments.episodes, arguments.concurrency)), arguments
        )
    finally:
        server.terminate()
        server.join()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    if found["lost"]:
        raise SystemExit(f"{found['lost']} episodes were lost.")


if __name__ == "__main__":
    main()
