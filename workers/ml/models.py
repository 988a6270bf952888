"""Loads a policy: a base model's folder and, optionally, a LoRA adapter. Safetensors only. Heavy:
imports torch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from workers.lib.errors import JobError, SpecError
from workers.lib.lora_files import WEIGHTS, check_base_is_plain, check_files
from workers.lib.prompting import written_for
from workers.lib.specs.engines import Model
from workers.lib.specs.training import Lora
from workers.ml import four_bit

DTYPES = ("float32", "bfloat16", "float16")


def device() -> str:
    """The device of a job: the GPU if there is one (a job has one; CUDA_VISIBLE_DEVICES selects
    it).
    """
    return "cuda" if torch.cuda.is_available() else "cpu"


def training_dtype(dtype: str) -> str:
    """The dtype for training a model that the engine loads in `dtype`. The adapter itself is always
    float32.

    float16 is only for generation: gradients underflow its range unless the loss is scaled, so
    training uses float32.
    """
    return "float32" if dtype == "float16" else dtype


def load_base(
    folder: str | Path, dtype: str = "float32", *, scalar_head: bool = False, in_4bit: bool = False
) -> tuple[Any, Any]:
    """(model, tokenizer); with `scalar_head` a reward model with a new head; with `in_4bit` its
    linear layers are quantized (QLoRA). Raises JobError for a folder that is missing or not
    safetensors, SpecError for a dtype that is not in DTYPES.
    """
    if dtype not in DTYPES:
        raise SpecError(f"engine.dtype must be one of {', '.join(DTYPES)}, not {dtype!r}.")
    folder = Path(folder)
    if not folder.is_dir():
        raise JobError(f"The model folder {folder} is missing.")
    if not any(folder.glob("*.safetensors")):
        raise JobError(
            f"The model folder {folder} holds no safetensors; other weight files are not loaded."
        )
    check_base_is_plain(folder)
    more: dict[str, Any] = {"num_labels": 1} if scalar_head else {}
    if in_4bit:
        more |= four_bit.quantization(dtype, device())
    try:
        kind = AutoModelForSequenceClassification if scalar_head else AutoModelForCausalLM
        model = kind.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, local_files_only=True, **more
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise JobError(f"The model folder {folder} cannot be loaded: {error}") from error
    if in_4bit:
        four_bit.keep_weights_as_loaded(model)
    return model, tokenizer


def load_policy(
    base: str | Path, adapter: str | Path | None, dtype: str = "float32"
) -> tuple[Any, Any]:
    """(model, tokenizer) for generation, with the adapter merged into the weights if that is exact.
    Raises JobError.
    """
    model, tokenizer = load_base(base, dtype)
    if adapter:
        model = add_adapter(model, adapter, trainable=False)
        if merges_exactly(model):
            model = model.merge_and_unload()
    return model.eval(), tokenizer


def merges_exactly(model: Any) -> bool:
    """Whether merging an adapter is exact up to float32 rounding. 16-bit weights would round away
    most of an adapter, and tied weights (embedding and output) would change in both places.
    """
    if not isinstance(model, PeftModel):
        return False
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    tied = model.get_base_model().get_input_embeddings().weight
    weights = [layer.get_base_layer().weight for layer in layers]
    return bool(weights) and all(
        weight.dtype == torch.float32 and weight is not tied for weight in weights
    )


def load_side_by_side(
    models: Sequence[Model], dtype: str, *, merged: bool
) -> list[tuple[Any, Any]]:
    """(model, tokenizer) for each version, ready to generate on the device. Raises JobError.

    Without `merged`, adapters are loaded next to one base whose weights all versions share; with
    it, each has its own weights. A version without an adapter is the bare base.
    """
    bases: dict[str, tuple[Any, Any]] = {}
    found = []
    for model in models:
        if model.base not in bases:
            base, tokenizer = load_base(model.base, dtype)
            bases[model.base] = base.to(device()), tokenizer
        base, tokenizer = bases[model.base]
        shared = (
            {}
            if merged and model.adapter
            else {id(one): one for one in [*base.parameters(), *base.buffers()]}
        )
        own = copy.deepcopy(base, shared)  # what is in the memo is shared, not copied
        if model.adapter:
            own = add_adapter(own, model.adapter, trainable=False)
            own = own.merge_and_unload() if merged else own
        found.append((own.to(device()).eval(), tokenizer))
    return found


def add_adapter(
    model: Any,
    adapter: str | Path,
    *,
    trainable: bool,
    head: str = "",
    dropout: float | None = None,
) -> Any:
    """`head`: the layer of a reward model that is saved with its adapter. `dropout`: replaces what
    the adapter was trained with. Raises JobError for an
    adapter that holds anything but LoRA, for one of another base, which PEFT would load partially,
    and for one with NaN.
    """
    file = Path(adapter) / WEIGHTS
    given = {name for name in check_files(adapter, head)[1] if _of_lora(name)}
    other = f"The adapter {adapter} was trained on another base model"
    try:
        config = LoraConfig.from_pretrained(str(adapter), local_files_only=True)
        config.inference_mode = not trainable
        config.lora_dropout = config.lora_dropout if dropout is None else dropout
        adapted = PeftModel.from_pretrained(
            model, str(adapter), is_trainable=trainable, config=config, local_files_only=True
        )
    except SafetensorError as error:
        raise JobError(f"The file {file} is damaged: {error}") from error
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise JobError(f"{other}: its layers have other sizes.") from error
    except ValueError as error:  # PEFT's error if no layer has one of these names
        raise JobError(f"{other}: {error}") from error
    taken = {
        name.replace(".default.", "."): weight
        for name, weight in adapted.named_parameters()
        if _of_lora(name)
    }
    if strange := sorted(given ^ taken.keys()):
        raise JobError(
            f"{other}: {len(strange)} of its weights do not match a layer here, such as"
            f" {strange[0]}."
        )
    if broken := [name for name, weight in taken.items() if not bool(weight.isfinite().all())]:
        raise JobError(
            f"The adapter {adapter} has weights that are NaN or infinite, such as {broken[0]}."
        )
    return adapted


def load_weights(adapter: str | Path) -> dict[str, torch.Tensor]:
    """The adapter's own tensors. Raises JobError if there are others."""
    check_files(adapter)
    return load_peft_weights(str(adapter), device=device())


