"""A tiny Llama with a tokenizer of bytes, and a place where events go: enough to run every worker
in a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs

from tests.forms import form_of
from tests.workers.at_hand import models_at_hand
from workers.lib import environments
from workers.lib.events import Emitter
from workers.lib.specs.job import checked
from workers.lib.specs.methods import CONFIGS

TALK = {
    "steps": 2,
    "prompts_per_step": 2,
    "generations": 4,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "lora_alpha": 8,
    "max_new_tokens": 6,
    "save_every": 1,
    "kl_every": 0,
}
FORGETS = (  # of an earlier answer, all but its first letter
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.role != 'assistant' or"
    " loop.last else m.content[:1] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt"
    " %}<|im_start|>assistant\n{% endif %}"
)


class Recorder(Emitter):
    """An emitter that writes to a file; `rows()` reads back what a runner would have read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb", buffering=0)
        super().__init__(self.file.fileno())

    def rows(self, type: str | None = None) -> list[dict]:
        rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [row for row in rows if type in (None, row["type"])]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "events.jsonl")
    yield recorder
    recorder.file.close()


@pytest.fixture(scope="session", autouse=True)
def at_hand() -> Iterator[None]:
    with models_at_hand() if "workers.ml.models" in sys.modules else nullcontext():
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


def make_tiny_model(folder: Path, **changes: int) -> Path:
    """The folder of a Llama of 2 layers with random weights (seeded) and a ChatML template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from workers.prepare_demo_model import CHATML

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    bytes_only = Tokenizer(
        models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[])
    )
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = {
        "vocab_size": len(names),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.3,  # embeddings large enough that an adapter can move the logits
    }
    LlamaForCausalLM(LlamaConfig(**config | changes)).save_pretrained(folder)
    return folder


@pytest.fixture
def make_spec(tiny_model: Path, tmp_path: Path) -> Callable[..., dict]:
    """The parts that specs of all kinds share, over the tiny model; keyword arguments add or
    replace.
    """

    def make(**fields: object) -> dict:
        return {
            "job_id": "job",
            "attempt": 1,
            "seed": 0,
            "out_dir": str(tmp_path / "out"),
            "resume_from": None,
            "model": {"base": str(tiny_model), "adapter": None},
            "engine": {"kind": "transformers", "dtype": "float32", "threads": 1, "batch_size": 8},
            "environment": {
                "kind": "builtin",
                "name": "workplace",
                "harness": {
                    "system_prompt": "One JSON call.",
                    "max_new_tokens": 6,
                    "temperature": 1.0,
                },
                "verifier": {"kind": "tool_call"},
            },
            "tasks": tasks(),
        } | fields

    return make


def of_kind(spec: dict, kind: str) -> dict:
    """The spec without what `make_spec` has for other kinds."""
    found = _known(spec, form_of(kind))
    return found | ({"config": _known(found["config"], CONFIGS[kind])} if "config" in found else {})


def _known(given: dict, form: type[Struct]) -> dict:
    names = {field.encode_name for field in structs.fields(form)}
    return {name: value for name, value in given.items() if name in names}


def typed(spec: dict, kind: str) -> Any:
    """The spec as the program of that kind reads it."""
    return checked(of_kind(spec, kind), form_of(kind))


def tasks() -> list[dict]:
    return [
        {
            "id": f"task-{number}",
            "messages": [{"role": "user", "content": f"Close ticket {number}."}],
            "expected": {"tool": "tickets.close", "args": {"id": number}},
        }
        for number in (1234, 2345, 3456)
    ]


@pytest.fixture
def talk(make_spec: Callable[..., dict], monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """GRPO's spec in an environment of two turns."""
    monkeypatch.setitem(environments.BUILTIN, "two_turns", "tests.workers.two_turns:TwoTurns")

    def make(config: dict | None = None, environment: dict | None = None, **fields: Any) -> dict:
        tasks = [
            {
                "id": f"talk-{n}",
                "messages": [{"role": "user", "content": f"Letters {n}."}],
                "expected": {},
            }
            for n in range(2)
        ]
        spec = make_spec(tasks=tasks, config=TALK | (config or {}), **fields)
        spec["engine"] = spec["engine"] | {"batch_size": 64}
        spec["environment"] = {
            "kind": "builtin",
            "name": "two_turns",
            "harness": {"max_new_tokens": 6},
            "verifier": {},
            "config": environment or {},
        }
        return spec

    return make


@pytest.fixture(scope="module")
def forgetful_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoTokenizer

    folder = make_tiny_model(tmp_path_factory.mktemp("forgetful"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = FORGETS
    tokenizer.save_pretrained(folder)
    return folder
