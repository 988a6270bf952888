"""A scripted server of vLLM's protocol that loads adapters: what it says depends on the weights
that the asked name has.

As in vLLM, a request belongs to the adapter that its name had when it came
(`OpenAIServingModels.unload_lora_adapter` only takes the name off the list), and an unknown name is
a 404. `held` answers have said half of their words, and wait for `release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apps.registry.artifacts import local_path
from apps.registry.models import ModelVersion
from tests.promotion.serving_peer import Peer
from tests.serving.scripted import HEAD, Scripted, scripted

WORDS = 6


def word_of(version: ModelVersion) -> str:
    return _word(str(local_path(version.artifact))) if version.artifact else "base"


def _word(folder: str) -> str:
    return hashlib.sha256((Path(folder) / "adapter_model.safetensors").read_bytes()).hexdigest()[:8]


class LoraServer(Scripted):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.peer = Peer()
        self.held: list[str] = []
        self.broken: list[str] = []  # names that were unloaded while an answer of theirs was open
        self.gate = asyncio.Event()
        unload = self.peer.unload

        def noting(body: dict) -> tuple[int, Any]:
            if body["lora_name"] in self.held:
                self.broken.append(body["lora_name"])
            return unload(body)

        self.peer.unload = noting  # type: ignore[method-assign]

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.gate.set)

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            answer: Any = self.peer.models()
        elif (
            path == "/v1/chat/completions" and body.get("stream") and self.peer.knows(body["model"])
        ):
            await self._say(body["model"], writer)
            return
        else:
            answer = await asyncio.to_thread(self.peer.script()["POST", path], body)
        status, said = answer
        await self._whole(writer, json.dumps(said), status)

    async def _say(self, model: str, writer: asyncio.StreamWriter) -> None:
        word = _word(self.peer.adapters[model]) if model in self.peer.adapters else "base"
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
        writer.write(
            HEAD % (200, b"OK", b"text/event-stream") + b"transfer-encoding: chunked\r\n\r\n"
        )
        for number in range(WORDS):
            if number == WORDS // 2:
                self.held.append(model)
                await self.gate.wait()
                self.held.remove(model)
            _event(
                writer,
                base
                | {
                    "choices": [
                        {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
                    ]
                },
            )
            await writer.drain()
        _event(writer, base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def _event(writer: asyncio.StreamWriter, data: dict) -> None:
    event = b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


@contextlib.contextmanager
def lora_server(name: str) -> Iterator[LoraServer]:
    with scripted(name, LoraServer) as server:
        yield server