def _of_lora(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def lora(model: Any, config: Lora, adapter: str | Path | None) -> Any:
    """The model with a trainable LoRA adapter: the given one, which keeps its own shape but is
    trained with this dropout, or a new one.
    """
    if adapter:
        return add_adapter(model, adapter, trainable=True, dropout=config.lora_dropout)
    return get_peft_model(model, lora_config(config))


def lora_config(config: Lora) -> LoraConfig:
    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules=config.target_modules,
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
        task_type="CAUSAL_LM",
    )


@contextmanager
def using(model: Any, adapter: str | None) -> Iterator[None]:
    """Compute with another adapter than the policy's, or with the bare base. PEFT would from then
    on train only the adapter that is active.
    """
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        if adapter is None:
            with model.disable_adapter():
                yield
        else:
            model.set_adapter(adapter)
            for parameter, is_trained in trained:
                parameter.requires_grad_(is_trained)
            yield
    finally:
        if adapter is not None:
            model.set_adapter("default")
        for parameter, is_trained in trained:
            parameter.requires_grad_(is_trained)


def chat_with_tools(
    tokenizer: Any, messages: list[dict], tools: list[dict]
) -> tuple[list[dict], list[dict] | None]:
    """(messages, tools) for the tokenizer's chat template: native tools if it supports them,
    otherwise everything as text in the messages.

    Generation and training both use this function, so that a model is trained on the prompts that
    it will see.
    """
    return written_for(tokenizer.get_chat_template(tools=tools or None), messages, tools)


def set_threads(threads: int) -> None:
    if threads:
        torch.set_num_threads(threads)


def stop_token_ids(tokenizer: Any, model: Any = None) -> list[int]:
    """Tokens that end an answer: the tokenizer's EOS, those in the model's generation config and,
    for ChatML, the end of a turn.
    """
    until = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = {
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids("<|im_end|>"),
        *(until if isinstance(until, list) else [until]),
    }
    return sorted(token for token in ends if token is not None and token != tokenizer.unk_token_id)
