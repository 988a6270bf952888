"""A server with LoRA slots by vLLM's contract (as `tests.workers.tiny_vllm`, without a model) or by
SGLang's, good or hostile.

The log-probabilities of a text are a function of its ids, and an adapter moves them by one of its
files: so the right weights have the right ones, and two adapters different ones.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.promotion.models import Fingerprint
from apps.registry.artifacts import local_path
from apps.registry.models import ModelVersion
from tests.registry.model_server import ModelServer, serving

IDS = list(range(3, 43))


def base_logprobs(ids: list[int]) -> list[float]:
    return [-1.0 - 0.01 * (token % 7) for token in ids[1:]]


def adapter_logprobs(ids: list[int], folder: str | Path) -> list[float]:
    seed = int(
        hashlib.sha256((Path(folder) / "adapter_model.safetensors").read_bytes()).hexdigest()[:8],
        16,
    )
    return [base + 0.2 * math.sin(seed + at) for at, base in enumerate(base_logprobs(ids))]


def fingerprint(version: ModelVersion) -> Fingerprint:
    """As it would be computed from the weights."""
    model = version.model
    moved = (
        adapter_logprobs(IDS, local_path(model.artifact)) if model.artifact else base_logprobs(IDS)
    )
    base = base_logprobs(IDS) if model.artifact else []
    return Fingerprint.objects.create(
        version=model, ids=IDS, logprobs=moved, base_logprobs=base, source="computed"
    )


class Peer:
    """`serves`: what each adapter name computes with, which `swap` may make another one's folder.
    `spoil`: (path, body, answer) → what is sent instead. `slots`: refuses more. `dead`: closes
    every connection."""

    kind = "vllm"

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.swap: dict[str, str] = {}
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.slots = 100
        self.offset = 0.0
        self.with_logprobs = True
        self.dead = False
        self.before_load: Any = lambda name: None
        self.spoil: Any = lambda path, body, sent: sent
        self.lock = threading.Lock()

    def script(self) -> dict:
        paths = {
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.complete,
        }
        return {("POST", path): self._spoiled(path, answer) for path, answer in paths.items()}

    def _spoiled(self, path: str, answer: Any) -> Any:
        def sent(body: dict) -> Any:
            if self.dead:
                raise OSError("dead")
            return self.spoil(path, body, answer(body))

        return sent

    def models(self) -> tuple[int, dict]:
        rows = [{"id": "base", "object": "model", "parent": None, "max_model_len": 2048}]
        rows += [
            {"id": name, "object": "model", "parent": "base", "root": path}
            for name, path in self.adapters.items()
        ]
        return 200, {"object": "list", "data": rows}

    def load(self, body: dict) -> tuple[int, Any]:
        if "lora_name" not in body:  # a probe that looks whether the route is there
            return 422, {"detail": "lora_name is missing"}
        name = body["lora_name"]
        self.before_load(name)
        if name in self.adapters:
            return 400, {
                "error": {
                    "message": f"The lora adapter '{name}' has already been loaded.",
                    "code": 400,
                }
            }
        if not (Path(body["lora_path"]) / "adapter_model.safetensors").exists():
            return 404, {"error": {"message": "No adapter found", "code": 404}}
        if len(self.adapters) >= self.slots:
            return 400, {"error": {"message": "No free LoRA slot", "code": 400}}
        with self.lock:
            self.adapters[name] = body["lora_path"]
            self.loads.append(name)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: dict) -> tuple[int, Any]:
        name = body["lora_name"]
        self.unloads.append(name)
        if self.adapters.pop(name, None) is None:
            return 404, {"error": {"message": "cannot be found", "code": 404}}
        return 200, "Success"

    def knows(self, model: str) -> bool:
        return model in {"base", *self.adapters}

    def logprobs(self, model: str, ids: list[int]) -> list[float]:
        path = self.swap.get(model, self.adapters.get(model, ""))
        found = adapter_logprobs(ids, path) if path else base_logprobs(ids)
        return [value + self.offset for value in found]

    def chat(self, body: dict) -> tuple[int, Any]:
        if not self.knows(body["model"]):
            return 404, {
                "error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}
            }
        message = {"role": "assistant", "content": "ready"}
        return 200, {
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }

    def complete(self, body: dict) -> tuple[int, Any]:
        if not self.knows(body["model"]):
            return 404, {"error": {"message": "does not exist", "code": 404}}
        ids = IDS if isinstance(body["prompt"], str) else body["prompt"]
        choice: dict[str, Any] = {
            "index": 0,
            "text": "a",
            "finish_reason": "length",
            "token_ids": [7],
            "prompt_token_ids": ids,
            "logprobs": {"token_logprobs": [-0.1], "tokens": ["a"]},
            "prompt_logprobs": None,
        }
        if body.get("prompt_logprobs") is not None and self.with_logprobs:
            values = self.logprobs(body["model"], ids)
            choice["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": value, "rank": 1}}
                for token, value in zip(ids[1:], values, strict=True)
            ]
        return 200, {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": body["model"],
            "choices": [choice],
        }


class SglangPeer(Peer):
    """As SGLang 0.5: adapters are asked as `base:name`, a bare or unknown name gets the base model,
    and log-probabilities of a prompt come from /generate (`GenerateReqInput`,
    `LoadLoRAAdapterReqInput`)."""

    kind = "sglang"

    def script(self) -> dict:
        paths = {
            "/load_lora_adapter": self.load,
            "/unload_lora_adapter": self.unload,
            "/v1/chat/completions": self.chat,
            "/generate": self.generate,
        }
        return {("POST", path): self._spoiled(path, answer) for path, answer in paths.items()}

    def load(self, body: dict) -> tuple[int, Any]:
        assert body.keys() <= {
            "lora_name",
            "lora_path",
            "pinned",
            "lora_id",
        }, "LoadLoRAAdapterReqInput has no other field"
        status, said = super().load(body)
        return status, {
            "success": status == 200,
            "error_message": None if status == 200 else str(said),
        }

    def knows(self, model: str) -> bool:
        _, _, adapter = model.partition(":")
        return not adapter or adapter in self.adapters

    def generate(self, body: dict) -> tuple[int, Any]:
        assert "model" not in body and body["sampling_params"]["max_new_tokens"] == 1
        ids = IDS if "text" in body else body["input_ids"]
        if (name := body.get("lora_path")) and name not in self.adapters:
            return 400, {"error": {"message": f"LoRA adapter {name} is not loaded"}}
        rows = [[None, ids[0], None]]
        rows += [
            [value, token, None]
            for value, token in zip(self.logprobs(name or "base", ids), ids[1:], strict=True)
        ]
        return 200, {
            "text": "a",
            "output_ids": [7],
            "meta_info": {
                "id": "1",
                "prompt_tokens": len(ids),
                "input_token_logprobs": rows,
                "output_token_logprobs": [[-0.1, 7, None]],
            },
        }


class Live(dict):
    """A script whose list of models is as it is now."""

    def __init__(self, peer: Peer, script: dict) -> None:
        super().__init__(script)
        self.peer = peer

    def get(self, key: Any, default: Any = None) -> Any:
        if key != ("GET", "/v1/models"):
            return super().get(key, default)
        if self.peer.dead:
            raise OSError("dead")
        return self.peer.spoil("/v1/models", {}, self.peer.models())


@contextmanager
def peer_serving(peer: Peer) -> Iterator[tuple[Peer, ModelServer]]:
    with serving(peer.script()) as server:
        server.script = Live(peer, server.script)
        yield peer, server


def wait_until(condition: Any, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)
