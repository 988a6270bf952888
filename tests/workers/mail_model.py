"""A tiny model that throws away the mail that it is asked to, mostly: fine-tuned for seconds on
the format of such calls, so that what it samples at temperature 1 runs tools. What is the same in
all prompts, and the id of each mail, are single tokens: a model of two layers soon learns to copy
one of few.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.workers.conftest import make_tiny_model
from tests.workers.test_harness_tools import DELETE, task
from workers.lib.messages import to_native
from workers.lib.token_rows import TokenRow
from workers.ml.chat_writer import ChatWriter

# Heads of 32, which vLLM computes on CPUs.
SIZE = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.05}
STEPS, ROWS, RATE = 200, 8, 3e-3
DONE = '{"output":"Email deleted successfully."}'
# Tokens besides the bytes: what prompts and answers share.
SHARED = ["To call a tool, answer with", " and nothing else. The tools:", "assistant\n", "system\n"]
SHARED += ["user\n", "Result: ", "Throw away the mail with the id ", DONE, '{"tool": "', '"}}']
SHARED += [f'{DELETE}", "args": {{"email_id": "']


def make_mail_model(folder: Path, numbers: range, shown: list[list[dict]]) -> Path:
    """One for the tasks of these numbers, with the tools as each client shows them."""
    make_tiny_model(folder, **SIZE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [json.dumps(tool["function"]) for tools in shown for tool in tools]
    tokenizer.add_tokens([*texts, *SHARED, *(f"{number:08}" for number in numbers)])
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    writer = ChatWriter(tokenizer, model)
    rows = [row for number in numbers for tools in shown for row in _rows(writer, number, tools)]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    drawn = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        some = [rows[at] for at in torch.randint(len(rows), (ROWS,), generator=drawn).tolist()]
        ids, labels = _batch(some)
        logits = model(input_ids=ids).logits[:, :-1].transpose(1, 2)
        cross_entropy(logits, labels[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
    model.save_pretrained(folder)
    return folder


def _rows(writer: ChatWriter, number: int, tools: list[dict]) -> list[TokenRow]:
    call = to_native(DELETE, {"email_id": f"{number:08}"}, "call")
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call", "content": DONE},
        {"role": "assistant", "content": "The mail is gone."},
    ]
    return writer.rows(task(number)["messages"], turns, tools)


def _batch(rows: list[TokenRow]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row.ids) for row in rows)
    ids, labels = torch.zeros(len(rows), width, dtype=int), torch.full((len(rows), width), -100)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        learnt = torch.tensor(row.learnt).nonzero()[:, 0]
        labels[place, learnt] = ids[place, learnt]
    return ids, labels
