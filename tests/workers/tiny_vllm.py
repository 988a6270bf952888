"""What a vLLM server with LoRA slots answers, in the shape of 0.32, computed by a tiny model in
this process.

Its answers hold the fields that `RECORDED` of test_server_rollouts.py has, which the real one sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from tests.registry.model_server import ModelServer, serving
from workers.lib.engines import Sampling
from workers.lib.specs.training import Lora
from workers.lib.token_rows import TokenRow
from workers.ml.models import load_base, lora
from workers.ml.transformers_engine import TransformersEngine
from workers.ml.tree import logprobs_of


class TinyVllm:
    """`loads` are the names of all adapters that were ever loaded, `most` how many were there at a
    time. `stale`: adapters that are asked for after the first one are not used. `spoil` changes
    each answer to /completions, and may raise or wait.
    """

    def __init__(self, folder: Path) -> None:
        base, tokenizer = load_base(str(folder), "float32")
        self.model = lora(base, Lora(lora_rank=4, lora_alpha=8), None).eval()
        self.engine = TransformersEngine(self.model, tokenizer)
        self.adapters: dict[str, str] = {}
        self.loads: list[str] = []
        self.most = 0
        self.stale = self.raw = self.used = False
        self.lock = threading.Lock()
        self.spoil: Any = lambda body, answer: (200, answer)

    def script(self) -> dict:
        return {
            ("POST", "/v1/load_lora_adapter"): self.load,
            ("POST", "/v1/unload_lora_adapter"): self.unload,
            ("POST", "/v1/completions"): self.complete,
        }

    def models(self) -> tuple[int, dict]:
        rows = [{"id": "base", "object": "model", "parent": None, "max_model_len": 2048}]
        rows += [
            {"id": name, "object": "model", "parent": "base", "root": path}
            for name, path in self.adapters.items()
        ]
        return 200, {"object": "list", "data": rows}

    def load(self, body: dict) -> tuple[int, Any]:
        name, path = body["lora_name"], body["lora_path"]
        if not (Path(path) / "adapter_model.safetensors").exists():
            return 404, {
                "error": {
                    "message": f"Loading lora {name} failed: No adapter found for {path}",
                    "code": 404,
                }
            }
        if name in self.adapters:
            return 400, {
                "error": {
                    "message": f"The lora adapter '{name}' has already been loaded.",
                    "code": 400,
                }
            }
        self.adapters[name] = path
        self.loads.append(name)
        self.most = max(self.most, len(self.adapters))
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: dict) -> tuple[int, Any]:
        if self.adapters.pop(body["lora_name"], None) is None:
            return 404, {"error": {"message": "cannot be found", "code": 404}}
        return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    def complete(self, body: dict) -> tuple[int, Any]:
        with self.lock:
            if body["model"] not in {"base", *self.adapters}:
                return 404, {
                    "error": {
                        "message": f"The model `{body['model']}` does not exist.",
                        "code": 404,
                    }
                }
            answer = self._answer(body)
        return self.spoil(body, answer)

    def _answer(self, body: dict) -> dict:
        if body["model"] == "base":
            with self.model.disable_adapter():
                return self._written(body)
        path = self.adapters[body["model"]]
        if not self.stale or not self.used:
            self.used = True
            set_peft_model_state_dict(
                self.model, load_file(Path(path) / "adapter_model.safetensors")
            )
        return self._written(body)

    def _written(self, body: dict) -> dict:
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self.engine.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        sampling = Sampling(body["temperature"], body["top_p"], body["max_tokens"])
        output = self.engine._batch([prompt], [[body["seed"]]], sampling)[0][0]
        values = self.plain(prompt, output.token_ids) if self.raw else output.logprobs
        known = self.engine.tokenizer.convert_ids_to_tokens(output.token_ids)
        choice = {
            "index": 0,
            "text": output.text,
            "finish_reason": "length" if output.truncated else "stop",
            "stop_reason": None,
            "logprobs": {
                "text_offset": [0] * len(known),
                "token_logprobs": values,
                "tokens": known,
                "top_logprobs": [],
            },
            "token_ids": output.token_ids,
            "prompt_token_ids": prompt,
            "prompt_logprobs": None,
        }
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": value, "rank": 1, "decoded_token": "x"}}
                for token, value in zip(prompt[1:], self.plain(prompt[:1], prompt[1:]), strict=True)
            ]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(output.token_ids)}
        usage["total_tokens"] = sum(usage.values())
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }

    def plain(self, given: list[int], written: list[int]) -> list[float]:
        row = TokenRow()
        row.given(given)
        row.sampled(written, [0.0] * len(written))
        return logprobs_of(self.model, [row])[0].tolist()


class TinySglang(TinyVllm):
    """The same by SGLang's contract (0.5.23: `GenerateReqInput`, `meta_info` of
    `TokenizerManager`): its routes are at the root, and `lora_path` names the adapter.
    """

    def script(self) -> dict:
        return {
            ("POST", "/load_lora_adapter"): self.load,
            ("POST", "/unload_lora_adapter"): self.unload,
            ("POST", "/generate"): self.generate,
        }

    def generate(self, body: dict) -> tuple[int, Any]:
        sampling, ids = body["sampling_params"], body["input_ids"]
        if (name := body.get("lora_path")) and name not in self.adapters:
            return 400, {"error": {"message": f"Got LoRA adapter that has not been loaded: {name}"}}
        scored = body["logprob_start_len"] == 0
        asked = {
            "model": name or "base",
            "prompt": ids,
            "max_tokens": sampling["max_new_tokens"],
            "seed": sampling["sampling_seed"],
            "temperature": sampling["temperature"],
            "top_p": sampling["top_p"],
            "prompt_logprobs": 0 if scored else None,
        }
        with self.lock:
            completion = self._answer(asked)
        choice = completion["choices"][0]
        rows = zip(choice["logprobs"]["token_logprobs"], choice["token_ids"], strict=True)
        given = [[None, ids[0], None]] if scored else [[None, ids[-1], None]]
        if scored:
            given += [
                [row[str(token)]["logprob"], token, None]
                for row, token in zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)
            ]
        answer = {
            "text": choice["text"],
            "output_ids": choice["token_ids"],
            "meta_info": {
                "id": "1",
                "finish_reason": {"type": choice["finish_reason"]},
                "prompt_tokens": len(ids),
                "completion_tokens": len(choice["token_ids"]),
                "weight_version": "default",
                "input_token_logprobs": given,
                "output_token_logprobs": [[value, token, None] for value, token in rows],
            },
        }
        return self.spoil(body, answer)


@contextmanager
def tiny_vllm(
    folder: Path, kind: type[TinyVllm] = TinyVllm
) -> Iterator[tuple[TinyVllm, ModelServer]]:
    peer = kind(folder)
    with serving(peer.script()) as server:
        server.script = Live(peer, server.script)
        yield peer, server


class Live(dict):
    """A script whose list of models is as it is now."""

    def __init__(self, peer: TinyVllm, script: dict) -> None:
        super().__init__(script)
        self.peer = peer

    def get(self, key: Any, default: Any = None) -> Any:
        return self.peer.models() if key == ("GET", "/v1/models") else super().get(key, default)
