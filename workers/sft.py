"""Supervised fine-tuning of a LoRA adapter with TRL. `python -m workers.sft spec.json`
(docs/jobs.md).

The loss is on the answer and the token that ends it, and nothing after it; in an episode of several
turns on the agent's own turns (workers.ml.chat_writer). Tokens that prompts of a batch share
(system prompt, tools, examples) are computed once (workers.ml.tree). A resumed run gives the same
result as an uninterrupted one (workers.ml.trl_runs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from workers.lib.control_tokens import assistants
from workers.lib.events import Emitter
from workers.lib.prefixes import count_tokens
from workers.lib.program import StopFlag, run_main
from workers.lib.shown_progress import ShownProgress
from workers.lib.specs.sft import Sft, SftConfig, SftRow
from workers.lib.token_rows import TokenRow
from workers.ml import checkpoint
from workers.ml.chat_writer import ChatWriter
from workers.ml.models import device
from workers.ml.ranks import ALONE, Ranks, join
from workers.ml.sharding import scored_rows
from workers.ml.tree import Scored, scored_parts, use_tree
from workers.ml.trl_runs import (
    InParts,
    arguments,
    checkpointing,
    learnable,
    loaded,
    real_rows,
    refuse_long_rows,
    reporting,
    row_order,
    train,
)
from workers.ml.validation import Validation


def main(
    spec: Sft, events: Emitter, stop: StopFlag, measured: Mapping[str, Any] | None = None
) -> None:
    """`measured`: what the result says besides."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    found: dict[str, float] = {}

    class SharedPromptTrainer(InParts, SFTTrainer):
        """TRL's trainer with the same loss, computed without repeating shared prompts."""

        def training_step(self, model: Any, inputs: dict, num_items_in_batch: Any = None) -> Tensor:
            model.train()
            ids, real, labels = (
                inputs[name].to(device()) for name in ("input_ids", "attention_mask", "labels")
            )
            found.update(add_gradients(model, ids, real.bool(), labels, config, ranks, stop.check))
            found.update(count_tokens(real_rows(inputs), config.micro_batch))
            return torch.tensor(found["train/loss"], device=device())

        def _get_train_sampler(self, train_dataset: Any = None) -> list[int]:
            return row_order(len(self.train_dataset), steps * config.batch_size, seed)[
                start * config.batch_size :
            ]

    config, steps, seed = spec.config, spec.config.steps, spec.seed
    start, ranks = (
        checkpoint.step_of(spec.resume_from),
        join(config.processes, in_lockstep=config.shard),
    )
    model, tokenizer, optimizer, scheduler = loaded(spec, events, stop, ranks)
    if not config.shard:
        use_tree(model)
    shown = ShownProgress(events, steps)
    learned = learnable(spec.rows, answers_in, tokenizer, events)
    held_back = learnable(
        spec.validation_rows,
        answers_in,
        tokenizer,
        events,
        what="validation examples",
        required=False,
    )
    writer = ChatWriter(tokenizer, model)
    rows = Dataset.from_list(
        trl_rows(
            writer, learned, lambda n: shown.count(start, "tokenizing examples:", n, len(learned))
        )
    )
    aside = Dataset.from_list(trl_rows(writer, held_back)) if held_back else None
    writer.warn(events)
    held = (
        (lambda: {"validation/loss": held_loss(model, trainer, config, ranks, stop.check)})
        if aside
        else None
    )
    validation = Validation(spec, events, stop, model, tokenizer, held, ranks)
    reporter = reporting(
        events, stop, spec, model, optimizer, found=found, measure=validation, ranks=ranks
    )
    trainer = SharedPromptTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=rows,
        eval_dataset=aside,
        optimizers=(optimizer, scheduler),
        callbacks=[reporter],
        args=SFTConfig(
            **arguments(spec, start, ranks)
            | {
                "per_device_train_batch_size": config.batch_size
            }  # rows are distributed by shared prefix
            | (checkpointing(config) if config.shard else {}),
            completion_only_loss=True,
        ),
    )
    prepared = [*trainer.train_dataset, *(trainer.eval_dataset or ())]
    refuse_long_rows([len(row["input_ids"]) for row in prepared], spec.config.max_length)
    adapter = train(trainer, model, spec, ranks)
    events.result(adapter=str(adapter), metrics={"steps": steps} | dict(measured or {}))


