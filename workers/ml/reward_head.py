"""A reward model: a base, a LoRA adapter, and a head that maps a conversation to one number. Heavy:
imports torch.

The number is read at the last token of the whole conversation, rendered with the model's own chat
template. Training and scoring both tokenize conversations here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, json
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

from workers.lib.calibration import Calibration
from workers.lib.errors import JobError
from workers.lib.prompting import as_text
from workers.lib.specs.training import Lora
from workers.ml.models import add_adapter, device, load_base, load_weights, lora_config

FACTS = (  # stored next to the adapter's weights, so that the artifact's digest covers both
    "reward_model.json"
)
HEAD = "score"
TOKENS_AT_ONCE = 8192  # per batch, including padding


class Facts(Struct, kw_only=True):
    """What a reward model's adapter does not contain itself."""

    max_length: int
    show_tools: bool
    calibration: Calibration


def lora_with_head(model: Any, config: Lora, *, start: str | None, resume: str | None) -> Any:
    """The model with a trainable adapter and head: those of a checkpoint, or a new head and either
    the adapter of the initial policy or a new one.
    """
    if resume:
        return add_adapter(model, resume, trainable=True, head=HEAD)
    weights = load_weights(start) if start else {}
    made = LoraConfig.from_pretrained(start) if start else lora_config(config)
    made.lora_dropout = config.lora_dropout
    made.task_type, made.modules_to_save, made.inference_mode = "SEQ_CLS", [HEAD], False
    model = get_peft_model(model, made)
    if start:
        head = getattr(model.get_base_model(), HEAD).modules_to_save[
            "default"
        ]  # the policy has no head
        set_peft_model_state_dict(model, weights | {f"base_model.model.{HEAD}.weight": head.weight})
    return model


def conversation_ids(tokenizer: Any, messages: list[dict], tools: list[dict]) -> list[int]:
    """Calls and tools are always written as text, whatever the template supports: the answers that
    it learns from are written like that.
    """
    chat = as_text(messages, tools, tokenizer.get_chat_template())
    return tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]


def prepare(model: Any, tokenizer: Any) -> None:
    """Set the padding token, which the model uses to find the last token of a padded row."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


@torch.no_grad()  # after inference mode, sharded layers could not be trained further
def scores(model: Any, tokenizer: Any, rows: Sequence[list[int]]) -> list[float]:
    """The score of each conversation, given as tokens, in order. Rows of similar length are
    computed together.
    """
    was, found = model.training, [0.0] * len(rows)
    model.eval()
    for batch in batches([len(row) for row in rows]):
        width = max(len(rows[at]) for at in batch)
        ids = torch.full((len(batch), width), tokenizer.pad_token_id)
        real = torch.zeros_like(ids)
        for place, at in enumerate(batch):
            ids[place, : len(rows[at])] = torch.tensor(rows[at])
            real[place, : len(rows[at])] = 1
        logits = model(input_ids=ids.to(device()), attention_mask=real.to(device())).logits.squeeze(
            -1
        )
        for at, score in zip(batch, logits.float().tolist(), strict=True):
            found[at] = score
    model.train(was)
    return found


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of rows that are computed together, shortest first."""
    found: list[list[int]] = []
    for at in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        if found and (len(found[-1]) + 1) * lengths[at] <= TOKENS_AT_ONCE:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def write_facts(folder: Path, facts: Facts) -> None:
    (folder / FACTS).write_bytes(json.format(json.encode(facts), indent=2))


def load_scorer(base: str, adapter: str, dtype: str = "float32") -> tuple[Any, Any, Facts]:
    """(model, tokenizer, facts) of a trained reward model, ready to score. Raises JobError."""
    try:
        facts = json.decode((Path(adapter) / FACTS).read_bytes(), type=Facts)
    except (OSError, ValueError) as error:
        raise JobError(
            f"The reward model's folder {adapter} holds no usable {FACTS}: {error}"
        ) from error
    model, tokenizer = load_base(base, dtype, scalar_head=True)
    model = add_adapter(model, adapter, trainable=False, head=HEAD).to(device()).eval()
    prepare(model, tokenizer)
    return model, tokenizer, facts