def trl_rows(
    writer: ChatWriter, rows: list[SftRow], tell: Callable[[int], None] = lambda n: None
) -> list[dict]:
    """Rows for the trainer, as tokens. `tell` is called with the number of rows tokenized so
    far.
    """
    made: list[TokenRow] = []
    for number, row in enumerate(rows, 1):
        made += writer.rows(
            row.messages, row.turns or [{"role": "assistant", "content": row.completion}], row.tools
        )
        tell(number)
    return [
        {"input_ids": row.ids, "completion_mask": [int(mine) for mine in row.learnt]}
        for row in made
    ]


def answers_in(row: SftRow) -> list[str | dict]:
    """Earlier ones included, which are the model's own, too."""
    return [*assistants(row.messages), *assistants(row.turns), row.completion]


def add_gradients(
    model: Any,
    ids: Tensor,
    real: Tensor,
    labels: Tensor,
    config: SftConfig | None = None,
    ranks: Ranks = ALONE,
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Add the gradients of a batch's loss to the model's; return loss, entropy and accuracy as
    metrics.

    The loss is the mean negative log-likelihood over the labelled tokens. All tensors are [B, L],
    padded on the right; labels are −100 where nothing is learned. Prefixes shared by several rows
    are computed once, logits only where there is a label; with `micro_batch`, for that many rows at
    a time. With several `ranks`, each gets the whole batch and computes some of its rows, and all
    get the sum. `check` is called for each part, and may raise.
    """
    learnt, lengths = (labels != -100).tolist(), real.sum(-1).tolist()
    rows = [
        TokenRow(row[:length], mark[:length])
        for row, mark, length in zip(ids.tolist(), learnt, lengths, strict=True)
    ]
    tokens = sum(sum(row.learnt[1:]) for row in rows)
    size, recompute, sharded = (
        (config.micro_batch, config.gradient_checkpointing, config.shard)
        if config
        else (0, False, False)
    )
    mine = (
        ranks.part_of_each(len(rows), rows)
        if sharded
        else [rows[at] for at in ranks.mine([row.ids for row in rows])]
    )
    micro = [
        mine[at : at + (size or len(mine))] for at in range(0, len(mine), size or len(mine) or 1)
    ]

    def scored() -> Iterator[Scored]:
        if sharded:
            return scored_rows(model, mine, size or len(mine))
        return chain.from_iterable(scored_parts(model, part, recompute=recompute) for part in micro)

    def share() -> dict[str, float]:
        found = Counter[str]()
        for some in scored():
            if not sharded:  # in a sharded model no process may leave within a step
                check()
            loss = -some.tokens.logprobs.sum() / tokens
            loss.backward()
            found["train/loss"] += float(loss.detach())
            found["train/entropy"] += float(some.tokens.entropies.sum() / tokens)
            found["train/token_accuracy"] += float(some.tokens.likeliest.sum() / tokens)
        return dict(found)

    found = ranks.totals(share)
    ranks.add_gradients(model.parameters())
    return found


def held_loss(
    model: Any,
    trainer: Any,
    config: SftConfig,
    ranks: Ranks = ALONE,
    check: Callable[[], None] = lambda: None,
) -> float:
    """The mean negative log-likelihood over the labelled tokens of all held-back rows."""
    rows = [
        TokenRow(row["input_ids"], [label != -100 for label in row["labels"]])
        for row in trainer.eval_dataset
    ]
    tokens = sum(sum(row.learnt[1:]) for row in rows)
    if config.shard:  # all processes compute together
        with torch.no_grad():
            return (
                -sum(
                    float(some.tokens.logprobs.sum())
                    for some in scored_rows(model, rows, config.batch_size)
                )
                / tokens
            )
    mine = [rows[number] for number in ranks.mine([row.ids for row in rows])]

    def share() -> float:
        total = 0.0
        with torch.inference_mode():
            for some in scored_parts(model, mine) if mine else ():
                check()
                total += float(some.tokens.logprobs.sum())
        return total

    return -sum(ranks.gather(share)) / tokens


if __name__ == "__main__":
    run_main(Sft, main)
